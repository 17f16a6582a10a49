"""Ctrl-C and SIGTERM: child processes end, and partial results are printed and marked partial."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metrics.simulate.interrupts import asked_to_stop, terminated_as_interrupted
from tests.kube.api import eventually

ROOT = Path(__file__).resolve().parents[2]
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")


def started(folder, *command):
    env = {**os.environ, "KANT_VAR_DIR": str(folder), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "manage.py", *command],
        cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def children(pid):
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def working_children(process):
    """Wait until its worker processes are at work; return their ids."""
    deadline = time.monotonic() + 150
    while True:
        assert process.poll() is None, process.stderr.read()
        busy = [c for c in children(process.pid) if b"spawn_main" in cmdline(c) and cpu(c) > 1.5]
        if busy:
            return children(process.pid)
        assert time.monotonic() < deadline, "no worker came to work"
        time.sleep(0.05)


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def cpu(pid):
    """Return CPU seconds used; at 1.5 the imports are well past."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def asks_before_it_ends(pid):
    """Whether the process has come far enough to handle SIGTERM."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(caught, 16) & 1 << signal.SIGTERM - 1)


def all_gone(pids, within=60):
    deadline = time.monotonic() + within
    while any(cmdline(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@NEEDS_PROC
def test_a_study_ends_its_processes_and_prints_what_it_has(tmp_path):
    process = started(tmp_path, "experiment", "paper-binpack", "--seeds", "1-2", "--json")
    below = working_children(process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["partial"]
    assert document["summary"] == {}
    assert "partial" in err
    assert all_gone(below)


@NEEDS_PROC
def test_the_processes_of_a_study_that_was_killed_end_by_themselves(tmp_path):
    process = started(tmp_path, "experiment", "paper-binpack", "--seeds", "1-2", "--json")
    below = working_children(process)
    process.kill()
    process.communicate()
    assert all_gone(below)


@NEEDS_PROC
def test_a_simulation_prints_what_it_has(tmp_path):
    process = started(
        tmp_path, "simulate", "--fleet", "500x8", "--json", "--out", str(tmp_path / "out")
    )
    eventually(lambda: asks_before_it_ends(process.pid), 120)
    begun = cpu(process.pid)
    eventually(lambda: cpu(process.pid) > begun + 0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["partial"]
    assert 0 < document["simulated_s"] < 720 * 3600
    assert "Interrupted: these are partial results." in err
    assert "PARTIAL" in (tmp_path / "out" / "report.html").read_text()


def test_sigterm_is_ctrl_c_and_only_inside():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_second_signal_does_not_wait():
    with asked_to_stop() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
