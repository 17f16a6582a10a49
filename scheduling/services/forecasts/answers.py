"""Answers what would happen: on states that are kept current, each question in its own process.

A child of this process has the state as it is at that instant, and may change it: memory is shared
until it is written to, so a copy costs milliseconds whatever the cluster holds. It is ended when
nobody listens, or when it takes too long.
"""

import gc
import logging
import os
import pickle
import resource
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from django.db import Error

from scheduling.models import Cluster
from scheduling.queries.explain import policy_in_use
from scheduling.queries.whatif import line
from scheduling.queries.whatif.line import Desk, Inquiry
from scheduling.queries.whatif.state import KeptState
from scheduling.services.common.child import NICE, ends_with

log = logging.getLogger(__name__)
T = TypeVar("T")

FRESH_S = 1.0  # no answer is told of a state that is older
LATELY_S = 60.0  # after which a state is made fresh only when somebody asks
AT_ONCE = 2  # children that answer
LONGEST_S = line.LONGEST_S  # that one may take
LOOK_S = 0.02  # how soon is seen that a child has ended


@dataclass(slots=True)
class _KeptState:
    """A state, and when somebody used it and asked about it last, by the monotonic clock."""

    state: KeptState
    used_at: float
    asked_at: float


class _Child(NamedTuple):
    """`kept`: the state that it has, as of so many `changes`; through `found` it tells how that
    goes on, where it had to find it out."""

    asked: Inquiry
    until: float
    kept: KeptState
    changes: int
    found: Connection


class OutOfTime(Exception):
    """Work took more CPU time than it may."""


class WorkFailed(Exception):
    """The process of some work did not end well; it has logged why, if it could. `cpu_s`: what it
    took until then."""

    def __init__(self, why: str, cpu_s: float) -> None:
        super().__init__(why)
        self.cpu_s = cpu_s


