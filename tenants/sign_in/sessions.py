"""Sessions in the database, which say what keeps them from being stored."""

from typing import Any

from django.contrib.sessions.backends import db
from django.contrib.sessions.backends.base import UpdateError
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest, HttpResponse

from tenants.outage import in_passing, trouble_of


class SessionStore(db.SessionStore):
    """As Django's, which takes any error of the database for a session that somebody has ended."""

    noted = False

    def note(self, key: str, value: Any) -> None:
        """Store it if that is possible: nobody has asked for it."""
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
    """Whoever only reads is answered also where what was noted of them cannot be stored."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        session: Any = getattr(request, "session", None)
        if session is None or session.modified or not getattr(session, "noted", False):
            return super().process_response(request, response)
        session.modified = True
        with in_passing():
            return super().process_response(request, response)
        return response
