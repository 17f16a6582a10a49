"""Kant as in production, on this machine only: each part is a process with its own ports."""

import json
import os
import secrets
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import psycopg
import redis
from django.conf import settings

from metrics.benches import stage
from metrics.benches.apiserver import free_ports
from metrics.benches.programs import (
    Program,
    account_of_postgres,
    make_postgres,
    postgres_command,
    postgres_program,
    redis_program,
)

NODES = 8
MOST_SHARDS = NODES // 2
LEASE_S = 5.0
CALL_WITHIN_S = 10.0
CONNECT_S = 30  # to the database, which may start up slowly on a busy machine
UP_WITHIN_S = 180.0  # everything that was started; minutes on a busy machine
SCHEDULERS = ("scheduler-a", "scheduler-b")
LEADER = "SELECT holder FROM scheduling_schedulerlease WHERE expires_at IS NOT NULL"
LED = "SELECT count(*) FROM scheduling_schedulerlease WHERE expires_at > now()"
LEAF_LABELS = [f"network.topology.nvidia.com/{level}" for level in ("core", "spine", "leaf")]


class ChaosError(RuntimeError):
    """The run cannot continue; the text says which part failed, and what it wrote last."""


class ProductionShape:
    """PostgreSQL, Redis, the embedded cluster, two schedulers, web, worker and beat. With two or
    more `shards`, the cluster is divided into that many, each a leaf.

    A context manager: on exit all processes have ended and their folders are deleted, except after
    an error or if `keep` was called. `programs`: by name. `token`: an operator's.
    """

    def __init__(self, tell: Callable[[str], None], shards: int = 1) -> None:
        self._tell = tell
        self._shards = shards
        self._keeps = False
        self._stack = ExitStack()
        self.programs: dict[str, Program] = {}
        self.token = ""
        # Before anything is started, so that missing programs are reported at once.
        self._redis, self._account = redis_program(), account_of_postgres()
        postgres_program("initdb")

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="kant-chaos-"))
        # A separate folder: it belongs to the user that runs PostgreSQL.
        self._data = Path(tempfile.mkdtemp(prefix="kant-chaos-postgres-"))
        with ExitStack() as stack:
            stack.push(self._leave)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *why: Any) -> None:
        self._stack.__exit__(*why)

    def _leave(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end()
        if self._keeps or (kind is not None and issubclass(kind, Exception)):
            text = f"the logs are kept in {self.folder}, the data of PostgreSQL in {self._data}"
            self.tell(f"{text}: remove them when they are read")
            return
        for folder in (self.folder, self._data):
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self) -> str:
        """Keep the folders at the end; return where the logs are."""
        self._keeps = True
        return str(self.folder)

    def tell(self, line: str) -> None:
        """Report an event, and write it to a file with the logs."""
        at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        with (self.folder / "rounds.log").open("a") as file:
            file.write(f"{at} {line}\n")
        self._tell(line)

    # --- its parts --------------------------------------------------------------------------------
    def _start(self) -> None:
        database, broker, web, api = free_ports(4)
        self.database = f"postgres://kant@127.0.0.1:{database}/postgres"
        self.broker = f"redis://127.0.0.1:{broker}/0"
        self.web = f"http://127.0.0.1:{web}"
        self.api = f"http://127.0.0.1:{api}"
        cluster = self.folder / "cluster"
        cluster.mkdir()
        self.kubeconfig = cluster / "kubeconfig"
        self._kant_env = {
            **os.environ,
            "KANT_EMBEDDED": "false",
            "KANT_SECRET_KEY": secrets.token_hex(32),
            "KANT_VAR_DIR": str(self.folder),
            "KANT_ACCESS_DIRS": str(cluster),
            "KANT_LEASE_SECONDS": str(LEASE_S),
            "DATABASE_URL": self.database,
            "REDIS_URL": self.broker,
            "DJANGO_SETTINGS_MODULE": "kant.settings",
            "PYTHONUNBUFFERED": "1",
        }
        self.tell("starting PostgreSQL, Redis and the cluster")
        self._add_servers(database, broker, api, cluster)
        self.wait_up()
        self.tell("starting Kant: two schedulers, web, worker, beat")
        stage.run_python("manage.py", "migrate", "-v0", env=self._kant_env)
        arguments = str(self.kubeconfig), json.dumps(self._declared_shards())
        token = stage.run_python("-m", "metrics.chaos.organisation", *arguments, env=self._kant_env)
        self.token = token.strip()
        self._add_kant(web)
        self.wait_up()

    def _add_servers(self, database: int, broker: int, api: int, cluster: Path) -> None:
        make_postgres(self._data)
        server = postgres_command(self._data, database)
        self._add("postgres", server, env=os.environ, folder=self._data, user=self._account)
        keep = ["--save", "", "--dir", str(self.folder)]
        server = [self._redis, "--port", str(broker), "--bind", "127.0.0.1", *keep]
        self._add("redis", server, env=os.environ)
        fleet = stage.inventory(
            self.folder / "fleet.yaml", NODES, per_leaf=NODES // max(2, self._shards)
        )
        server = [sys.executable, "-m", "scheduling.simcluster", "--fleet", str(fleet)]
        server += ["--port", str(api), "--state-dir", str(cluster)]
        self._add("apiserver", [*server, "--kubeconfig", str(self.kubeconfig)])

    def _add_kant(self, web: int) -> None:
        for name in SCHEDULERS:
            self.set_clock(name, 0)
            clocked = [sys.executable, "-m", "metrics.chaos.clocked", str(self._clock_file(name))]
            worker = [*clocked, "-A", "kant", "worker", "--pool", "solo", "--queues", "sched"]
            self._add(name, [*worker, "--hostname", f"{name}@chaos"])
        celery = [sys.executable, "-m", "celery", "-A", "kant"]
        uvicorn = [sys.executable, "-m", "uvicorn", "kant.asgi:application", "--port", str(web)]
        self._add("web", [*uvicorn, "--lifespan", "off", "--no-access-log"])
        worker = [*celery, "worker", "--queues", "work", "--concurrency", "1"]
        self._add("worker", [*worker, "--hostname", "work@chaos"])
        self._add("beat", [*celery, "beat", "--schedule", str(self.folder / "beat")])

    def _declared_shards(self) -> list[dict[str, Any]]:
        """Return the shards as a policy declares them; the last one takes all that is in no
        other."""
        if self._shards < 2:
            return []
        _, found = self.kubernetes("GET", "/api/v1/nodes")
        labels = [node["metadata"]["labels"] for node in found["items"]]
        leaves = sorted({"/".join(each[name] for name in LEAF_LABELS) for each in labels})
        named = [{"name": f"shard-{i}", "groups": [leaf]} for i, leaf in enumerate(leaves[:-1])]
        return [*named, {"name": f"shard-{len(named)}"}]

    def _add(self, name: str, argv: list[str], **options: Any) -> None:
        options = {"env": self._kant_env, "folder": settings.BASE_DIR, **options}
        program = Program(name, argv, log=self.folder / f"{name}.log", **options)
        self.programs[name] = program
        program.start()

    def _end(self) -> None:
        for program in reversed(self.programs.values()):
            program.thaw()  # a frozen process does not react to SIGTERM
            program.kill()

    # --- clocks -----------------------------------------------------------------------------------
    def set_clock(self, name: str, seconds: int) -> None:
        """Set the offset of a scheduler's clock from the true time, in seconds."""
        draft = self.folder / f"{name}.draft"
        draft.write_text(f"{seconds:+d}\n")
        draft.replace(self._clock_file(name))

    def _clock_file(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

    # --- talking to it ----------------------------------------------------------------------------
    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Query the database directly, without Kant's code. Raises psycopg.Error."""
        with psycopg.connect(self.database, connect_timeout=CONNECT_S) as connection:
            return connection.execute(query, values or None).fetchall()

    def rest(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and document of an answer from Kant. Raises OSError."""
        headers |= {"Authorization": f"Bearer {self.token}"}
        return _call(method, f"{self.web}/api/v1{path}", body, headers)

    def kubernetes(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and document of an answer from the cluster. Raises OSError."""
        return _call(method, f"{self.api}{path}", body, {})

    def leader(self) -> str:
        """Return a scheduler that leads; the first one if no running one does."""
        pids = {int(holder.split(":")[1]) for (holder,) in self.rows(LEADER)}
        return next((name for name in SCHEDULERS if self.programs[name].pid in pids), SCHEDULERS[0])

    # --- is it up ---------------------------------------------------------------------------------
    def down(self) -> str:
        """Return which part does not serve, and why; "" = all serve."""
        for name, program in self.programs.items():
            if not program.running:
                return f"{name} has ended"
            look = {
                "postgres": lambda: self.rows("SELECT 1"),
                "redis": self._ping,
                "apiserver": lambda: self._serves(f"{self.api}/readyz"),
                "web": lambda: self._serves(f"{self.web}/readyz"),
            }.get(name)
            try:
                if look is not None:
                    look()
            except (OSError, psycopg.Error, redis.RedisError) as error:
                return f"{name} does not answer: {error}"
        return ""

    def led(self) -> bool:
        """Return whether every lease has a holder now."""
        scopes = 1 if self._shards < 2 else self._shards + 1  # plus the one for jobs across shards
        return bool(self.rows(LED)[0][0] == scopes)

    def wait_up(self) -> None:
        """Wait until all parts serve; raise ChaosError if one does not come up."""
        deadline = time.monotonic() + UP_WITHIN_S
        while why := self.down():
            if time.monotonic() > deadline:
                program = self.programs[why.partition(" ")[0]]
                raise ChaosError(f"{why} for {UP_WITHIN_S:.0f} s; it wrote:\n{program.said()}")
            time.sleep(0.2)

    def _ping(self) -> None:
        with redis.Redis.from_url(self.broker, socket_timeout=3) as client:
            client.ping()

    def _serves(self, url: str) -> None:
        status, _ = _call("GET", url, None, {})
        if status != 200:
            raise OSError(f"{url} answers {status}")


def _call(method: str, url: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **headers},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=CALL_WITHIN_S) as reply:
            status, text = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read()
    except OSError:
        raise
    except Exception as error:  # a reply that was cut off: http.client raises errors of its own
        raise OSError(f"{method} {url}: {type(error).__name__}: {error}") from error
    try:
        return status, json.loads(text or b"null")
    except ValueError:
        return status, text.decode(errors="replace")
