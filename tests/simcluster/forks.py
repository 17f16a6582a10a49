"""Embedded clusters, forked from one process that has imported what they run.

An interpreter of its own and its imports are 0.7 s of the CPU of each, which hundreds of tests
start. All else is as `python -m scheduling.simcluster` has it: a process, a session, HTTP.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from scheduling.cluster_process import ClusterProcess

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 65536  # bytes of a request: the arguments of one cluster


class Template:
    """The process that is forked; it ends with this one, and its clusters with it."""

    def __init__(self):
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.simcluster.forks"], stdin=theirs, cwd=ROOT
            )

    def fork(self, arguments):
        """A cluster started with these arguments, in this folder."""
        read, write = os.pipe()
        try:
            request = json.dumps([os.getcwd(), arguments]).encode()
            socket.send_fds(self._ours, [request], [write])
        finally:
            os.close(write)
        return Forked(int(self._ours.recv(LONGEST)), os.fdopen(read))

    def stop(self):
        self._ours.close()
        self._process.wait(60)


class Forked:
    """As much of a Popen as a ClusterProcess asks for, of a process that is no child of ours."""

    def __init__(self, pid, stdout):
        self.pid, self.stdout = pid, stdout
        self._ends = os.pidfd_open(pid)

    def __del__(self):
        os.close(self._ends)

    def poll(self):
        """None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)

    def wait(self, timeout=None):
        """How it ended is known to the template alone."""
        ended, _, _ = select.select([self._ends], [], [], timeout)
        if not ended:
            raise subprocess.TimeoutExpired(f"embedded cluster {self.pid}", timeout)
        return "ended"

    def send_signal(self, number):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ends, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class ForkedCluster(ClusterProcess):
    """The embedded cluster as tests start it whose subject its start is not."""

    def __init__(self, template, fleet, folder):
        super().__init__(fleet, folder)
        self._template = template

    def _launch(self, arguments):
        return self._template.fork(arguments)


def main():
    """Fork whenever it is asked for; a process that has ended is kept until the next is."""
    from scheduling.simcluster import __main__ as program

    asked = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while True:
        request, outs, _, _ = socket.recv_fds(asked, LONGEST, 1)
        if not request:
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if pid := os.fork():
            os.close(outs[0])
            asked.send(str(pid).encode())
            continue
        folder, arguments = json.loads(request)
        asked.close()
        os.setsid()
        os.dup2(outs[0], 1)
        os.close(outs[0])
        os.chdir(folder)
        sys.argv = ["scheduling.simcluster", *arguments]
        sys.exit(program.main())


if __name__ == "__main__":
    main()
