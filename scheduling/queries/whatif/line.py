"""Questions to the process that keeps the states of clusters, and its answers.

They go over Redis, or over a socket of this machine if Kant runs without Redis. The asker is told
at once if nobody can answer or too many ask; an asker that no longer listens gets no answer. Both
ends are of the same release: messages are pickled, as in the cache.
"""

import hashlib
import os
import pickle
import socket
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from django.conf import settings
from django.core.cache import cache as shared
from django.db import connection
from redis import Redis

from scheduling import compiled
from tenants.outage import REDIS_ERRORS, Crowded
from tenants.web.listeners import nobody_listens

PATIENCE_S = 5.0  # how long an asker waits
LONGEST_S = 10.0  # that an answer may take
MOST_WAITING = 16  # questions; beyond that, askers are told that there are too many
WANTED_S = 600.0  # how long the state of a cluster is kept after somebody asked
HERE_S, STEP_S = 5, 0.5
LISTEN_S = 0.1  # how soon it is noticed that nobody listens to the asker any more

ANSWER, NOBODY, TOO_MANY = b"=", b"-", b"!"


class Away(Exception):
    """Nobody keeps the state of the cluster, or could answer: use a state built from rows."""


class Message(NamedTuple):
    """One question.

    `question`: pickled, for the same release only. `since`: what was written until then must be
    known, in seconds since the epoch.
    """

    release: str
    cluster_id: int
    question: bytes
    since: float


def ask(
    cluster_id: int, question: object, since: float = 0.0, patience_s: float | None = None
) -> Any:
    """Return the answer of the process that keeps the state of the cluster.

    The answer knows all that was written until `since`; without it, what was known a moment ago. It
    must come within `patience_s`. Raises Away; and Crowded, also if nobody listens to this thread
    any more.
    """
    message = Message(release(), cluster_id, pickle.dumps(question), since)
    try:
        said = _line().ask(cluster_id, pickle.dumps(message), patience_s or PATIENCE_S)
    except (OSError, EOFError, *REDIS_ERRORS) as error:
        _want(cluster_id)
        raise Away from error
    except Away:
        _want(cluster_id)
        raise
    if said[:1] == TOO_MANY:
        raise Crowded
    if said[:1] != ANSWER:
        _want(cluster_id)
        raise Away
    return pickle.loads(said[1:])


def is_wanted(cluster_id: int) -> bool:
    """Whether somebody lately asked about it and found nobody to answer, by the cache."""
    with suppress(*REDIS_ERRORS):
        return shared.get(_wanted(cluster_id)) is not None
    return False


def _want(cluster_id: int) -> None:
    with suppress(*REDIS_ERRORS):
        shared.set(_wanted(cluster_id), True, WANTED_S)


def _wanted(cluster_id: int) -> str:
    return f"whatif:wanted:{cluster_id}"


@cache
def release() -> str:
    """Return the release of the engine and its nouns."""
    return compiled.folder().name


# --- both ends ------------------------------------------------------------------------------------
class Inquiry(Protocol):
    """A question that waits for its answer."""

    message: Message

    def answer(self, said: bytes) -> None:
        """Answer, once; from the process that took the question, or a child of it."""

    @property
    def is_gone(self) -> bool:
        """Whether nobody listens any more."""

    def close(self) -> None:
        """Note that this process is done with the question."""


class Desk(Protocol):
    """Where questions come in."""

    def next(self, clusters: Iterable[int], timeout_s: float, /) -> Inquiry | None:
        """Return the next question; None = none came in time.

        Only questions about these clusters, if others are heard elsewhere.
        """

    def close(self) -> None: ...


class QuestionLine(Protocol):
    def ask(self, cluster_id: int, message: bytes, patience_s: float, /) -> bytes: ...


def _line() -> QuestionLine:
    return RedisLine(settings.REDIS_URL) if settings.REDIS_URL else SocketLine()


def open_desk() -> Desk:
    return RedisDesk(settings.REDIS_URL) if settings.REDIS_URL else SocketDesk()


