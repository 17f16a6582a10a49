"""`kant logs`: what the pods of a job have printed and are printing."""

import argparse
import http.client
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from kant.client import output
from kant.client.api import Api
from kant.client.errors import NOT_FOUND, ClientError, usage
from kant.client.jobs import ENDED, POLL_S, only_job

# The server's limit on open logs per user.
MOST_FOLLOWED = 16
# After this many seconds without a line, check whether the job still runs.
SILENCE_S = 60.0
CONFLICT = "conflict"  # there is no log yet
GONE = "gone"  # there will never be one
# States of pods that may have logs; released pods are deleted.
HAVE_LOGS = ("BOUND", "RUNNING", "SUCCEEDED", "FAILED")
KANT = b"Kant: "  # starts the line in which the server says why a log is incomplete


def add_flags(parser: argparse.ArgumentParser, duration_s: Callable[[str], int]) -> None:
    flag = parser.add_argument
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--pod", type=int, default=0, metavar="N", help="number of the pod (default: 0)"
    )
    which.add_argument(
        "--all", action="store_true", help="all pods; each line starts with the name of its pod"
    )
    flag("--pod-set", metavar="NAME", help="pod set (default: the first)")
    flag("--container", metavar="NAME", help="container, if the pod has several")
    flag("--tail", type=int, metavar="N", help="only this many lines from the end")
    flag(
        "--since",
        type=duration_s,
        metavar="TIME",
        help="only lines since then, e.g. 10m for the last ten minutes",
    )
    flag("--previous", action="store_true", help="show the run before the last restart")
    flag("--timestamps", action="store_true", help="start each line with its time")
    flag("-f", "--follow", action="store_true", help="follow until the job ends")


def logs(api: Api, args: argparse.Namespace) -> None:
    path = only_job(api, args.job)
    query = {
        "container": args.container,
        "tail": args.tail,
        "since": args.since,
        "previous": "true" if args.previous else None,
    }
    if not args.all:
        pod = {"pod_set": args.pod_set, "ordinal": args.pod}
        _PodLog(api, path, {**query, **pod}, args).run()
        return
    each = [
        _PodLog(api, path, {**query, "pod_set": name, "ordinal": n}, args, f"[{name}-{n}] ")
        for name, n in _pods(api, path, args.pod_set)
    ]
    if not each:
        raise usage(f"The job has no pod set {args.pod_set!r}.")
    if args.follow:
        _together(each)
    else:
        _in_turn(each)


def _pods(api: Api, path: str, only: str | None) -> list[tuple[str, int]]:
    """Return pod set and ordinal of all pods that the job asks for, and of extra ones that it has.

    After a resize, the pods that left need not be those with the highest ordinals.
    """
    sets = api.get(path)["pod_sets"]
    ordinals = [set(range(pod_set["count"])) for pod_set in sets]
    for pod in api.items(f"{path}/pods", {"state": HAVE_LOGS}):
        ordinals[pod["pod_set"]].add(pod["ordinal"])
    return [
        (pod_set["name"], ordinal)
        for pod_set, had in zip(sets, ordinals, strict=True)
        if only in (None, pod_set["name"])
        for ordinal in sorted(had)
    ]


def _in_turn(each: "list[_PodLog]") -> None:
    """Read all logs that can be read; raise the first error if none can."""
    failed = []
    for reading in each:
        try:
            reading.run()
        except ClientError as error:
            failed.append(error)
            output.note(reading.prefix + " ".join(error.lines))
    if len(failed) == len(each):
        raise ClientError(failed[0].code)


def _together(each: "list[_PodLog]") -> None:
    if len(each) > MOST_FOLLOWED:
        raise usage(
            f"The job has {len(each)} pods; at most {MOST_FOLLOWED} are followed at once. Name one "
            "with --pod and --pod-set, or leave out --follow."
        )
    ends: queue.Queue[BaseException | None] = queue.Queue()

    def follow(reading: _PodLog) -> None:
        try:
            reading.run()
            ends.put(None)
        except BaseException as error:  # raised again in the main thread
            ends.put(error)

    for reading in each:
        threading.Thread(target=follow, args=(reading,), daemon=True).start()
    for _ in each:
        if (error := ends.get()) is not None:
            raise error


class _PodLog:
    """The log of one pod and of the pods that replace it."""

    def __init__(
        self, api: Api, path: str, query: dict[str, Any], args: argparse.Namespace, prefix: str = ""
    ) -> None:
        self.prefix = prefix
        self._api, self._path, self._query = api, path, query
        self._follow, self._stamped = args.follow, args.timestamps
        self._last = b""  # the time of the last line shown
        self._told = ""

    def run(self) -> None:
        if not self._follow:
            stamped = {"timestamps": "true" if self._stamped else None}
            with self._api.stream(f"{self._path}/logs", {**self._query, **stamped}) as lines:
                for line in lines:
                    _show(self.prefix, line)
            return
        while True:
            # Ask before reading: then the log includes everything printed until the end.
            over = self._api.get(self._path)["state"] in ENDED
            if not self._read_on(over=over) or over:
                return
            time.sleep(POLL_S)

    def _read_on(self, *, over: bool) -> bool:
        """Read new lines until the container or the connection ends.

        Returns False if the job no longer wants this pod.
        """
        since = self._last
        query = {**self._query, "timestamps": "true", "follow": None if over else "true"}
        if since:
            query |= {"since": since.decode(), "tail": None}
        try:
            with self._api.stream(f"{self._path}/logs", query, timeout_s=SILENCE_S) as lines:
                for line in lines:
                    at, _, text = line.partition(b" ")
                    if at > since:
                        # Kant's own last line may be later than lines still to come.
                        if not text.startswith(KANT):
                            self._last = at
                        _show(self.prefix, line if self._stamped else text)
        except (OSError, http.client.HTTPException):
            pass  # silence or a broken connection: go on after the last line
        except ClientError as error:
            # A pod that is gone may be placed again, may still come, or may have left its log
            # behind.
            waits = error.problem == CONFLICT or error.code == NOT_FOUND
            if not waits or (over and not since):
                raise
            why = self.prefix + " ".join(error.lines)
            if not over and why != self._told:
                self._told = why
                output.note(why)
            return error.problem != GONE
        return True


_printing = threading.Lock()


def _show(prefix: str, line: bytes) -> None:
    text = line.decode(errors="replace")
    with _printing:
        sys.stdout.write(f"{prefix}{text}" if text.endswith("\n") else f"{prefix}{text}\n")
        sys.stdout.flush()
