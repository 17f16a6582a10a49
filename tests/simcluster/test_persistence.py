"""What survives SIGTERM and kill -9; the start contract."""

import subprocess
import sys

import pytest
import yaml

from scheduling.simcluster.objects import journal as journal_module
from scheduling.simcluster.objects.journal import Journal

from .harness import NODES, PODS, ROOT, Sim, pod


@pytest.fixture
def own(tmp_path):
    sim = Sim(tmp_path)
    yield sim
    if sim.process.poll() is None:
        sim.stop()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_second_start_continues(own, end):
    own.post(PODS, pod("waiting"))
    own.run_pod("running", "gpu-0000", "[1]", limits={"nvidia.com/gpu": 1})
    own.wait_phase("running", "Running")
    own.run_pod("ending", "gpu-0000", "[2]", limits={"nvidia.com/gpu": 1}, run=2)
    own.post("/sim/faults", {"fault": "node-down", "node": "gpu-0001"})
    own.post(PODS, pod("gone"))
    own.call("DELETE", f"{PODS}/gone")
    own.wait("ending", lambda p: p["status"]["phase"] != "Pending")
    before = own.get(f"{PODS}/running"), own.get(f"{PODS}/waiting")
    version = int(own.get(PODS)["metadata"]["resourceVersion"])
    getattr(own, end)()
    own.start()
    listed = own.get(PODS)
    assert [p["metadata"]["name"] for p in listed["items"]] == ["ending", "running", "waiting"]
    assert (own.get(f"{PODS}/running"), own.get(f"{PODS}/waiting")) == before
    assert int(listed["metadata"]["resourceVersion"]) >= version
    with own.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
        own.post(PODS, pod("later"))
        event = stream.next()
    assert int(event["object"]["metadata"]["resourceVersion"]) > version
    assert len(own.get(NODES)["items"]) == 5
    assert [f["fault"] for f in own.get("/sim/faults")["faults"]] == ["node-down"]
    own.run_pod("second", "gpu-0000", "[1]", limits={"nvidia.com/gpu": 1})
    assert own.wait_phase("second", "Failed")["status"]["reason"] == "UnexpectedAdmissionError"
    own.wait_phase("ending", "Succeeded")
    audit = own.get("/sim/audit?pod=default/ending")
    (held,) = audit["holdings"]
    assert (held["devices"], held["until"] > held["since"]) == ([2], True)
    assert len(audit["double_holdings"]) == 1


def test_a_watch_from_before_the_restart_is_too_old(own):
    version = own.get(PODS)["metadata"]["resourceVersion"]
    own.post(PODS, pod("a"))
    own.kill()
    own.start()
    with own.watch(f"{PODS}?watch=1&resourceVersion={version}") as stream:
        assert stream.next()["object"]["code"] == 410


def run(*arguments):
    command = [sys.executable, "-m", "scheduling.simcluster", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_state_directory_belongs_to_its_fleet(own):
    own.stop()
    ended = run("--fleet", "demo", "--state-dir", str(own.state))
    assert ended.returncode == 1
    assert ended.stdout.startswith("FAILED ")
    assert "holds the fleet" in ended.stdout
    assert ended.stdout.count("\n") == 1


@pytest.mark.parametrize("name", ["audit", "snapshot", "journal", "faults.json"])
def test_a_file_that_is_not_whole_is_one_line(own, name):
    own.post("/sim/faults", {"fault": "node-down", "node": "gpu-0001"})
    own.stop()
    assert (own.state / name).exists()
    (own.state / name).write_text("{gar\n")
    ended = run("--fleet", str(own.directory / "fleet.yaml"), "--state-dir", str(own.state))
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.startswith(f"FAILED the state directory {own.state} cannot be read (")
    assert "move it away" in ended.stdout
    assert ended.stdout.count("\n") == 1


def test_a_taken_port_and_a_bad_fleet_are_one_line_each(own, tmp_path):
    state = str(tmp_path / "other")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [\n  x\n}")  # its error takes several lines
    for arguments in (
        ("--fleet", str(tmp_path / "fleet.yaml"), "--port", str(own.port)),
        ("--fleet", str(tmp_path / "none.yaml")),
        ("--fleet", f"openb:{tmp_path / 'fleet.yaml'}"),
        ("--fleet", str(broken)),
    ):
        ended = run(*arguments, "--state-dir", state)
        assert (ended.returncode, ended.stderr) == (1, "")
        assert ended.stdout.startswith("FAILED ")
        assert ended.stdout.count("\n") == 1


def test_kubeconfig_and_token(tmp_path):
    token, config = tmp_path / "token", tmp_path / "kubeconfig"
    token.write_text("secret-token\n")
    sim = Sim(tmp_path, "--token-file", str(token), "--kubeconfig", str(config))
    document = yaml.safe_load(config.read_text())
    assert document["clusters"][0]["cluster"]["server"] == sim.url
    assert document["users"][0]["user"] == {"token": "secret-token"}
    assert config.stat().st_mode & 0o77 == 0
    code, status = sim.call("GET", NODES)
    assert (code, status["reason"]) == (401, "Unauthorized")
    assert sim.raw("GET", "/sim/audit")[0] == 401
    assert sim.raw("GET", NODES, Authorization="Bearer secret-token")[0] == 200
    assert sim.raw("GET", "/readyz")[0] == 200
    sim.stop()


def test_it_ends_with_its_parent(tmp_path):
    """A shell starts it in the background and exits."""
    (tmp_path / "fleet.yaml").write_text(
        "name: x\npools: [{name: a, count: 1, cpu_milli: 1, memory_mib: 1}]\n"
    )
    script = (
        f"{sys.executable} -m scheduling.simcluster --fleet {tmp_path}/fleet.yaml "
        f"--state-dir {tmp_path}/s > {tmp_path}/out 2>&1 & echo $!; "
        f"until grep -q READY {tmp_path}/out; do sleep 0.05; done"
    )
    shell = subprocess.run(
        ["sh", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    pid = int(shell.stdout)
    # `kill -0` succeeds while the process lives; a zombie is reaped by init.
    wait = f"for i in $(seq 600); do kill -0 {pid} 2>/dev/null || exit 0; sleep 0.1; done; exit 1"
    assert subprocess.run(["sh", "-c", wait], timeout=120).returncode == 0


# --- the journal ------------------------------------------------------------------------------
def test_a_record_cut_off_by_a_kill_is_dropped(tmp_path):
    journal = Journal(tmp_path)
    assert list(journal.recover()) == []
    journal.put("pods", "default/a", 1, b'{"n":1}')
    journal.put("pods", "default/b", 2, b'{"n":2}')
    journal.delete("pods", "default/a", 3)
    journal.close()
    path = tmp_path / "journal"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        again = Journal(tmp_path)
        records = list(again.recover())
        assert [r.rv for r in records] == [1, 2, 3][: len(records)]
        again.put("pods", "default/c", 9, b"{}")
        again.close()
        last = Journal(tmp_path)
        assert [r.key for r in last.recover()][-1] == "default/c"
        last.close()


def test_compaction_keeps_the_present_and_the_version(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "MIN_COMPACTION_BYTES", 100)
    journal = Journal(tmp_path)
    list(journal.recover())
    for rv in range(1, 20):
        journal.put("pods", "default/a", rv, b'{"n":1}')
    assert journal.wants_compaction()
    present = [journal_module.Record("pods", "default/a", 19, b'{"n":1}')]
    journal.compact(20, present)
    assert not journal.wants_compaction()
    journal.close()
    again = Journal(tmp_path)
    assert list(again.recover()) == present
    assert again.last_rv == 20
    again.close()
