"""Database sessions that report why they cannot be stored."""

from typing import Any

from django.contrib.sessions.backends import db
from django.contrib.sessions.backends.base import UpdateError
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest, HttpResponse

from tenants.outage import in_passing, trouble_of


class SessionStore(db.SessionStore):
    """Like Django's, except that an error of the database is not taken for a session that somebody
    ended."""

    noted = False

    def note(self, key: str, value: Any) -> None:
        """Store this if possible; a failure is no error because the user did not ask for it."""
        self._session[key] = value  # type: ignore[attr-defined]  # a dictionary that was read
        self.noted = True

    def save(self, must_create: bool = False) -> None:
        try:
            super().save(must_create)
        except UpdateError as error:
            if trouble_of(error.__context__) is not None:
                raise error.__context__ from error.__context__.__cause__  # type: ignore[union-attr,misc]
            raise


class Sessions(SessionMiddleware):
    """Answers read-only requests even when notes on their session cannot be stored."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        session: Any = getattr(request, "session", None)
        if session is None or session.modified or not getattr(session, "noted", False):
            return super().process_response(request, response)
        session.modified = True
        with in_passing():
            return super().process_response(request, response)
        return response
