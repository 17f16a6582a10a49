"""`kant logs` against a Kant server that streams, and an embedded cluster whose pods print."""

import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace

import pytest

from kant.client import logs
from scheduling.kube.door.logs import LogReader
from scheduling.models import Job, Placement
from scheduling.queries import pod_logs
from tests.kant.conftest import Shell
from tests.kube.api import eventually
from tests.printing import Printing, open_logs, served
from tests.simcluster.harness import Sim


@pytest.fixture(scope="module")
def sim(tmp_path_factory):
    sim = Sim(tmp_path_factory.mktemp("sim"))
    yield sim
    sim.stop()


@pytest.fixture
def world(org, sim):
    with served() as at:
        yield Printing(org, sim, at)


@pytest.fixture
def kant(world, monkeypatch, capsys, tmp_path):
    return Shell(world.org, world.url, monkeypatch, capsys, tmp_path).sign_in("eve")


@pytest.fixture
def in_pauses(monkeypatch):
    """Run these acts in the pauses between looks at a log, one in each pause."""
    steps = []

    def pause(_):
        if steps:
            steps.pop(0)()
        else:
            time.sleep(0.05)

    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=pause))
    return steps


def ended(world, job, *args, **fields):
    placed = world.start(job, *args, run=0.05, **fields)
    done = ("Succeeded", "Failed")
    eventually(lambda: world.sim.get(world.path(placed.pod_name))["status"]["phase"] in done)


def test_a_log_is_printed_whole_or_in_part(kant, world):
    job = world.submit()
    ended(world, job)
    code, out, told = kant("logs", "one")
    assert (code, told, out.splitlines()[1:]) == (0, "", ["no GPUs", "ended with exit code 0"])
    assert kant("logs", "one", "--tail", "1", "--since", "10m")[1] == "ended with exit code 0\n"
    assert kant("logs", "one", "--tail", "1", "--timestamps")[1].split(" ")[0].endswith("Z")


def test_what_is_wrong_is_told_with_its_exit_code(kant, world):
    job = world.submit()
    assert kant("logs", "one")[0] == 1
    code, _, told = kant("logs", "one", "--pod", "7")
    assert (code, "Must be from 0 to 0" in told) == (2, True)
    code, _, told = kant("logs", "one", "--pod-set", "none", "--all")
    assert (code, "no pod set 'none'" in told) == (2, True)
    ended(world, job)
    code, _, told = kant("logs", "one", "--previous")
    assert (code, "there is no previous log" in told) == (1, True)
    code, _, told = kant("logs", "one", "--container", "side")
    assert (code, "has no container “side”; it has main" in told) == (2, True)


def test_all_pods_are_printed_with_their_names(kant, world):
    job = world.submit(replicas=3)
    ended(world, job, 0)
    ended(world, job, 2)
    code, out, told = kant("logs", "one", "--all", "--tail", "1")
    assert (code, out.splitlines()) == (
        0,
        ["[worker-0] ended with exit code 0", "[worker-2] ended with exit code 0"],
    )
    assert "[worker-1] The current state does not allow it: Pod worker-1 has no place yet" in told


def resize(job, count):
    job.pod_sets.update(count=count)


def let_go(world, placed):
    """Let go of a pod, as Kant does when its job has no room for it any more."""
    world.sim.call("DELETE", world.path(placed.pod_name), {"gracePeriodSeconds": 0})
    eventually(lambda: world.sim.call("GET", world.path(placed.pod_name))[0] == 404)
    Placement.objects.filter(pk=placed.pk).update(state="RELEASED", reason="Resized")


def test_all_pods_are_those_that_the_job_has_also_beyond_its_count(kant, world):
    job = world.submit(replicas=4, gang=False)
    for ordinal in (0, 3):
        ended(world, job, ordinal)
    left = world.start(job, 2)
    resize(job, 2)
    let_go(world, left)
    code, out, told = kant("logs", "one", "--all", "--tail", "1")
    assert (code, out.splitlines()) == (
        0,
        ["[worker-0] ended with exit code 0", "[worker-3] ended with exit code 0"],
    )
    assert "worker-1 has no place yet" in told
    assert "worker-2" not in told


def test_following_a_pod_ends_when_a_resize_ended_it(kant, world, in_pauses):
    job = world.submit(replicas=3, gang=False)
    world.start(job, 0)
    ended(world, job, 2)
    placed = job.placements.get(ordinal=2)

    def smaller():
        resize(job, 1)
        let_go(world, placed)

    in_pauses += [smaller]
    code, out, told = kant("logs", "one", "--pod", "2", "--follow")
    assert (code, out.splitlines()[-1]) == (0, "ended with exit code 0")
    assert told.splitlines()[-1].endswith(
        "Pod worker-2 has ended and will not be created again: one now asks for 1 pod. "
        "Its log is gone with it."
    )
    code, _, told = kant("logs", "one", "--pod", "2")
    assert (code, "will not be created again" in told) == (3, True)