class Answers:
    """One process has one. Nothing of it touches the database but `keep`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._kept: dict[int, _KeptState] = {}
        self._waiting: deque[Inquiry] = deque()
        self._children: dict[int, _Child] = {}
        self.wanted: set[int] = set()  # clusters that somebody asked about, and that are not kept

    def asked_lately(self) -> list[int]:
        """The clusters that somebody asked about a moment ago."""
        before = time.monotonic() - LATELY_S
        return [pk for pk, kept in self._kept.items() if kept.asked_at > before]

    @property
    def clusters(self) -> list[int]:
        return list(self._kept)

    def keep(self, cluster: Cluster) -> KeptState | None:
        """The state of a cluster, no older than a moment; None where it is divided, and shards
        decide on it."""
        if policy_in_use(cluster.pk).shards:
            self._kept.pop(cluster.pk, None)
            return None
        kept = self._kept.get(cluster.pk)
        if kept is None:
            clock = time.monotonic()
            asked = cluster.pk in self.wanted
            kept = _KeptState(KeptState(cluster), clock, clock if asked else -LATELY_S)
            kept.state.refresh(time.time())
            self._kept[cluster.pk] = kept
            self.wanted.discard(cluster.pk)
            gc.collect()
            gc.freeze()  # or the collector of a child would write to, and so copy, all of it
        else:
            kept.used_at = time.monotonic()
            _refresh(kept.state)
        return kept.state

    def drop_unwanted(self) -> None:
        """Forget the states that nobody used for long."""
        before = time.monotonic() - line.WANTED_S
        self._kept = {pk: kept for pk, kept in self._kept.items() if kept.used_at > before}

    def turn(self, timeout_s: float) -> None:
        """Take in a question, if one comes in time, begin what can be begun, and look after what
        was begun."""
        busy = self._children or self._waiting
        asked = self._desk.next(self._kept, LOOK_S if busy else timeout_s)
        if asked is not None:
            self._take(asked)
        self._look_after()
        while self._waiting and len(self._children) < AT_ONCE:
            self._begin(self._waiting.popleft())

    def close(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        while self._children:
            self._look_after()
            time.sleep(LOOK_S)
        self._desk.close()

    # --- questions ----------------------------------------------------------------------------
    def _take(self, asked: Inquiry) -> None:
        kept = self._kept.get(asked.message.cluster_id)
        if kept is None or asked.message.release != line.release():
            self.wanted.add(asked.message.cluster_id)
            _tell(asked, line.NOBODY)
            return
        kept.asked_at = kept.used_at = time.monotonic()
        if len(self._waiting) >= line.MOST_WAITING:
            _tell(asked, line.TOO_MANY)
        else:
            self._waiting.append(asked)

    def _begin(self, asked: Inquiry) -> None:
        if asked.is_gone:
            asked.close()
            return
        kept = self._kept.get(asked.message.cluster_id)
        if kept is None:
            _tell(asked, line.NOBODY)
            return
        state = kept.state
        try:
            _refresh(state, asked.message.since)
        except Error:
            _tell(asked, line.NOBODY)
            raise
        here, there = Pipe(duplex=False)
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            ends_with(parent)
            _answer(asked, state, there)
        there.close()
        until = time.monotonic() + LONGEST_S
        self._children[pid] = _Child(asked, until, state, state.changes, here)

    def _look_after(self) -> None:
        for pid, child in list(self._children.items()):
            asked = child.asked
            _take_over(child)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[pid]
                child.found.close()
                if status:  # killed, or failed
                    asked.answer(line.NOBODY)
                asked.close()
            elif asked.is_gone or time.monotonic() > child.until:
                os.kill(pid, signal.SIGKILL)

    # --- other work ---------------------------------------------------------------------------
    def beside(self, work: Callable[[], T], most_s: int) -> tuple[T, float]:
        """What this work finds, in a child, and the CPU seconds that it took, at most `most_s`;
        questions are answered meanwhile. It must not use the database. Raises OutOfTime and
        WorkFailed."""
        read, write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            ends_with(parent)
            os.close(read)
            _find(work, write, most_s)
        os.close(write)
        os.set_blocking(read, False)
        parts: list[bytes] = []
        while True:
            try:
                part = os.read(read, 1 << 20)
            except BlockingIOError:
                self.turn(LOOK_S)
                continue
            if not part:
                break
            parts.append(part)
        os.close(read)
        _, status, used = os.wait4(pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            raise OutOfTime(f"more than {most_s} s of CPU time")
        if status:
            raise WorkFailed(f"status {status}", used.ru_utime + used.ru_stime)
        return pickle.loads(b"".join(parts))


def _refresh(state: KeptState, since: float = 0.0) -> None:
    now = time.time()
    if now - state.rows.at > FRESH_S or state.rows.at < since:
        state.refresh(now)


def _tell(asked: Inquiry, said: bytes) -> None:
    asked.answer(said)
    asked.close()


def _take_over(child: _Child) -> None:
    """What a child has found out, for who asks next, unless something has changed."""
    with suppress(EOFError, OSError):  # it has ended
        if child.found.poll(0):
            base = pickle.loads(child.found.recv_bytes())
            if child.kept.changes == child.changes:
                child.kept.base = base


def _answer(asked: Inquiry, state: KeptState, found: Connection) -> None:
    """In the child, which ends with it."""
    try:
        gc.disable()
        question: Any = pickle.loads(asked.message.question)
        base = state.base
        try:
            said = line.ANSWER + pickle.dumps(question.answer(state))
        except line.Away:
            said = line.NOBODY
        if state.base is not base:  # told first: it is ended when who asked has gone
            found.send_bytes(pickle.dumps(state.base))
        asked.answer(said)
    except BaseException:
        log.exception("a question could not be answered")
        os._exit(1)
    os._exit(0)


def _find(work: Callable[[], T], write: int, most_s: int) -> None:
    """In the child, which ends with it."""
    try:
        os.nice(NICE)
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 5))
        cpu = time.process_time()
        found = work()
        with os.fdopen(write, "wb") as told:
            told.write(pickle.dumps((found, time.process_time() - cpu)))
    except BaseException:
        log.exception("work beside the answers failed")
        os._exit(1)
    os._exit(0)
