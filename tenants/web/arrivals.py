"""Confirm to the browser that a form has arrived, so that its script can drop the saved input."""

import re
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

FIELD = "arrival"  # static/js/typed.js gives each form that it saves a number
KEPT_S = 3600  # the next page reads the cookie and deletes it
_TAKEN = "kant.arrival"
_NUMBER = re.compile(r"[0-9a-f]{32}")


class Arrivals:
    """Names the form in a cookie `kant-arrived-NUMBER` when a view has received it from a signed-in
    user, whether or not it accepts it.

    No cookie is set when the request could not be read (400) or the view failed, since then the
    outcome is unknown. An htmx request that checks the form's fields carries the number too, but
    does not count as the form.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.get_response(request)
        number = request.META.get(_TAKEN)
        if number is not None and answer.status_code < 500 and answer.status_code != 400:
            answer.set_cookie(
                f"kant-arrived-{number}",
                "1",
                max_age=KEPT_S,
                secure=settings.SESSION_COOKIE_SECURE,
                samesite="Lax",
            )
        return answer

    def process_view(self, request: HttpRequest, *_of_view: Any) -> None:
        """Called only if no other middleware has refused the form."""
        if request.method != "POST" or request.path.startswith("/api/") or request.htmx:  # type: ignore[attr-defined]
            return
        number = request.POST.get(FIELD, "")
        if request.user.is_authenticated and _NUMBER.fullmatch(number):
            request.META[_TAKEN] = number