# --- over a socket --------------------------------------------------------------------------------
def address() -> Path:
    """Return the path of the socket: one for each database, in a folder of this user alone.

    Raises OSError if somebody else made that folder.
    """
    database = str(connection.settings_dict["NAME"])
    name = hashlib.sha256(f"{settings.VAR_DIR}\0{database}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir(), f"kant-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise OSError(f"{folder} is not this user's alone: remove it")
    return folder / name


class SocketLine:
    def ask(self, _cluster_id: int, message: bytes, patience_s: float) -> bytes:
        with _connected() as line:
            line.send_bytes(message)
            until = time.monotonic() + patience_s
            while not line.poll(LISTEN_S):
                if nobody_listens() or time.monotonic() > until:
                    raise Crowded
            return line.recv_bytes()


@contextmanager
def _connected() -> Iterator[Connection]:
    raw = socket.socket(socket.AF_UNIX)
    try:
        raw.settimeout(PATIENCE_S)
        raw.connect(str(address()))
        raw.settimeout(None)
    except OSError:
        raw.close()
        raise
    with Connection(raw.detach()) as line:
        yield line


class SocketInquiry:
    def __init__(self, line: Connection, message: Message) -> None:
        self.message, self._line = message, line

    def answer(self, said: bytes) -> None:
        with suppress(OSError):  # the asker has gone
            self._line.send_bytes(said)

    @property
    def is_gone(self) -> bool:
        return self._line.poll(0)  # nothing follows the question but the end of the connection

    def close(self) -> None:
        self._line.close()


class SocketDesk:
    def __init__(self) -> None:
        self._path = address()
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._path))
        self._socket.listen(MOST_WAITING)

    def next(self, _clusters: Iterable[int], timeout_s: float) -> Inquiry | None:
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            raw, _ = self._socket.accept()
        except TimeoutError:
            return None
        line = Connection(raw.detach())
        try:
            if line.poll(STEP_S):
                return SocketInquiry(line, pickle.loads(line.recv_bytes()))
        except (OSError, EOFError):
            pass  # the asker has already gone
        line.close()
        return None

    def close(self) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)


# --- over Redis -----------------------------------------------------------------------------------
class RedisLine:
    def __init__(self, url: str) -> None:
        self._redis = _redis(url)

    def ask(self, cluster_id: int, message: bytes, patience_s: float) -> bytes:
        redis, name = self._redis, uuid.uuid4().hex
        found = redis.pipeline()
        found.exists(_desk(cluster_id))
        found.llen(_asks(cluster_id))
        here, waiting = found.execute()
        if not here:
            raise Away
        if waiting >= MOST_WAITING:
            raise Crowded
        sent = redis.pipeline()
        sent.set(_listens(name), 1, px=int(3000 * STEP_S))
        sent.rpush(_asks(cluster_id), name.encode() + message)
        sent.expire(_asks(cluster_id), int(2 * LONGEST_S))
        sent.execute()
        until = time.monotonic() + patience_s
        while time.monotonic() < until and not nobody_listens():
            if said := redis.blpop([_told(name)], timeout=STEP_S):
                return cast(bytes, said[1])
            redis.set(_listens(name), 1, px=int(3000 * STEP_S))
        redis.delete(_listens(name))
        raise Crowded


class RedisInquiry:
    def __init__(self, url: str, name: str, message: Message) -> None:
        self.message, self._url, self._name = message, url, name
        self._home, self._redis = os.getpid(), _redis(url)

    def answer(self, said: bytes) -> None:
        # A child shares no connection with its parent.
        redis = self._redis if os.getpid() == self._home else Redis.from_url(self._url, **TIMEOUTS)
        with suppress(*REDIS_ERRORS):
            told = redis.pipeline()
            told.rpush(_told(self._name), said)
            told.expire(_told(self._name), int(2 * PATIENCE_S))
            told.execute()

    @property
    def is_gone(self) -> bool:
        return not self._redis.exists(_listens(self._name))

    def close(self) -> None:
        pass


class RedisDesk:
    def __init__(self, url: str) -> None:
        self._url, self._redis = url, _redis(url)

    def next(self, clusters: Iterable[int], timeout_s: float) -> Inquiry | None:
        clusters = list(clusters)
        if not clusters:
            time.sleep(timeout_s)
            return None
        try:
            here = self._redis.pipeline()
            for cluster_id in clusters:
                here.set(_desk(cluster_id), 1, ex=HERE_S)
            here.execute()
            said = self._redis.blpop([*map(_asks, clusters)], timeout=min(timeout_s, STEP_S))
        except REDIS_ERRORS:
            time.sleep(timeout_s)  # askers meanwhile find nobody, and use the rows
            return None
        if said is None:
            return None
        text = cast(bytes, said[1])
        return RedisInquiry(self._url, text[:32].decode(), pickle.loads(text[32:]))

    def close(self) -> None:
        pass


TIMEOUTS: dict[str, Any] = settings.REDIS_TIMEOUTS


@cache
def _redis(url: str) -> Redis:
    return Redis.from_url(url, **TIMEOUTS)


def _desk(cluster_id: int) -> str:
    return f"whatif:desk:{cluster_id}"


def _asks(cluster_id: int) -> str:
    return f"whatif:asks:{cluster_id}"


def _listens(name: str) -> str:
    return f"whatif:listens:{name}"


def _told(name: str) -> str:
    return f"whatif:told:{name}"
