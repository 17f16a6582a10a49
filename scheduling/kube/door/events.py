"""Events of events.k8s.io/v1: equal ones are counted together, a flood is cut off.

Equal events (same pod, reason and note) within ten minutes form one series; its count is written at
most once a minute. Source: events.k8s.io/v1 API reference; limits follow client-go.
"""

import time
import uuid
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from scheduling.kube.door.client import JSON, MERGE_PATCH, Reply
from scheduling.kube.door.requests import Request
from scheduling.kube.seam import CallOutcome, EmitEvent, Result
from scheduling.kube.translate.objects import encode

REMEMBERED = 4096
SERIES_S = 600.0
SERIES_WRITE_S = 60.0
BURST = 200
PER_SECOND = 20.0
NOTE_BYTES = 1024
CONTROLLER = "kant"


class _Series(Struct):
    path: str
    count: int
    began: float
    written: float


class EventRecorder:
    """Decides which events are written and builds their requests."""

    def __init__(self) -> None:
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()
        self._tokens = float(BURST)
        self._refilled = time.monotonic()
        self._instance = f"kant-{uuid.uuid4().hex[:8]}"

    def request(self, event: EmitEvent) -> Request | CallOutcome:
        """Return the request to send, or the outcome if nothing is to be sent."""
        now = time.monotonic()
        key = (event.uid, event.reason, event.note)
        series = self._series.get(key)
        if series is not None and now - series.began < SERIES_S:
            series.count += 1
            if now - series.written < SERIES_WRITE_S:
                return CallOutcome(Result.DONE, event.uid, message="counted with an equal event")
            series.written = now
            body = {"series": {"count": series.count, "lastObservedTime": _micro_time()}}
            return _request("PATCH", series.path, body, MERGE_PATCH, event.uid)
        if not self._token(now):
            return CallOutcome(
                Result.NOT_SENT, event.uid, message="too many events; this one is cut"
            )
        name = f"{event.name[:230]}.{uuid.uuid4().hex[:16]}"
        collection = f"/apis/events.k8s.io/v1/namespaces/{event.namespace}/events"
        self._series[key] = _Series(f"{collection}/{name}", 1, now, now)
        self._series.move_to_end(key)
        if len(self._series) > REMEMBERED:
            self._series.popitem(last=False)
        return _request("POST", collection, self._event(event, name), JSON, event.uid)

    def _token(self, now: float) -> bool:
        self._tokens = min(BURST, self._tokens + (now - self._refilled) * PER_SECOND)
        self._refilled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _event(self, event: EmitEvent, name: str) -> dict[str, Any]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": event.namespace},
            "eventTime": _micro_time(),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": event.action,
            "reason": event.reason,
            "type": event.type,
            "note": event.note.encode()[:NOTE_BYTES].decode(errors="ignore"),
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": event.namespace,
                "name": event.name,
                "uid": event.uid,
            },
        }


def _request(method: str, path: str, body: dict[str, Any], content_type: str, uid: str) -> Request:
    def settle(reply: Reply) -> CallOutcome | None:
        if reply.code in (200, 201, 409):
            return CallOutcome(Result.DONE, uid, code=reply.code)
        return CallOutcome(Result.REFUSED, uid, code=reply.code, message=reply.status.message)

    async def look() -> CallOutcome | None:
        # Looking an event up is not worth a request: after a lost reply it counts as not written.
        return CallOutcome(Result.FAILED, uid, message="no reply; the event may be missing")

    return Request(method, path, encode(body), settle, look, content_type)


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