def test_following_waits_where_the_job_has_got_more_pods_again(kant, world, in_pauses):
    job = world.submit(replicas=2, gang=False)
    placed = world.start(job, 1)
    let_go(world, placed)

    def again():
        ended(world, job, 1, attempt=2)

    in_pauses += [again, lambda: over(job)]
    code, out, told = kant("logs", "one", "--pod", "1", "--follow")
    assert (code, out.splitlines()[-1]) == (0, "ended with exit code 0")
    assert "is gone, and its log with it" in told


def over(job, state="SUCCEEDED"):
    Job.objects.filter(pk=job.pk).update(state=state)


def test_following_ends_with_the_job_and_shows_each_line_once(kant, world, in_pauses):
    job = world.submit()
    path = world.path(world.start(job).pod_name)
    eventually(lambda: kant("logs", "one")[0] == 0)
    in_pauses += [lambda: None, lambda: over(job)]

    def end_when_followed():
        eventually(lambda: open_logs() == 1)
        world.sim.end_pod(path)

    ending = threading.Thread(target=end_when_followed)
    ending.start()
    code, out, _ = kant("logs", "one", "--follow")
    ending.join()
    lines = out.splitlines()
    assert (code, lines[1], lines[-1]) == (0, "no GPUs", "ended with exit code 0")
    assert len(set(lines)) == len(lines)


def test_following_waits_for_a_pod_and_goes_on_with_the_next_one(kant, world, in_pauses):
    job = world.submit()

    def next_attempt():
        time.sleep(1.1)  # simulated containers give times in whole seconds
        ended(world, job, attempt=2)

    in_pauses += [
        lambda: ended(world, job, attempt=1, exit_code=1),
        next_attempt,
        lambda: over(job),
    ]
    code, out, told = kant("logs", "one", "-f")
    ends = [line for line in out.splitlines() if line.startswith("ended")]
    assert (code, ends) == (0, ["ended with exit code 1", "ended with exit code 0"])
    assert "has no place yet" in told


def test_following_goes_on_after_silence(kant, world, in_pauses, monkeypatch):
    monkeypatch.setattr(logs, "SILENCE_S", 0.5)
    job = world.submit()
    path = world.path(world.start(job).pod_name)
    eventually(lambda: kant("logs", "one")[0] == 0)

    def end_after_silence():
        monkeypatch.setattr(logs, "SILENCE_S", 60.0)
        world.sim.end_pod(path)

    in_pauses += [end_after_silence, lambda: over(job)]
    code, out, _ = kant("logs", "one", "--all", "-f", "--timestamps")
    lines = out.splitlines()
    assert (code, len(set(lines))) == (0, len(lines))
    assert " started main of " in lines[0]
    assert lines[-1].endswith("Z ended with exit code 0")


def test_following_goes_on_after_the_end_of_a_server(kant, world, monkeypatch):
    """This also holds if the server's last line has a later time than the lines that follow."""
    job = world.submit()
    path = world.path(world.start(job).pod_name)
    eventually(lambda: world.get(job)[0] == 200)
    monkeypatch.setattr("scheduling.api.logs.datetime", Later)
    shown, show = [], logs._show
    monkeypatch.setattr(logs, "_show", lambda *line: (shown.append(line), show(*line)))

    def restart():
        eventually(lambda: len(shown) >= 2)  # all that the pod prints at first
        pod_logs.stop_reading()
        pod_logs._reader = LogReader()
        eventually(lambda: len(shown) >= 3)  # or the pod may end before the log is let go
        world.sim.end_pod(path)
        eventually(lambda: "exit code" in world.get(job)[1])
        Job.objects.filter(pk=job.pk).update(state="SUCCEEDED")

    restarting = threading.Thread(target=restart)
    restarting.start()
    _, out, _ = kant("logs", "one", "--follow")
    restarting.join()
    assert out.splitlines()[1:] == [
        "no GPUs",
        "Kant: the server is stopping; ask again for the rest",
        "ended with exit code 0",
    ]


class Later(datetime):
    @classmethod
    def now(cls, tz):
        return super().now(tz) + timedelta(minutes=1)


def test_no_more_pods_are_followed_than_the_server_allows(kant, world):
    world.submit(replicas=17)
    code, _, told = kant("logs", "one", "--all", "--follow")
    assert (code, "at most 16 are followed at once" in told) == (2, True)


def test_ctrl_c_ends_it_without_a_word(kant, world):
    job = world.submit()
    world.start(job)
    eventually(lambda: kant("logs", "one")[0] == 0)
    env = {"KANT_URL": kant.url, "KANT_TOKEN": kant.token, "PYTHONPATH": "."}
    command = [sys.executable, "-m", "kant.client", "logs", "one", "--follow"]
    # A process that a shell starts with & ignores this signal, and so would this one.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=env, preexec_fn=heard, **pipes)
    assert process.stdout.readline().startswith(b"started")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, b"")
    eventually(lambda: open_logs() == 0)
