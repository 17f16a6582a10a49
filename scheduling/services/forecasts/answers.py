"""Answer what-if questions from states that are kept current, each in its own process.

A child of this process has the state of that instant and may change it: memory is shared until it
is written to, so a copy costs milliseconds whatever the size of the cluster. The child is killed
when nobody listens any more, or when it takes too long.
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

FRESH_S = 1.0  # no answer comes from an older state
LATELY_S = 60.0  # after this, a state is refreshed only when somebody asks
AT_ONCE = 2  # children that answer
LONGEST_S = line.LONGEST_S  # that one child may take
LOOK_S = 0.02  # how soon the end of a child is noticed


@dataclass(slots=True)
class _KeptState:
    """A state, and when it was last used and asked about, by the monotonic clock."""

    state: KeptState
    used_at: float
    asked_at: float


class _Child(NamedTuple):
    """A process that answers one question.

    `kept`: its state, as of the change counter `changes`. `found`: the pipe through which it
    reports how that state continues, if it had to work that out.
    """

    asked: Inquiry
    until: float
    kept: KeptState
    changes: int
    found: Connection


class OutOfTime(Exception):
    """Work took more CPU time than it may."""


class WorkFailed(Exception):
    """The process of some work failed; it has logged why, if it could.

    `cpu_s`: the CPU time it took until then.
    """

    def __init__(self, why: str, cpu_s: float) -> None:
        super().__init__(why)
        self.cpu_s = cpu_s


class Answers:
    """Keeps states and answers questions; one per process. Only `keep` touches the database."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._kept: dict[int, _KeptState] = {}
        self._waiting: deque[Inquiry] = deque()
        self._children: dict[int, _Child] = {}
        self.wanted: set[int] = set()  # clusters that somebody asked about and that are not kept

    def asked_lately(self) -> list[int]:
        """Return the clusters that somebody asked about within LATELY_S."""
        before = time.monotonic() - LATELY_S
        return [pk for pk, kept in self._kept.items() if kept.asked_at > before]

    @property
    def clusters(self) -> list[int]:
        return list(self._kept)

    def keep(self, cluster: Cluster) -> KeptState | None:
        """Return the current state of a cluster; None = it is divided, so its shards decide."""
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
            gc.freeze()  # otherwise a child's collector would write to, and so copy, all of it
        else:
            kept.used_at = time.monotonic()
            _refresh(kept.state)
        return kept.state

    def drop_unwanted(self) -> None:
        """Forget states that nobody has used for long."""
        before = time.monotonic() - line.WANTED_S
        self._kept = {pk: kept for pk, kept in self._kept.items() if kept.used_at > before}

    def turn(self, timeout_s: float) -> None:
        """Take in a question, if one comes in time; start waiting ones, and look after children."""
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
        """Run the work in a child; return its result and the CPU seconds it took, at most `most_s`.

        Questions are answered meanwhile. The work must not use the database. Raises OutOfTime and
        WorkFailed.
        """
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
    """Keep what a child found out for the next question, unless something has changed."""
    with suppress(EOFError, OSError):  # the child has ended
        if child.found.poll(0):
            base = pickle.loads(child.found.recv_bytes())
            if child.kept.changes == child.changes:
                child.kept.base = base


def _answer(asked: Inquiry, state: KeptState, found: Connection) -> None:
    """Answer in the child, which ends with it."""
    try:
        gc.disable()
        question: Any = pickle.loads(asked.message.question)
        base = state.base
        try:
            said = line.ANSWER + pickle.dumps(question.answer(state))
        except line.Away:
            said = line.NOBODY
        if state.base is not base:  # sent first: the child is killed once its asker is gone
            found.send_bytes(pickle.dumps(state.base))
        asked.answer(said)
    except BaseException:
        log.exception("a question could not be answered")
        os._exit(1)
    os._exit(0)


def _find(work: Callable[[], T], write: int, most_s: int) -> None:
    """Do the work in the child, which ends with it."""
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
