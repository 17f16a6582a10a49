"""REST for logs: streamed text, not a document."""

import logging
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from django.http import StreamingHttpResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from scheduling.kube.door.logs import Log, LogOptions, Stopped
from scheduling.kube.seam import KubeError
from scheduling.queries import selectors
from scheduling.queries.pod_logs import open_log, pod_set_of
from tenants.api.base import View
from tenants.api.problems import bad_query
from tenants.api.schema import Shape
from tenants.errors import Invalid
from tenants.models import Scope

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 20  # limit for a log that is not followed
MOST_LINES = 10**9


class PlainText(JSONRenderer):
    """For clients that accept only text: what is rendered are problems, which are JSON."""

    media_type = "text/plain"
    format = "text"


class JobLogsView(View):
    """What a pod of the job printed.

    It is the newest pod of this pod set and ordinal, for as long as Kubernetes keeps its log. At
    most 16 MiB, from the start of what `tail` and `since` select. With `follow`, all of it and what
    is printed until the container ends.
    """

    scope = Scope.SUBMIT
    renderer_classes = [JSONRenderer, PlainText]
    # Without a body HEAD has nothing to say, and following a log would not end.
    http_method_names = ["get", "options"]
    shapes = {
        "GET": Shape(
            plain=True,
            texts={
                "pod_set": "Name of the pod set; default: the first one.",
                "ordinal": "Number of the pod in the pod set, from 0; default 0.",
                "container": (
                    "Container of the pod, also an init container; required for plain pods with "
                    "several containers."
                ),
                "tail": "Only this many lines from the end.",
                "since": "Only lines of the last N seconds, or since a time, e.g. "
                "2030-01-31T12:00:00Z.",
                "previous": "`true`: the log of the run before the last restart.",
                "timestamps": "`true`: start each line with its time.",
                "follow": "`true`: follow the log until the container ends.",
            },
        ),
    }
    query = {"GET": frozenset(shapes["GET"].texts or ())}

    def get(self, request: Request, job_id: uuid.UUID) -> StreamingHttpResponse:
        job = selectors.job_by_id(self.actor, job_id)
        asked = request.query_params
        follow, stamped = self.flag("follow"), self.flag("timestamps")
        ordinal = _number(asked, "ordinal") or 0
        since, since_s = _since(asked.get("since"))
        options = LogOptions(
            tail=_number(asked, "tail"),
            since=since,
            since_s=since_s,
            limit_bytes=None if follow else MOST_BYTES,
            previous=self.flag("previous"),
            timestamps=stamped,
            follow=follow,
        )
        container = asked.get("container", "")
        try:
            pod_set = pod_set_of(job, asked.get("pod_set"), ordinal)
            found = open_log(self.actor, job, pod_set, ordinal, container, options)
        except Invalid as error:
            raise bad_query(error.errors[0].field, error.detail) from None
        return StreamingHttpResponse(
            _told(found.log, options),
            content_type="text/plain; charset=utf-8",
            # nginx would otherwise hold back a followed log until it has a full buffer.
            headers={"X-Kant-Pod": found.pod.pod_name, "X-Accel-Buffering": "no"},
        )


async def _told(found: Log, options: LogOptions) -> AsyncIterator[bytes]:
    """Yield the log, with a last line that says so if it is incomplete."""
    size, piece, why = 0, b"", ""
    try:
        async for piece in found.pieces():
            size += len(piece)
            yield piece
    except KubeError as error:
        log.warning("a log broke off: %s", error)
        why = "the log broke off: its cluster no longer responds"
    except Stopped:
        why = "the server is stopping; ask again for the rest"
    if options.limit_bytes is not None and size >= options.limit_bytes:
        why = f"cut after {size >> 20} MiB; use tail or since to get less"
    if why:
        at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}000Z " if options.timestamps else ""
        start = "" if not piece or piece.endswith(b"\n") else "\n"
        yield f"{start}{at}Kant: {why}\n".encode()


def _number(asked: Any, name: str) -> int | None:
    text = asked.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text[:12]) > MOST_LINES or len(text) > 12:
        raise bad_query(name, f"Must be a whole number from 0 to {MOST_LINES}.")
    return int(text)


def _since(text: str | None) -> tuple[str | None, int | None]:
    """Return (time, None) or (None, number of seconds)."""
    if text is None:
        return None, None
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text):
        return None, int(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC).isoformat(), None
    except (ValueError, OverflowError):
        pass  # reported below
    raise bad_query(
        "since", "Must be a number of seconds, at least 1, or a time, e.g. 2030-01-31T12:00:00Z."
    )
