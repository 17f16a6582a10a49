"""Sessions that end after a time without use."""

import time
from collections.abc import Callable

from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse

SEEN = "seen_at"
# Seconds between two writes of a session.
PRECISION_S = 60
EVENTS = "text/event-stream"  # the scripts of pages listen to these


class IdleEnd:
    """Signs out users who have opened no page and submitted nothing for KANT_IDLE_MINUTES (0 =
    never). Requests that an open page makes by itself do not count."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        most = 60 * settings.KANT_IDLE_MINUTES
        if most and settings.SESSION_COOKIE_NAME in request.COOKIES:
            self._look(request, most)
        return self.get_response(request)

    @staticmethod
    def _look(request: HttpRequest, most: int) -> None:
        if not request.user.is_authenticated:
            return
        now = time.time()
        seen = request.session.get(SEEN)
        if seen is not None and now - seen > most:
            logout(request)
            return
        asked_by_itself = "HX-Request" in request.headers or request.headers.get("Accept") == EVENTS
        by_itself = request.method == "GET" and asked_by_itself
        if seen is None or (not by_itself and now - seen > PRECISION_S):
            request.session.note(SEEN, now)  # type: ignore[attr-defined]
