"""A worker's children end with it, whatever ended it."""

import os
import signal
import subprocess
import sys
import time

import pytest

# A worker that starts a child, prints its process id and waits.
FORKS = """
import os, time
from scheduling.services.common.child import ends_with
parent = os.getpid()
pid = os.fork()
if not pid:
    ends_with(parent)
    while True: pass
print(pid, flush=True)
time.sleep(600)
"""
STARTS = """
import os, subprocess, sys, time
work = "import sys; from scheduling.services.common.child import watch; watch(int(sys.argv[1]))"
busy = work + chr(10) + "while True: pass"
child = subprocess.Popen([sys.executable, "-c", busy, str(os.getpid())], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("worker", [FORKS, STARTS], ids=["forked", "started"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_that_is_at_work_ends_with_its_worker(worker, how):
    process = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    try:
        assert lives(child)
        process.send_signal(how)
        process.wait(30)
        until = time.monotonic() + 60
        while lives(child) and time.monotonic() < until:
            time.sleep(0.05)
        assert not lives(child)
    finally:
        process.stdout.close()
        process.kill()
        if lives(child):
            os.kill(child, signal.SIGKILL)


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
