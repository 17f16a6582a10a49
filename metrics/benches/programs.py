"""The programs of a production setup: find, start, kill, freeze, end."""

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from metrics.benches.apiserver import die_with_parent

END_WITHIN_S = 10.0


class ProgramMissing(RuntimeError):
    """A required program is not installed; the text says what installs it."""


def postgres_program(name: str) -> str:
    """Return the path of `initdb` or `postgres`, of the newest version. Raises ProgramMissing."""
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    by_version = sorted(versions, key=lambda path: float(path.parts[-3]))
    found = str(by_version[-1]) if by_version else shutil.which(name)
    if found is None:
        raise ProgramMissing("PostgreSQL is not installed: apt-get install postgresql")
    return found


def make_postgres(folder: Path) -> None:
    """Create the data of an empty PostgreSQL in an empty folder, which is given to the user that
    runs it. Raises ProgramMissing, and RuntimeError if that fails."""
    initdb, account = postgres_program("initdb"), account_of_postgres()
    if account:
        shutil.chown(folder, account)
    made = subprocess.run(
        [initdb, "-D", str(folder / "data"), "-U", "kant", "--auth=trust", "-N"],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        user=account or None,
        extra_groups=[] if account else None,
    )
    if made.returncode:
        raise RuntimeError(f"initdb failed: {made.stderr.strip()}")


def postgres_command(folder: Path, port: int, *settings: str) -> list[str]:
    """Return the command that serves the data of `make_postgres` on loopback, to run as
    `account_of_postgres`; `settings`: name=value. Raises ProgramMissing."""
    server = [postgres_program("postgres"), "-D", str(folder / "data"), "-p", str(port)]
    local = ("listen_addresses=127.0.0.1", f"unix_socket_directories={folder}")
    return [*server, *(part for one in (*local, *settings) for part in ("-c", one))]


def redis_program() -> str:
    """Return the path of redis-server. Raises ProgramMissing."""
    found = shutil.which("redis-server")
    if found is None:
        raise ProgramMissing("Redis is not installed: apt-get install redis-server")
    return found


def account_of_postgres() -> str:
    """Return the user to run PostgreSQL, which refuses root; "" = the user of this process."""
    if os.getuid() != 0:
        return ""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        text = "PostgreSQL does not run as root and there is no user postgres: useradd -r postgres"
        raise ProgramMissing(text) from None


class Program:
    """A program in its own process group, so that signals reach all its processes.

    Start it from the main thread: it ends with the thread that started it, however that ends.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path,
        log: Path,
        user: str = "",
    ) -> None:
        self.name = name
        self._argv = list(argv)
        self._env = dict(env)
        self._folder = folder
        self._log = log
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 = never started."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it unless it is running. Raises OSError."""
        if self.running:
            return
        account = pwd.getpwnam(self._user) if self._user else None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                env=self._env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=account and account.pw_uid,
                group=account and account.pw_gid,
                extra_groups=[] if account else None,
                preexec_fn=die_with_parent(),
            )

    def send(self, number: int) -> None:
        """Send a signal to all its processes; do nothing if it has ended."""
        if self.running:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, as if its machine died."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it with a signal; with SIGKILL if that takes longer than END_WITHIN_S."""
        self.send(number)
        if self._process is not None:
            try:
                self._process.wait(END_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.send(signal.SIGKILL)
                self._process.wait()

    def freeze(self) -> None:
        """Stop it: it keeps its connections but no longer answers."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def said(self, lines: int = 20) -> str:
        """Return the end of its output."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
