"""Sending one request until its outcome is known.

A reply may leave open whether the request was carried out: 429, 5xx, a time-out, a broken
connection, a conflict. Then the object is read before anything is sent again.
"""

import asyncio
import random
import time

from msgspec import Struct

from scheduling.kube.door.client import Client, NoReply, Reply
from scheduling.kube.door.requests import LookRefused, Request
from scheduling.kube.seam import CallOutcome, KubeError, Result

BUDGET_S = 30.0
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
# An API server that has just started refuses everybody until it has loaded its roles.
RIGHTS_WITHIN_S = 10.0
STARTING_PAUSE_S = 0.5


class _Run(Struct):
    """The progress of one request. `unsure`: an earlier attempt may have been carried out."""

    started: float
    deadline: float
    unsure: bool = False
    sent: bool = False
    pause: float = FIRST_PAUSE_S
    code: int = 0
    asked: float = 0.0
    reason: str = ""

    def failed(self, code: int, reason: str, asked: float = 0.0) -> None:
        self.code, self.reason, self.asked = code, reason, asked

    def next_pause(self) -> float:
        # After a conflict, look at once; wait only if it stays unexplained.
        at_once = self.code == 409 and self.pause == FIRST_PAUSE_S
        wait = 0.0 if at_once else max(self.asked, self.pause * random.uniform(0.5, 1.5))
        self.pause = min(self.pause * 2, LAST_PAUSE_S)
        return wait


class Settler:
    """Settles requests at one API server; all share what one learns of the server's health."""

    def __init__(self, client: Client) -> None:
        self.fence = float("inf")  # monotonic time after which nothing more is sent
        self._client = client
        self._reachable = True
        self._refused_since = 0.0  # when the account was first refused, 0 = it is not

    async def settled(self, request: Request) -> CallOutcome:
        """Send the request until its outcome is known; FAILED if it is unknown after BUDGET_S.

        FAILED after one attempt while the server is known to be unreachable.
        """
        now = time.monotonic()
        run = _Run(now, now + BUDGET_S if self._reachable else now)
        while True:
            outcome = await self._attempt(request, run)
            if outcome is not None:
                return outcome
            if time.monotonic() >= run.deadline:
                return CallOutcome(
                    Result.FAILED, code=run.code, message=run.reason, retry_after=run.asked
                )
            await asyncio.sleep(run.next_pause())

    async def _attempt(self, request: Request, run: _Run) -> CallOutcome | None:
        try:
            if run.unsure:
                outcome = await request.look()
                self._reachable = True
                if outcome is not None:
                    return outcome
                run.unsure = False
            if time.monotonic() >= self.fence:
                result = Result.FAILED if run.sent else Result.NOT_SENT
                return CallOutcome(result, message="this scheduler may no longer act")
            reply = await self._client.call(
                request.method, request.path, request.body, request.content_type
            )
        except NoReply as none:
            run.unsure = run.unsure or none.sent
            run.sent = run.sent or none.sent
            run.failed(0, none.reason)
            self._reachable = none.sent
            return None
        except LookRefused as refusal:
            return None if self._bears(refusal.reply, run) else refusal.outcome
        except KubeError as error:
            return CallOutcome(Result.REFUSED, code=error.code, message=str(error))
        self._reachable = run.sent = True
        return self._judge(request, reply, run)

    def _judge(self, request: Request, reply: Reply, run: _Run) -> CallOutcome | None:
        if self._bears(reply, run):
            return None
        outcome = request.settle(reply)
        if outcome is None:
            run.unsure = True
            run.failed(reply.code, reply.status.message, reply.retry_after)
        return outcome

    def _bears(self, reply: Reply, run: _Run) -> bool:
        """Whether to bear a refusal of the account, since the server may just be starting."""
        if not _refuses_account(reply):
            self._refused_since = 0.0
            return False
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - min(run.started, self._refused_since) >= RIGHTS_WITHIN_S:
            return False
        run.pause = STARTING_PAUSE_S
        run.failed(reply.code, reply.status.message)
        return True


def _refuses_account(reply: Reply) -> bool:
    """Whether it is a 401, or the 403 of missing rights.

    Admission, e.g. by a ResourceQuota, says 403, too.
    """
    return reply.code == 401 or (reply.code == 403 and " cannot " in reply.status.message)
