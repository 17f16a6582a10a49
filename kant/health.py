"""Answers to probes: whether a web process answers at all, and whether it can work."""

from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, HttpResponse

from tenants.outage import Trouble, trouble_of

ALIVE, READY = "/healthz", "/readyz"
PROBES = (ALIVE, READY)
BROKEN = Trouble("The database answers with an error.", "unavailable")


class Health:
    """`/healthz`: 200, the process answers. `/readyz`: 200, also while Kant is busy, or 503 while
    the database is away or of no use.

    Before all other middleware: a probe asks by the address of the pod, which ALLOWED_HOSTS does
    not name. Nobody signs in for these, so they tell nothing else.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path == ALIVE:
            return _text("The process answers.")
        if request.path == READY:
            return _ready()
        return self.get_response(request)


def _ready() -> HttpResponse:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError) as error:
        trouble = trouble_of(error) or BROKEN
        # Who is busy works: without it the others would have still more to do.
        return _text(trouble.said, status=200 if trouble.code == "busy" else 503)
    return _text("The database answers.")


def _text(text: str, status: int = 200) -> HttpResponse:
    return HttpResponse(f"{text}\n", content_type="text/plain; charset=utf-8", status=status)
