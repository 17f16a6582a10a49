"""`manage.py chaos`: rounds pass, a wrong option gives one line, and the checks detect faults."""

import json
import logging
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest
from django.core.management import execute_from_command_line

from metrics.benches import programs
from metrics.chaos import clocked, faults, invariants
from metrics.chaos.load import Submission, submissions
from metrics.chaos.shape import ChaosError, ProductionShape
from tests.cases import NIGHTLY
from tests.requirements import installed

ROOT = Path(__file__).resolve().parents[2]


# `manage.py chaos` with forked processes of Kant and a database that has its tables: starting these
# is not under test.
FORKED = """
import shutil, subprocess, sys, types
from django.core.management import execute_from_command_line
from metrics.benches import programs, stage
from metrics.chaos import shape
from tests import forked
made = sys.argv.pop(1)
def copied(folder):
    if account := programs.account_of_postgres():
        shutil.chown(folder, account)
    subprocess.run(["cp", "-a", made, folder / "data"], check=True)
shape.make_postgres = copied
programs.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": forked.popen})
stage.subprocess = types.SimpleNamespace(**{**vars(subprocess), "run": forked.run})
execute_from_command_line(["manage.py", "chaos", *sys.argv[1:]])
"""


def chaos(data, *argv):
    command = [sys.executable, "-c", FORKED, str(data), *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def servers():
    installed(programs.postgres_program, "initdb")
    installed(programs.redis_program)


@pytest.mark.live
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("rounds", "shards"), [(5, 2), (5, 1)] if NIGHTLY else [(3, 2)])
def test_rounds_lose_and_double_nothing(servers, postgres_data, rounds, shards):
    argv = ["--rounds", str(rounds), "--seed", "2", "--shards", str(shards), "--json"]
    done = chaos(postgres_data, *argv)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["violations"], found["kept"]) == ([], "")
    assert (found["rounds"], found["submissions"]) == (rounds, 12 * rounds)
    assert sum(found["faults"].values()) >= rounds
    assert sum(found["states"].values()) == found["jobs"] >= found["submissions"]
    assert found["holdings"] > 0
    assert found["gangs_seen"] > 0


