"""Answers that nobody takes: a client that is there and reads nothing would keep them for ever."""

import asyncio
import logging
from typing import Any

from kant.bodies import App, Message, Receive, Send

log = logging.getLogger(__name__)

# Of a part of an answer, beyond what the system keeps for a connection.
TAKEN_WITHIN_S = 120.0


class TakenAnswers:
    """An ASGI application that gives an answer up, as if its client had gone, where a part of it is
    not taken within TAKEN_WITHIN_S. The parts of an answer may be as far apart as `app` likes."""

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
                # As Django hears of it where the client goes while it is answered.
                raise asyncio.CancelledError from None

        await self._app(scope, receive, taken if scope["type"] == "http" else send)
