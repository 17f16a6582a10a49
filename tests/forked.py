"""Start Kant's processes for tests by forking a process that has already imported their packages.

Starting an interpreter and importing these packages takes more than half of the CPU of a start.
Before the fork, no module of Kant is imported unless the caller names it, and no settings are read:
the process gets its own arguments, environment and files, and runs its own code from the first line
on, as it does for users.
"""

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 131072  # maximum size of a request: arguments and environment of a process
INHERITED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # where ignored
PACKAGES = (
    *("aiohttp", "celery.apps.beat", "celery.apps.worker", "celery.bin.celery"),
    *("celery.concurrency.prefork", "celery.concurrency.solo", "celery.fixups.django"),
    *("celery.worker.components", "django.contrib.admin.options", "django.core.handlers.asgi"),
    *("django.core.management.commands.migrate", "django.db.backends.postgresql.base"),
    *("django.db.backends.sqlite3.base", "django.test.client", "django.views.generic"),
    *("django_filters", "numpy.random", "prometheus_client.exposition"),
    *("django_htmx.middleware", "kombu.transport.memory", "kombu.transport.redis", "msgspec"),
    *("prompt_toolkit", "psycopg_pool", "requests", "uvicorn.lifespan.on", "uvloop"),
    *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto"),
    *("whitenoise.middleware", "yaml"),
)


class Template:
    """The process to fork from, with these modules imported. It ends with this process; its
    children keep running, like any others."""

    def __init__(self, modules):
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        env = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
        command = [sys.executable, "-m", "tests.forked", *modules]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs, cwd=ROOT, env=env)

    def fork(self, request, files):
        """Start a process and return its process id. `files` are its standard input, output and
        error, and last the file that receives its exit status."""
        with self._turn:
            socket.send_fds(self._ours, [json.dumps(request).encode()], files)
            return int(self._ours.recv(LONGEST))

    def stop(self):
        self._ours.close()
        self._process.wait(60)


@cache
def template(modules):
    template = Template(modules)
    atexit.register(template.stop)
    return template


class Forked(subprocess.Popen):
    """A `python …` process of this interpreter. It is a child of the template, not of this process;
    otherwise it behaves like any Popen. `modules`: what the template has imported."""

    def __init__(self, args, *, modules=PACKAGES, **options):
        self._modules = modules
        super().__init__(args, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        assert args[0] == sys.executable
        request = {
            "argv": args[1:],
            "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "session": others[14],
            "ignored": [n for n in INHERITED if signal.getsignal(n) == signal.SIG_IGN],
        }
        [reads, wrote, has_read, writes, erred, errs] = others[3:9]
        self._ends, told = os.pipe()
        given = (
            ours if theirs == -1 else theirs for ours, theirs in enumerate((reads, writes, errs))
        )
        try:
            self.pid = template(self._modules).fork(request, [*given, told])
            self._child_created = True
        finally:
            os.close(told)
            self._close_pipe_fds(reads, wrote, has_read, writes, erred, errs)

    def _try_wait(self, wait_flags):
        within = 0 if wait_flags & os.WNOHANG else None
        if not select.select([self._ends], [], [], within)[0]:
            return 0, 0
        status = int(os.read(self._ends, 16))
        os.close(self._ends)
        return self.pid, status

    def _internal_poll(self, *_, **__):
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = (0, 0) if self.returncode is not None else self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def popen(args, **options):
    """Return a Popen, forked if the command runs this interpreter."""
    kind = Forked if args[0] == sys.executable else subprocess.Popen
    return kind(args, **options)


def run(args, *, capture_output=False, check=False, timeout=None, **options):
    """Like subprocess.run, for a command that runs this interpreter."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked(args, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


# --- the template ---------------------------------------------------------------------------------
def main():
    """Fork on every request."""
    asked = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # keeps a child's garbage collection from copying shared pages
    with selectors.DefaultSelector() as selector:
        selector.register(asked, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is asked:
                    request, files, _, _ = socket.recv_fds(asked, LONGEST, 4)
                    if not request:
                        return
                    pid = os.fork()
                    if pid:
                        asked.send(str(pid).encode())
                        for file in files[:3]:
                            os.close(file)
                        ends = os.pidfd_open(pid)
                        selector.register(ends, selectors.EVENT_READ, (pid, files[3]))
                        continue
                    others = [k.data[1] for k in selector.get_map().values() if k.data]
                    others += [k.fd for k in selector.get_map().values() if k.data]
                    selector.close()
                    asked.close()
                    for file in (*others, files[3]):
                        os.close(file)
                    leave(end_of(json.loads(request), files[:3]))
                pid, tell = key.data
                selector.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                with suppress(BrokenPipeError):  # nobody waits for the status any more
                    os.write(tell, str(status).encode())
                os.close(tell)


def become(request, files):
    """Run the requested program with these files as its standard ones."""
    if request["session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number in INHERITED:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else usual)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _written(1, unbuffered)
    sys.stderr = _written(2, unbuffered, errors="backslashreplace", line_buffering=True)
    first, *rest = request["argv"]
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    elif first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        path = Path(first).resolve()
        sys.argv, sys.path[0] = [first, *rest], str(path.parent)
        runpy.run_path(str(path), run_name="__main__")


def end_of(request, files):
    """Run the program to its end and return the status with which an interpreter would exit."""
    try:
        become(request, files)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def leave(status):
    """Exit as an interpreter does, but without tearing down modules: that would copy all of the
    template's memory and take as much CPU as starting a cluster."""
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with suppress(ValueError, BrokenPipeError):  # the file is closed, or nobody reads it
            file.flush()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _written(number, unbuffered, **options):
    file = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(file, encoding="utf-8", write_through=unbuffered, **options)


if __name__ == "__main__":
    main()
