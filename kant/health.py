"""Answers to probes: whether a web process responds at all, and whether it can work."""

from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, HttpResponse

from tenants.outage import Trouble, trouble_of

ALIVE, READY = "/healthz", "/readyz"
PROBES = (ALIVE, READY)
BROKEN = Trouble("The database answers with an error.", "unavailable")


class Health:
    """`/healthz`: 200, the process responds. `/readyz`: 503 if the database is away or unusable.

    Otherwise `/readyz` is 200, also while Kant is busy. This comes before all other middleware: a
    probe uses the pod's address, which ALLOWED_HOSTS does not contain. Nobody has to sign in, so
    the answers say nothing else.
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
        # A busy process works: taking it out would leave even more work to the others.
        return _text(trouble.said, status=200 if trouble.code == "busy" else 503)
    return _text("The database answers.")


def _text(text: str, status: int = 200) -> HttpResponse:
    return HttpResponse(f"{text}\n", content_type="text/plain; charset=utf-8", status=status)
