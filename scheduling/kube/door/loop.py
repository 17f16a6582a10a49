"""The door's event loop, and a way to run blocking work beside it.

The loop is asyncio's own; it costs the same CPU per pod as uvloop. A process of Kant was once
aborted inside libuv, most likely because a descriptor was closed that libuv was about to poll.
libuv then aborts the process (libuv 5130, which stays as it is), whereas asyncio carries on. It is
not known what closed the descriptor.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

NAMED_WITHIN_S = 30.0


class DoorLoop(asyncio.SelectorEventLoop):
    """An event loop that can end without waiting for name servers.

    asyncio's own waits for its threads that look up names.
    """

    async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
        """Work as socket.getaddrinfo does; raises gaierror also if no answer comes."""
        try:
            return await aside(lambda: socket.getaddrinfo(host, port, **how), NAMED_WITHIN_S)
        except TimeoutError:
            text = f"no answer about {host} within {NAMED_WITHIN_S:.0f} s"
            raise socket.gaierror(socket.EAI_AGAIN, text) from None


async def aside(work: Callable[[], T], within_s: float) -> T:
    """Run blocking work in its own thread, which keeps neither process nor event loop from ending.

    Raises TimeoutError after `within_s` seconds.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: Exception | None) -> None:
        if done.done():
            return  # nobody waits any more
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as failed:
            error = failed
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="kube-access", daemon=True).start()
    async with asyncio.timeout(within_s):
        return await done
