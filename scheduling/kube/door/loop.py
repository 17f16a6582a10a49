"""The event loop of the door, and what may block beside it.

It is asyncio's own, at the same CPU a pod as uvloop. A process of Kant was once aborted inside
libuv, most likely because a descriptor was closed that libuv was about to poll: it then ends the
process (libuv 5130, which stays as it is), where asyncio carries on. Who closed it is not known.
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
    """One whose end no name server holds up: asyncio's own waits for threads that look up names."""

    async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
        """As socket.getaddrinfo; raises gaierror also where no answer comes."""
        try:
            return await aside(lambda: socket.getaddrinfo(host, port, **how), NAMED_WITHIN_S)
        except TimeoutError:
            text = f"no answer about {host} within {NAMED_WITHIN_S:.0f} s"
            raise socket.gaierror(socket.EAI_AGAIN, text) from None


async def aside(work: Callable[[], T], within_s: float) -> T:
    """What may block, in a thread of its own that keeps no process and no event loop from ending.
    Raises TimeoutError where it takes longer."""
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
