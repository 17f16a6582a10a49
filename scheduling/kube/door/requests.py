"""A request that acts on an object: what to send, what its reply means, how to look at the object.

`settle` judges a reply; `look` reads the object itself if the reply left the outcome open. Both
return the outcome or None, which from `settle` means "look" and from `look` means "send again".
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
    """The API server refused to show the object."""

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
    """Return a function that looks at one object and has `judge` judge it (None = no object).

    It raises LookRefused if it is refused, and NoReply if the reply says neither.
    """

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


# --- judging replies ------------------------------------------------------------------------------
def refused(reply: Reply) -> CallOutcome | None:
    """Return REFUSED for a 4xx that neither a retry nor a look can help."""
    if 400 <= reply.code < 500 and reply.code not in (408, 409, 429):
        return CallOutcome(Result.REFUSED, code=reply.code, message=reply.status.message)
    return None


def refused_to_create(reply: Reply) -> CallOutcome | None:
    """As `refused`, but wait for a terminating namespace: it is created again once it is gone."""
    if reply.code == 403 and "being terminated" in reply.status.message:
        return None
    return refused(reply)


def gone_or_refused(reply: Reply, uid: str) -> CallOutcome | None:
    if reply.code == 404:
        return CallOutcome(Result.GONE, uid, code=404)
    return refused(reply)


def names_uid(reply: Reply) -> bool:
    """Whether the uid was wrong: such a patch is answered as "invalid", not as a conflict."""
    details = reply.status.details
    return details is not None and any(cause.field == "metadata.uid" for cause in details.causes)
