"""Idempotency-Key: a POST that is sent twice takes effect once.

Where one function does all the work (`idempotent_at_once`), key and answer are stored in its
transaction. Of two concurrent requests the later one waits, is rolled back and gets the answer of
the other.

Elsewhere (`idempotent`) the key is claimed first and committed, so that a second request sees it.
The write and its stored answer are then one transaction: after a crash the claim has no answer, and
nothing was done. Another request may take over such a claim once it is old; the guard in `_answer`
then makes a slow original fail instead of writing a second time.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from rest_framework.exceptions import APIException
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.problems import Problem, bad_header
from tenants.errors import Conflict, DomainError
from tenants.models import IdempotencyKey, User
from tenants.services.receipts import KeyTaken, Receipt
from tenants.services.transactions import unit_of_work

T = TypeVar("T")

HEADER = "Idempotency-Key"
KEPT = timedelta(hours=24)
# No request takes this long; an older claim without an answer belongs to a process that died.
ABANDONED = timedelta(seconds=60)
KEPT_HEADERS = ("Location", "ETag")


Handler = Callable[..., Response]


def idempotent(forget: str = "") -> Callable[[Handler], Handler]:
    """Wrap a view's `post`. Errors are not stored: they changed nothing, and the client may fix
    them.

    `forget`: a field of the answer that must not be stored; a replay has null there.
    """

    def wrap(handler: Handler) -> Handler:
        @wraps(handler)
        def wrapper(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
            key = _key_of(request)
            if key is None or view.dry_run:
                return handler(view, request, *args, **kwargs)
            fresh = _fresh(view.actor, request, key)
            return _by_claim(fresh, lambda: handler(view, request, *args, **kwargs), forget)

        wrapper.idempotent = True  # type: ignore[attr-defined]
        return wrapper

    return wrap


class Keyed:
    """A request with a key, and its answer once the request has been carried out."""

    def __init__(self, fresh: Mapping[str, Any]) -> None:
        self.fresh = fresh
        self.response: Response | None = None

    def receipt(self, show: Callable[[Any], Response]) -> Receipt:
        """Return the receipt to store; `show` makes the answer from what was created."""

        def answered(made: Any) -> IdempotencyKey:
            self.response = show(made)
            return IdempotencyKey(**self.fresh, **_kept(self.response))

        return Receipt(self.fresh["user"].pk, self.fresh["key"], answered)


def idempotent_at_once(handler: Handler) -> Handler:
    """Wrap a `post(request, keyed)` that answers through `answered`: one function does all the work
    and stores the receipt, alone or together with those of others."""

    @wraps(handler)
    def wrapper(view: Any, request: Request) -> Response:
        key = _key_of(request)
        if key is None or view.dry_run:
            return handler(view, request, None)
        fresh = _fresh(view.actor, request, key)
        try:
            return handler(view, request, Keyed(fresh))
        except KeyTaken:
            pass
        except (DomainError, APIException):
            # A request that was answered before gets the same answer, whatever it would meet now.
            if not _mine(fresh).exists():
                raise
        return _by_claim(fresh, lambda: handler(view, request, None))

    wrapper.idempotent = True  # type: ignore[attr-defined]
    return wrapper


def answered(
    keyed: Keyed | None, show: Callable[[T], Response], do: Callable[[Receipt | None], T]
) -> Response:
    """Return the answer to what `do` creates; `do` stores the receipt that it is given."""
    if keyed is None:
        return show(do(None))
    do(keyed.receipt(show))
    assert keyed.response is not None
    return keyed.response


def forget_old_keys() -> int:
    """Delete answers that are older than promised; return how many."""
    deleted, _ = IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEPT).delete()
    return deleted


def _key_of(request: Request) -> str | None:
    """Return the key of a request; None = it has none. Raises a problem for a malformed key."""
    key = request.headers.get(HEADER)
    if key is not None and not (1 <= len(key) <= 128 and key.isascii() and key.isprintable()):
        raise bad_header(HEADER, "Must be 1 to 128 printable ASCII characters, e.g. a UUID.")
    return key


def _fresh(user: User, request: Request, key: str) -> dict[str, Any]:
    """Return what is stored about a request with a key, besides its answer."""
    # Read the raw body before DRF consumes the stream.
    query = request.META.get("QUERY_STRING", "")
    digest = hashlib.sha256(query.encode() + b"\n" + request._request.body).hexdigest()
    wanted = {"method": request.method or "", "path": request.path[:500], "body_digest": digest}
    return {"user": user, "key": key, **wanted}


def _by_claim(fresh: Mapping[str, Any], act: Callable[[], Response], forget: str = "") -> Response:
    """Return the stored answer, or claim the key and return the answer of `act`."""
    claim = _claim(fresh)
    if claim.status is not None:
        return _replayed(claim)
    try:
        return _answer(claim, act, forget)
    except BaseException:
        _unanswered(claim).delete()
        raise


def _mine(fresh: Mapping[str, Any]) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.filter(user=fresh["user"], key=fresh["key"])


def _claim(fresh: Mapping[str, Any]) -> IdempotencyKey:
    """Return a fresh claim (status None) or the answered one; raise a problem otherwise."""
    wanted = {name: value for name, value in fresh.items() if name not in ("user", "key")}
    now, mine = timezone.now(), _mine(fresh)
    over = Q(created_at__lt=now - KEPT) | Q(status=None, created_at__lt=now - ABANDONED)
    for _ in range(2):
        try:
            # A savepoint lets PostgreSQL continue after the refused insert.
            with transaction.atomic():
                return IdempotencyKey.objects.create(**fresh)
        except IntegrityError:
            # Replace an expired answer, or a claim that nobody will answer.
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
        if not _unanswered(claim).update(**_kept(response, forget)):
            raise Conflict(
                "This request took so long that a repetition took over its Idempotency-Key. "
                "Repeat it to get that answer."
            )
    return response


def _kept(response: Response, forget: str = "") -> dict[str, Any]:
    """Return what is stored of an answer."""
    stored = json.loads(JSONRenderer().render(response.data)) if response.data else None
    if forget and stored:
        stored[forget] = None
    headers = {name: response[name] for name in KEPT_HEADERS if name in response}
    return {"status": response.status_code, "response": stored, "headers": headers}


def _replayed(claim: IdempotencyKey) -> Response:
    headers = {**claim.headers, "Idempotency-Replayed": "true"}
    return Response(claim.response, status=claim.status, headers=headers)