def refused(capsys, option):
    """Return the last line printed about a wrong option, which starts nothing."""
    logs = list(logging.root.handlers)
    with pytest.raises(SystemExit) as ended:
        execute_from_command_line(["manage.py", "chaos", option])
    assert ended.value.code == 2
    assert logging.root.handlers == logs
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("rounds", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_of_rounds_is_one_line(rounds, capsys):
    assert "--rounds: must be a whole number from 1 on" in refused(capsys, f"--rounds={rounds}")


@pytest.mark.parametrize("shards", ["0", "5", "two"])
def test_a_wrong_number_of_shards_is_one_line(shards, capsys):
    assert "--shards: must be a whole number from 1 to 4" in refused(capsys, f"--shards={shards}")


class Empty(ProductionShape):
    """A production shape without programs."""

    def _start(self):
        (self.folder / "web.log").write_text("it said this")


@pytest.mark.parametrize(
    ("end", "kept"),
    [("well", False), ("violation", True), ("error", True), ("interrupt", False)],
)
def test_the_logs_of_a_run_stay_where_something_was_wrong_and_it_says_where(servers, end, kept):
    said = []
    errors = {"error": ChaosError, "interrupt": KeyboardInterrupt}
    with suppress(*errors.values()), Empty(said.append) as shape:
        shape.tell("round 1 of 1: kill-web")
        if end == "violation":
            assert shape.keep() == str(shape.folder)
        elif end in errors:
            raise errors[end](end)
    assert shape.folder.exists() == shape._data.exists() == kept
    assert any(str(shape.folder) in line for line in said) == kept
    if kept:
        assert (shape.folder / "web.log").read_text() == "it said this"
        rounds = (shape.folder / "rounds.log").read_text().splitlines()
        assert rounds[0].endswith(" round 1 of 1: kill-web")
        shutil.rmtree(shape.folder)
        shutil.rmtree(shape._data)


@pytest.mark.parametrize(
    ("gone", "remedy"),
    [("postgres_program", "apt-get install postgresql"), ("redis_program", "redis-server")],
)
def test_what_is_missing_is_named_with_its_remedy(gone, remedy, monkeypatch):
    monkeypatch.setattr(programs.Path, "glob", lambda *_: iter(()))
    monkeypatch.setattr(programs.shutil, "which", lambda _: None)
    with pytest.raises(programs.ProgramMissing, match=remedy):
        getattr(programs, gone)(*(["initdb"] if gone == "postgres_program" else []))


def test_a_seed_chooses_the_same_faults_and_jobs():
    def names(seed):
        return [[k.name for k in kinds] for kinds in islice(faults.rounds(seed), 60)]

    assert names(3) == names(3) != names(4)
    assert [s.document for s in submissions(3, 2)] == [s.document for s in submissions(3, 2)]
    assert [s.pods for s in submissions(3, 2)] == [s.pods for s in submissions(3, 2)]
    assert submissions(3, 2)[0].document != submissions(3, 3)[0].document


def test_gangs_of_plain_pods_come_whole():
    gangs = [s for n in range(9) for s in submissions(3, n) if s.pods and s.needed]
    assert gangs
    for each in gangs:
        assert len(each.pods) == each.needed > 1
        for pod in each.pods:
            meta = pod["metadata"]
            assert meta["labels"]["kant.io/gang"] == each.name
            assert meta["annotations"]["kant.io/gang-size"] == str(each.needed)
        assert len({pod["metadata"]["name"] for pod in each.pods}) == each.needed


def test_every_kind_comes_and_no_two_of_a_round_concern_the_same():
    found = list(islice(faults.rounds(5), 60))
    counts = {kind.name for kinds in found for kind in kinds}
    assert counts == {kind.name for kind in faults.KINDS}
    for kinds in found:
        of = [kind.of for kind in kinds]
        assert len(set(of)) == len(of)
        # The database says who leads; the API server takes the node fault.
        asking = {"watches", "requests", "nodes", "schedulers"}
        assert of == sorted(of, key=lambda each: each not in asking)


class Told:
    """A production shape that only records what it is given."""

    def __init__(self, **queries):
        self.queries = queries
        self.audit = {"open": 0, "closed": 0, "double_holdings": [], "holdings": []}
        self.quotas = []

    def rows(self, query):
        return self.queries.get(next(n for n, q in vars(invariants).items() if q == query), [])

    def rest(self, *_):
        return 200, {"items": self.quotas}

    def kubernetes(self, _, path):
        return 200, self.audit if path == "/sim/audit" else {"items": []}


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([("a", 1), ("b", 3)], []),
        ([("b", 3)], ["a is 0 jobs, not 1"]),
        ([("a", 2), ("b", 3)], ["a is 2 jobs, not 1"]),
        ([("a", 1), ("b", 2)], ["b is 2 jobs, not 3"]),
        ([("a", 1)], []),  # b is not answered: all or nothing
        ([("a", 1), ("b", 3), ("c", 1)], ["c is 1 jobs, and nobody submitted it"]),
    ],
)
def test_a_job_that_is_lost_or_doubled_is_seen(jobs, said):
    made = [Submission("a", {}, answered=True), Submission("b", {}, jobs=3)]
    found = list(invariants.jobs_lost_or_doubled(Told(JOBS=jobs), made))
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))


def plain(*names):
    return tuple({"metadata": {"name": name}} for name in names)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("p", "1"), ("g-0", "2"), ("g-1", "2")], []),
        ([], []),  # nobody has looked at them yet; if nobody ever does, they are left over
        ([("p", "1"), ("p", "1")], []),
        ([("p", "1"), ("p", "2")], ["plain pods p are 2 jobs"]),
        ([("g-0", "1"), ("g-1", "2")], ["plain pods g are 2 jobs"]),
        ([("other", "1")], ["plain pod other has a job, and nobody made it"]),
    ],
)
def test_plain_pods_in_more_than_one_job_are_seen(rows, said):
    made = [Submission("p", pods=plain("p")), Submission("g", pods=plain("g-0", "g-1"), needed=2)]
    found = list(invariants.jobs_lost_or_doubled(Told(PLAIN_JOBS=rows), made))
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))


