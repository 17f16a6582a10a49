"""A PostgreSQL server for one bench that counts its statements and its CPU."""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg

from metrics.benches.apiserver import free_ports
from metrics.benches.programs import Program, account_of_postgres, make_postgres, postgres_command

UP_WITHIN_S = 60.0
# The bench's own queries are not counted.
UNCOUNTED = "-c pg_stat_statements.track=none"
# What PostgreSQL itself runs for each row that refers to another one.
FOREIGN_KEY = "SELECT % FROM ONLY % FOR KEY SHARE OF x"


class Postgres:
    """A server with PostgreSQL's defaults. A context manager; raises ProgramMissing,
    RuntimeError."""

    def __init__(self) -> None:
        self._data = Path(tempfile.mkdtemp(prefix="kant-bench-postgres-"))

    def __enter__(self) -> Self:
        try:
            make_postgres(self._data)
            [self._port] = free_ports(1)
            counted = "shared_preload_libraries=pg_stat_statements"
            self._server = Program(
                "postgres",
                postgres_command(self._data, self._port, counted),
                env=os.environ,
                folder=self._data,
                log=self._data / "log",
                user=account_of_postgres(),
            )
            self._server.start()
            self._wait_up()
            self.rows("CREATE EXTENSION pg_stat_statements")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_server"):
            self._server.kill()
        shutil.rmtree(self._data, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        return f"postgres://kant@127.0.0.1:{self._port}/{database}"

    def rows(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Return the rows of a statement; [] if it returns none. Raises psycopg.Error."""
        with psycopg.connect(self.url(database), autocommit=True, options=UNCOUNTED) as connection:
            asked = connection.execute(query)
            return asked.fetchall() if asked.description else []

    def statements(self, database: str) -> int:
        """Return the number of statements sent to a database so far, including begins and
        commits."""
        counted = "SELECT COALESCE(SUM(calls), 0)::bigint FROM pg_stat_statements s"
        named = f"JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = '{database}'"
        return int(self.rows(f"{counted} {named} AND query NOT LIKE '{FOREIGN_KEY}'")[0][0])

    def cpu_s(self) -> float:
        """Return the CPU of the server and all its processes so far, in seconds."""
        told = map(_stat, Path("/proc").glob("[0-9]*/stat"))
        mine = [of for of in told if of and self._server.pid in (of[0], of[1])]
        # The server's own entry includes the processes that have ended.
        ticks = sum(sum(of[2:6]) if of[0] == self._server.pid else sum(of[2:4]) for of in mine)
        return ticks / os.sysconf("SC_CLK_TCK")

    def _wait_up(self) -> None:
        deadline = time.monotonic() + UP_WITHIN_S
        while True:
            try:
                self.rows("SELECT 1")
                return
            except psycopg.Error as error:
                if not self._server.running or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"PostgreSQL: {error}; it said\n{self._server.said()}"
                    ) from None
            time.sleep(0.1)


def _stat(path: Path) -> tuple[int, ...]:
    """Return (process id, its parent, its own user and system CPU, user and system CPU of its ended
    children) in ticks (proc(5)); () = it has ended."""
    try:
        pid, _, fields = path.read_text().rpartition(")")
    except OSError:
        return ()
    told = fields.split()
    return int(pid.split()[0]), int(told[1]), *map(int, told[11:15])
