"""Ends answers that nobody reads.

A connected client that reads nothing would keep them for ever.
"""

import asyncio
import logging
from typing import Any

from kant.bodies import App, Message, Receive, Send

log = logging.getLogger(__name__)

# For one part of an answer, beyond what the system buffers for a connection.
TAKEN_WITHIN_S = 120.0


class TakenAnswers:
    """An ASGI application that gives up answers that are not read.

    If a part of an answer is not taken within TAKEN_WITHIN_S, the answer ends as if the client had
    gone. The time between parts is up to `app`.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        async def taken(message: Message) -> None:
            try:
                async with asyncio.timeout(TAKEN_WITHIN_S):
                    await send(message)
            except TimeoutError:
                log.warning(
                    "the answer to %s is given up: nothing of it is taken for %.0f s",
                    scope["path"][:200],
                    TAKEN_WITHIN_S,
                )
                # Django gets the same when a client leaves during an answer.
                raise asyncio.CancelledError from None

        await self._app(scope, receive, taken if scope["type"] == "http" else send)
