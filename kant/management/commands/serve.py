"""`manage.py serve`: all of Kant in one process on loopback, with its own cluster beside it."""

import fcntl
import os
import signal
import socket
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from kant.celery import app
from kant.demo import accounts, organisation
from kant.embedded import Background, Compilation, stop_when_cluster_ends
from kant.ending import ending
from scheduling.cluster_process import ClusterProcess
from scheduling.kube.seam import KubeError
from tenants.outage import redis_trouble

HOST = "127.0.0.1"
STOP_WITHIN_S = 1  # for answers; `kant.ending` bounds the whole process


class Command(BaseCommand):
    help = "Run Kant on this machine with an embedded cluster: web, scheduler and worker."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="port of the pages and of REST")
        parser.add_argument(
            "--fleet",
            default="demo",
            help="demo, paper, large, openb:<csv> or an inventory file (YAML)",
        )

    def handle(self, *_: Any, port: int, fleet: str, **__: Any) -> None:
        if not settings.EMBEDDED:
            raise CommandError(
                "serve is the embedded mode; KANT_EMBEDDED is false. Start web, scheduler and beat "
                "as docs/operating/ shows."
            )
        if trouble := redis_trouble():
            raise CommandError(
                f"Redis does not serve ({trouble.rstrip('.')}); start it, or unset REDIS_URL and "
                "CELERY_BROKER_URL: the embedded mode does not need Redis"
            )
        writable(settings.VAR_DIR)
        with alone(settings.VAR_DIR):
            self._run(listen(port), fleet)

    def _run(self, listener: socket.socket, fleet: str) -> None:
        self.check()
        migrate()
        cluster = ClusterProcess(fleet, settings.VAR_DIR / "clusters" / folder_name(fleet))
        background = Background(app, settings.VAR_DIR)
        compilation = Compilation(self._say)
        # A termination signal unwinds like Ctrl-C, from here on and again after uvicorn, which ends
        # in an orderly way and then raises the signal once more. A shell that starts this in the
        # background makes it ignore Ctrl-C.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        ending.on(signal.SIGINT, signal.SIGTERM)
        ending.takes_along += [compilation.kill, cluster.kill]
        try:
            try:
                cluster.start()
                organisation.seed(folder_name(fleet), cluster.kubeconfig)
                background.start()
            except (RuntimeError, KubeError) as error:
                raise CommandError(str(error)) from error
            stop_when_cluster_ends(cluster)
            self._welcome(listener.getsockname()[1])
            compilation.start()
            self._serve(listener)
        except KeyboardInterrupt:
            self.stdout.write("Stopping.")
        finally:
            compilation.stop()
            background.stop()
            cluster.stop()

    def _welcome(self, port: int) -> None:
        self.stdout.write(f"\nKant is at http://{HOST}:{port}/\n\nDemo accounts:")
        for account in accounts.ACCOUNTS:
            self.stdout.write(f"  {account.username:10} {accounts.PASSWORD:12} {account.title}")
        self.stdout.write("\nCtrl-C stops Kant; the next start continues with the same data.\n")
        self.stdout.flush()

    def _say(self, text: str) -> None:
        self.stdout.write(text, ending="")
        self.stdout.flush()

    def _serve(self, listener: socket.socket) -> None:
        config = uvicorn.Config(
            "kant.asgi:application",
            lifespan="on",
            log_level="warning",
            access_log=False,
            # There is no proxy on loopback; with this on, anybody could claim any address.
            proxy_headers=False,
            # A client that does not read its answer would keep the server from ending.
            timeout_graceful_shutdown=STOP_WITHIN_S,
        )
        uvicorn.Server(config).run(sockets=[listener])


def writable(folder: Path) -> None:
    """Raise CommandError if Kant cannot keep its data there, or cannot use what is there."""
    remedy = "set KANT_VAR_DIR to a folder of your own"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(f"cannot write to {folder} ({error.strerror}); {remedy}") from error
    for path in (folder, *folder.rglob("*")):
        if not os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)):
            raise CommandError(
                f"cannot read and write {path}, which belongs to user {path.lstat().st_uid}; give "
                f"all in {folder} to yourself, or {remedy}"
            )


def migrate() -> None:
    """Migrate the database. Raises CommandError if it cannot be used."""
    try:
        call_command("migrate", verbosity=0, interactive=False)
    except DatabaseError as error:
        remedy = "check that it runs, and check DATABASE_URL"
        if connection.vendor == "sqlite":
            remedy = "restore a copy of it, or move it away to start without its data"
        name, said = connection.settings_dict["NAME"], str(error).splitlines()[0]
        raise CommandError(f"the database {name} cannot be used ({said}); {remedy}") from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the folder; raises CommandError if another process has it.

    Two processes would take the cluster from each other. The system frees the lock however a
    process ends, and no child inherits it.
    """
    with (folder / "serve.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(
                f"Kant already runs with its data in {folder}; stop it first, or set "
                "KANT_VAR_DIR to another folder"
            ) from error
        yield


def listen(port: int) -> socket.socket:
    """Return the bound socket.

    It is bound before anything starts, so that a taken port is reported at once.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise CommandError(
            f"port {port} cannot be used ({getattr(error, 'strerror', None) or error}); "
            "choose another with --port"
        ) from error
    listener.listen(2048)
    return listener


def folder_name(fleet: str) -> str:
    """Return a name for a fleet's cluster: demo, paper, openb, or that of the inventory file."""
    kind, _, _ = fleet.partition(":")
    stem = Path(kind).stem if os.sep in kind or kind.endswith((".yaml", ".yml")) else kind
    name = "".join(c if c.isalnum() else "-" for c in stem.lower()).strip("-")
    if not name:
        raise CommandError(f"--fleet {fleet!r} names no inventory")
    return name[:63]