HELD = ("uid", "pod", "n", [0, 1], 1000, 2000, "job", "RUNNING", "red")
HOLDING = {"uid": "uid", "pod": "x/pod", "node": "n", "devices": [1, 0], "milli": 1000}


@pytest.mark.parametrize(
    ("held", "holdings", "node", "used", "wrong"),
    [
        ([HELD], [HOLDING], 2000, 2.0, 0),
        ([], [], 0, 0.0, 0),
        ([], [{**HOLDING, "until": 5.0}], 0, 0.0, 0),
        ([HELD], [], 2000, 2.0, 2),  # Kant alone: the placement and its node
        ([], [HOLDING], 0, 0.0, 2),  # the cluster alone
        ([HELD], [{**HOLDING, "devices": [0, 2]}], 2000, 2.0, 1),
        ([HELD], [{**HOLDING, "milli": 500}], 2000, 2.0, 2),
        ([HELD], [HOLDING], 1000, 2.0, 1),
        ([HELD], [HOLDING], 2000, 1.0, 1),
    ],
)
def test_books_that_differ_are_seen(held, holdings, node, used, wrong):
    shape = Told(HELD=held, NODE_ROWS=[("n", node)])
    shape.audit = shape.audit | {"holdings": holdings}
    shape.quotas = [{"tenant": "red", "gpu_type": invariants.MODEL, "used": used}]
    assert len(invariants.books_differ(shape)) == wrong


def test_a_history_with_a_hole_is_seen():
    steps = [("a", None, "RUNNING", "ADMITTED", "PENDING", "ADMITTED")]
    whole = [*steps, ("a", None, "RUNNING", "RUNNING", "ADMITTED", "RUNNING")]
    assert not list(invariants.histories_broken(Told(EVENTS=whole)))
    assert len(list(invariants.histories_broken(Told(EVENTS=steps)))) == 1
    twice = [*whole, ("a", None, "RUNNING", "RUNNING", "ADMITTED", "RUNNING")]
    assert len(list(invariants.histories_broken(Told(EVENTS=twice)))) == 1


@pytest.mark.parametrize(
    ("gang", "label"),
    [
        (Submission("a", {}, needed=2, id="1"), {"kant.io/job": "1"}),
        (Submission("a", pods=plain("a-0", "a-1"), needed=2), {"kant.io/gang": "a"}),
    ],
    ids=["job", "plain"],
)
def test_a_gang_that_stays_half_bound_is_seen_once(monkeypatch, gang, label):
    now = [0.0]
    monkeypatch.setattr(invariants.time, "monotonic", lambda: now[0])

    class Sent:
        made = [gang]

    def pod(phase, **spec):
        return {"metadata": {"labels": label}, "spec": spec, "status": {"phase": phase}}

    watch = invariants.GangWatch(Told(), Sent)
    half = [pod("Running", nodeName="n"), pod("Pending")]
    whole = [pod("Running", nodeName="n")] * 2
    ended = [pod("Succeeded", nodeName="n")]
    allowed = invariants.GANG_TIMEOUT_S + invariants.UNBINDS_WITHIN_S
    watch._look(half)
    now[0] += allowed + 1
    watch._look(half)  # faults are active: it still has time
    watch.calm = True
    now[0] += allowed - 1
    watch._look(half)
    assert not watch.found
    now[0] += 2
    watch._look(half)
    watch._look(half)
    assert len(watch.found) == 1
    for held_whole_or_not in (whole, ended):
        watch._look(held_whole_or_not)
        assert not watch._since
    assert watch.seen == {"1" if gang.id else "a"}


def test_a_clock_that_is_set_follows_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(clocked, "READ_S", 0.0)
    file = tmp_path / "clock"
    clock = clocked.shifted(lambda: 100.0, file)
    for text, expected in (("+30", 130.0), ("-30", 70.0), ("+0", 100.0)):
        file.write_text(text)
        assert clock() == expected
