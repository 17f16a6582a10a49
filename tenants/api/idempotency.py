"""Idempotency-Key: a POST sent twice happens once.

The key is claimed first (committed, so that a second request sees it). Then the write and its
stored answer are one transaction: after a crash the claim stands without an answer, and nothing
was done. Such a claim may be taken over once it is old; the guard in `_answer` makes the slow
original then fail instead of doing the write a second time.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.problems import Problem, bad_header
from tenants.errors import Conflict
from tenants.models import IdempotencyKey, User
from tenants.services.transactions import unit_of_work

HEADER = "Idempotency-Key"
KEPT = timedelta(hours=24)
# No request takes this long; an unanswered claim that old belongs to a process that died.
ABANDONED = timedelta(seconds=60)
KEPT_HEADERS = ("Location", "ETag")


Handler = Callable[..., Response]


def idempotent(forget: str = "") -> Callable[[Handler], Handler]:
    """Wrap a view's `post`. Errors are not stored: they changed nothing and may be mended.

    `forget`: a field of the answer that must not be stored; a replay answers null in its place.
    """

    def wrap(handler: Handler) -> Handler:
        @wraps(handler)
        def wrapper(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
            key = request.headers.get(HEADER)
            if key is None or view.dry_run:
                return handler(view, request, *args, **kwargs)
            claim = _claim(view.actor, request, key)
            if claim.status is not None:
                return _replayed(claim)
            try:
                return _answer(claim, lambda: handler(view, request, *args, **kwargs), forget)
            except BaseException:
                _unanswered(claim).delete()
                raise

        wrapper.idempotent = True  # type: ignore[attr-defined]
        return wrapper

    return wrap


def forget_old_keys() -> int:
    """Delete the answers kept longer than promised; returns how many."""
    deleted, _ = IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEPT).delete()
    return deleted


def _claim(user: User, request: Request, key: str) -> IdempotencyKey:
    """A fresh claim (status None), or the answered one; raises a problem otherwise."""
    if not (1 <= len(key) <= 128 and key.isascii() and key.isprintable()):
        raise bad_header(HEADER, "Must be 1 to 128 printable ASCII characters, e.g. a UUID.")
    # The raw body, before DRF consumes the stream.
    query = request.META.get("QUERY_STRING", "")
    digest = hashlib.sha256(query.encode() + b"\n" + request._request.body).hexdigest()
    path = request.path[:500]
    now = timezone.now()
    wanted = {"method": request.method or "", "path": path, "body_digest": digest}
    mine = IdempotencyKey.objects.filter(user=user, key=key)
    over = Q(created_at__lt=now - KEPT) | Q(status=None, created_at__lt=now - ABANDONED)
    for _ in range(2):
        try:
            # A savepoint, so that PostgreSQL can go on after the refused insert.
            with transaction.atomic():
                return IdempotencyKey.objects.create(user=user, key=key, **wanted)
        except IntegrityError:
            # An answer kept long enough, or a claim nobody will answer, makes room.
            if not mine.filter(over).delete()[0]:
                break
    found = mine.first()
    if found is None or (
        found.status is None and all(getattr(found, k) == v for k, v in wanted.items())
    ):
        raise Problem(
            "key-in-flight",
            "The first request with this Idempotency-Key is still being answered. Repeat it in "
            "a second.",
        )
    if any(getattr(found, name) != value for name, value in wanted.items()):
        raise Problem(
            "key-reused",
            f"This Idempotency-Key was used for another request ({found.method} {found.path} at "
            f"{found.created_at:%Y-%m-%dT%H:%M:%SZ}). Use a new key.",
        )
    return found


def _unanswered(claim: IdempotencyKey) -> Any:
    return IdempotencyKey.objects.filter(id=claim.pk, status=None)


def _answer(claim: IdempotencyKey, act: Callable[[], Response], forget: str) -> Response:
    with unit_of_work(dry_run=False):
        response = act()
        stored = json.loads(JSONRenderer().render(response.data)) if response.data else None
        if forget and stored:
            stored[forget] = None
        kept = {name: response[name] for name in KEPT_HEADERS if name in response}
        answered = _unanswered(claim).update(
            status=response.status_code, response=stored, headers=kept
        )
        if not answered:
            raise Conflict(
                "This request took so long that its Idempotency-Key was given to a repetition of "
                "it. Repeat it to get that answer."
            )
    return response


def _replayed(claim: IdempotencyKey) -> Response:
    headers = {**claim.headers, "Idempotency-Replayed": "true"}
    return Response(claim.response, status=claim.status, headers=headers)
