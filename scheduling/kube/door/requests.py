"""A request that acts on an object: what is sent, what its reply means, and how to look.

`settle` reads a reply, `look` reads the object itself when a reply left the question open. Both
give the outcome, or None: from `settle` it means "look", from `look` it means "send again".
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from scheduling.kube.door.client import JSON, Client, NoReply, Reply
from scheduling.kube.seam import CallOutcome, Result


class Request(Struct, frozen=True):
    method: str
    path: str
    body: bytes
    settle: Callable[[Reply], CallOutcome | None]
    look: Callable[[], Awaitable[CallOutcome | None]]
    content_type: str = JSON


class LookRefused(Exception):
    """Looking was refused."""

    def __init__(self, reply: Reply, outcome: CallOutcome) -> None:
        super().__init__(outcome.message)
        self.reply = reply
        self.outcome = outcome


class _Uid(Struct, gc=False):
    uid: str = ""


class _Created(Struct, gc=False):
    metadata: _Uid


created = msgspec.json.Decoder(_Created)

Seen = TypeVar("Seen")
Judge = Callable[[Seen | None], CallOutcome | None]
Look = Callable[[], Awaitable[CallOutcome | None]]


def looking(
    client: Client, path: str, read: Callable[[bytes], Seen], judge: Judge[Seen], what: str
) -> Look:
    """How to look at one object of the API: `judge` gets it as `read`, None where there is none.
    Looking raises Refusal, and NoReply where the answer is neither."""

    async def look() -> CallOutcome | None:
        reply = await client.call("GET", path)
        if reply.code == 200:
            return judge(read(reply.body))
        if reply.code == 404:
            return judge(None)
        outcome = refused(reply)
        if outcome is not None:
            raise LookRefused(reply, outcome)
        raise NoReply(f"reading {what}: {reply.code} {reply.status.message}", sent=True)

    return look


# --- what replies say -----------------------------------------------------------------------------
def refused(reply: Reply) -> CallOutcome | None:
    """REFUSED for a 4xx that no retry and no look can help."""
    if 400 <= reply.code < 500 and reply.code not in (408, 409, 429):
        return CallOutcome(Result.REFUSED, code=reply.code, message=reply.status.message)
    return None


def refused_to_create(reply: Reply) -> CallOutcome | None:
    """As `refused`. A namespace that is going is waited for: it is made anew when it is gone."""
    if reply.code == 403 and "being terminated" in reply.status.message:
        return None
    return refused(reply)


def gone_or_refused(reply: Reply, uid: str) -> CallOutcome | None:
    if reply.code == 404:
        return CallOutcome(Result.GONE, uid, code=404)
    return refused(reply)


def names_uid(reply: Reply) -> bool:
    """A patch that names another uid than the object has is "invalid", not a conflict."""
    details = reply.status.details
    return details is not None and any(cause.field == "metadata.uid" for cause in details.causes)
