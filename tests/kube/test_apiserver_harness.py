"""The tests' real control plane ends when it should, and when its owner is killed."""

import os
import signal
import subprocess
import sys

import pytest

from metrics.benches import apiserver
from metrics.benches.apiserver import ServerUnavailable, programs
from tests.kube.api import eventually
from tests.kube.servers import ROOT
from tests.requirements import missing

OWNER = """
import signal, sys, time
from pathlib import Path
from metrics.benches.apiserver import ApiServer
signal.signal(signal.SIGINT, signal.default_int_handler)  # what shells start with & ignores it
with ApiServer(Path(sys.argv[1])) as server:
    print(*(each.pid for each in server._running.values()), flush=True)
    time.sleep(60)
"""


def alive(pid):
    """Whether the process runs; a zombie that its parent has not reaped does not count."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.apiserver
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_its_owner(tmp_path, end):
    try:
        programs(build=False)
    except ServerUnavailable as error:
        missing("a real kube-apiserver", str(error))
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    pids = [int(each) for each in owner.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    os.kill(owner.pid, end)
    owner.communicate(timeout=60)
    eventually(lambda: not any(map(alive, pids)))


def test_missing_programs_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="cannot be run"):
        programs()
    monkeypatch.delenv("KUBEBUILDER_ASSETS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match=r"install Go 1\.26"):
        programs()


def test_a_failed_build_shows_the_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(ServerUnavailable, match="no space left"):
        programs()
    assert not list((tmp_path / "cache").rglob("etcd"))


def test_the_module_names_its_versions():
    for module in ("k8s.io/kubernetes", "go.etcd.io/etcd/server/v3"):
        assert apiserver._version(module).startswith("v")
