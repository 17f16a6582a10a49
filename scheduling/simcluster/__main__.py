"""Start the embedded cluster: `python -m scheduling.simcluster --fleet demo --state-dir DIR`.

Prints `READY http://127.0.0.1:PORT` once it serves, or `FAILED ` and the reason. It ends on SIGTERM
and SIGINT, and when its parent process has ended. A second start with the same state directory
continues.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import uvloop
import yaml

from scheduling.simcluster.cluster import EmbeddedCluster, StateError
from scheduling.simcluster.controllers.kubelet import Delays
from scheduling.simcluster.server import Server
from scheduling.simulator.fleet import FleetError

HOST = "127.0.0.1"
PARENT_CHECK_S = 0.5
STOP_WITHIN_S = 3.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scheduling.simcluster", description=__doc__)
    parser.add_argument("--fleet", required=True, help="demo, paper, large, openb:CSV or a YAML")
    parser.add_argument("--port", type=int, default=0, help="0 = any free port")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig for this cluster here")
    parser.add_argument("--token-file", type=Path, help="require the bearer token in this file")
    parser.add_argument("--start-delay", type=float, default=0.05, help="seconds a pod starts in")
    parser.add_argument("--stop-delay", type=float, default=0.1, help="seconds a pod stops in")
    return parser.parse_args()


def write_kubeconfig(path: Path, url: str, token: str) -> None:
    """Write a kubeconfig with one cluster, one user and one context, all named `embedded`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "embedded", "cluster": {"server": url}}],
        "users": [{"name": "embedded", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
        "current-context": "embedded",
    }
    draft = path.with_name(path.name + ".tmp")
    draft.touch(mode=0o600)
    draft.write_text(yaml.safe_dump(document))
    draft.replace(path)


def _told_to_end() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set.

    After the signal the process ends within STOP_WITHIN_S, whatever its loop is doing: a thread
    receives the signals, so no long computation can prevent that.
    """
    signals = signal.SIGTERM, signal.SIGINT
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def wait() -> None:
        signal.sigwait(signals)
        with suppress(RuntimeError):  # the loop has just ended
            loop.call_soon_threadsafe(ended.set)
        time.sleep(STOP_WITHIN_S)
        os._exit(0)  # the disk is consistent at any moment

    threading.Thread(target=wait, name="ending", daemon=True).start()
    return ended


async def _run(arguments: argparse.Namespace, token: str) -> None:
    delays = Delays(arguments.start_delay, arguments.stop_delay)
    server = Server(lambda: EmbeddedCluster(arguments.state_dir, arguments.fleet, delays), token)
    ended = _told_to_end()
    port = await server.start(HOST, arguments.port)
    # Hardly anything here is cyclic: frequent collections would scan a hundred thousand objects in
    # the middle of requests and find nothing.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    url = f"http://{HOST}:{port}"
    if arguments.kubeconfig:
        write_kubeconfig(arguments.kubeconfig, url, token)
    print(f"READY {url}", flush=True)
    parent = os.getppid()
    while not ended.is_set() and os.getppid() == parent:
        try:
            async with asyncio.timeout(PARENT_CHECK_S):
                await ended.wait()
        except TimeoutError:
            continue
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_WITHIN_S):
            await server.stop()


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    arguments = _arguments()
    try:
        token = arguments.token_file.read_text().strip() if arguments.token_file else ""
        uvloop.run(_run(arguments, token))
    except (FleetError, StateError, OSError) as error:
        print(f"FAILED {' '.join(str(error).split())}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
