"""`manage.py experiment`: the openb study, its inputs and its output."""

import gzip
import json
import lzma
import statistics
from io import StringIO

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command

from metrics.experiments import openb_fgd, study
from metrics.experiments.openb_fgd import FgdTask, inflate
from metrics.experiments.registry import STUDIES
from metrics.experiments.study import StudyError, in_parallel, parse_seeds
from metrics.management.commands import experiment
from scheduling.engine.cycle import run_cycle
from scheduling.engine.deltas import JobSubmitted
from tests.cases import NIGHTLY
from tests.requirements import missing

POLICIES = tuple(openb_fgd.DEFAULT_POLICIES.split(","))
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{i},32000,100000,4,{'T4' if i % 2 else 'G2'}\n" for i in range(6)
)
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"p{i},{cpu},1000,{gpus},{milli},{spec}\n"
    for i, (cpu, gpus, milli, spec) in enumerate(
        [(4000, 1, 1000, ""), (2000, 1, 470, "T4"), (1000, 1, 320, ""), (8000, 0, 0, "")] * 5
    )
)
PUBLISHED = (
    "pod_list,policy,allocated_pct_at_100_mean,allocated_pct_at_100_sd,"
    "allocated_pct_at_130_mean,allocated_pct_at_130_sd\n"
    "tiny,06-FGD,88.5,0.1,90.25,0.1\ntiny,05-BestFit,80.5,0.1,85.25,0.1\n"
)


@pytest.fixture
def data(tmp_path, settings):
    settings.KANT_TRACES = tmp_path / "none"
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "openb_node_list_gpu_node.csv").write_text(NODES)
    (folder / "openb_pod_list_tiny.csv").write_text(PODS)
    with lzma.open(folder / "openb_pod_list_packed.csv.xz", "wt") as file:
        file.write(PODS)
    (folder / "published_allocation.csv").write_text(PUBLISHED)
    return folder


@pytest.fixture
def at_once(monkeypatch):
    """Run the tasks in this process; one test below covers separate interpreters."""

    def serial(run, tasks, progress):
        for done, task in enumerate(tasks, start=1):
            yield task, run(task)
            progress(done, len(tasks))

    monkeypatch.setattr(experiment, "in_parallel", serial)


def document(*args):
    out = StringIO()
    call_command("experiment", "openb-fgd", *args, "--json", stdout=out)
    return json.loads(out.getvalue())


@pytest.mark.usefixtures("at_once")
def test_every_list_and_policy_has_a_row(data):
    found = document("--data", str(data), "--seeds", "3-5", "--policy", ",".join(POLICIES))
    assert (found["experiment"], found["partial"], found["seeds"]) == (
        "openb-fgd",
        False,
        [3, 4, 5],
    )
    assert [(r["list"], r["policy"]) for r in found["rows"]] == [
        (name, policy) for name in ("packed", "tiny") for policy in POLICIES
    ]
    packed, tiny = found["rows"][0], found["rows"][len(POLICIES)]
    assert (tiny["published_fgd_at_100"], tiny["published_fgd_at_130"]) == (88.5, 90.25)
    assert (tiny["published_bestfit_at_130"], tiny["seeds"]) == (85.25, 3)
    assert (packed["published_fgd_at_130"], packed["published_bestfit_at_130"]) == (None, None)
    same = ("mean_at_100", "mean_at_130", "sd_at_130")
    assert [packed[key] for key in same] == [tiny[key] for key in same]
    runs = [
        inflate(
            FgdTask(data / "openb_pod_list_tiny.csv", data / "openb_node_list_gpu_node.csv", p, s)
        )
        for p in ("fragmentation",)
        for s in (3, 4, 5)
    ]
    assert tiny["mean_at_130"] == statistics.fmean(r[1] for r in runs)
    assert tiny["sd_at_130"] == statistics.stdev(r[1] for r in runs)
    assert 0 < tiny["mean_at_100"] <= tiny["mean_at_130"] <= 100
    first, *others = POLICIES
    assert list(found["summary"]) == list(POLICIES)
    of = [r["mean_at_130"] / 100 for r in found["rows"] if r["policy"] == first]
    assert found["summary"][first]["gar_mean"] == pytest.approx(statistics.fmean(of))
    assert (found["baseline"], list(found["paired"])) == (first, others)
    for name in others:
        difference = found["paired"][name]["gar_mean"]
        assert difference["pairs"] == 6, "each of two lists with each of three seeds"
        assert difference["low"] <= difference["mean"] <= difference["high"]


@pytest.mark.usefixtures("at_once")
def test_quick_takes_two_seeds_and_lists_are_chosen(data):
    found = document("--data", str(data), "--quick", "--lists", "tiny", "--policy", "binpack")
    assert found["seeds"] == [42, 43]
    assert [r["list"] for r in found["rows"]] == ["tiny"]


@pytest.mark.usefixtures("at_once")
def test_lists_may_lie_beside_the_published_table(data, tmp_path):
    (tmp_path / "root").mkdir()
    (data / "published_allocation.csv").unlink()
    data.rename(tmp_path / "root" / "openb")
    (tmp_path / "root" / "fgd").mkdir()
    (tmp_path / "root" / "fgd" / "published_allocation.csv").write_text(PUBLISHED)
    found = document("--data", str(tmp_path / "root"), "--seeds", "1", "--lists", "tiny")
    assert found["rows"][0]["published_fgd_at_130"] == 90.25
    assert found["rows"][0]["sd_at_130"] is None


@pytest.mark.usefixtures("at_once")
def test_the_table_for_people(data):
    out = StringIO()
    args = ("--data", str(data), "--seeds", "1", "--policy", "native")
    call_command("experiment", "openb-fgd", *args, stdout=out)
    header, packed, tiny = out.getvalue().splitlines()
    assert header.split()[:2] == ["list", "policy"]
    assert "–" in packed
    assert "90.25" in tiny


def test_ctrl_c_gives_what_is_done_marked_partial(data, monkeypatch):
    def interrupted(run, tasks, progress):
        yield tasks[0], run(tasks[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "in_parallel", interrupted)
    err = StringIO()
    out = StringIO()
    call_command("experiment", "openb-fgd", "--data", str(data), "--json", stdout=out, stderr=err)
    found = json.loads(out.getvalue())
    assert found["partial"]
    assert [r["seeds"] for r in found["rows"]] == [1]
    assert found["seeds"] == [42]
    assert found["summary"]["fragmentation"]["seeds"] == 1
    assert "partial" in err.getvalue()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--lists", "tiny,other"], "--lists: 'other' is unknown; the lists are packed, tiny"),
        (
            ["--policy", "fgd"],
            "--policy: 'fgd' is unknown; the policies are binpack",
        ),
        (["--seeds", "4-x"], "--seeds '4-x': '4-x' is no seed"),
        (["--seeds", "9-4"], "the range '9-4' is empty"),
        (["--seeds", ""], "is no seed"),
    ],
)
def test_wrong_options_are_named(data, args, words):
    with pytest.raises(CommandError) as wrong:
        call_command("experiment", "openb-fgd", "--data", str(data), *args)
    assert words in str(wrong.value)


def test_an_unknown_study_lists_the_known_ones():
    with pytest.raises(CommandError) as wrong:
        call_command("experiment", "nothing")
    assert "'nothing'" in str(wrong.value)
    assert all(name in str(wrong.value) for name in STUDIES)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("openb_pod_list_tiny.csv", PODS + "p,1,1,two,1000,\n", "line 22, column num_gpu"),
        ("openb_pod_list_tiny.csv", PODS.splitlines()[0] + "\n", "has no pods"),
        (
            "openb_pod_list_tiny.csv",
            "\n".join(PODS.splitlines()[:1]) + "\np,1,1,0,0,\n",
            "no pod asks",
        ),
        ("openb_pod_list_tiny.csv", "", "line 1: column name is missing"),
        ("openb_node_list_gpu_node.csv", NODES + "x,1,1,-4,T4\n", "line 8, column gpu"),
        ("openb_node_list_gpu_node.csv", NODES.splitlines()[0] + "\nx,1,1,0,T4\n", "has a GPU"),
        (
            "published_allocation.csv",
            "pod_list,policy\ntiny,06-FGD\n",
            "line 1: column allocated_pct_at_100_mean is missing",
        ),
    ],
)
def test_wrong_files_are_named_before_anything_runs(data, name, text, words):
    (data / name).write_text(text)
    openb_fgd._pods.cache_clear()
    with pytest.raises(CommandError) as wrong:
        call_command("experiment", "openb-fgd", "--data", str(data), "--lists", "tiny")
    assert words in str(wrong.value)
    assert name in str(wrong.value)


def test_files_that_are_not_there_are_named(data):
    with pytest.raises(CommandError, match="has no openb_pod_list_NAME"):
        call_command("experiment", "openb-fgd", "--data", str(data / "nowhere"))
    (data / "openb_node_list_gpu_node.csv").unlink()
    with pytest.raises(CommandError, match="has no openb_node_list_gpu_node"):
        call_command("experiment", "openb-fgd", "--data", str(data))
    (data / "openb_node_list_gpu_node.csv.xz").write_bytes(b"no archive")
    with pytest.raises(CommandError, match="cannot be read as text"):
        call_command("experiment", "openb-fgd", "--data", str(data))


@pytest.mark.usefixtures("at_once")
def test_lists_and_nodes_may_be_packed_either_way(data):
    (data / "openb_pod_list_tiny.csv").unlink()
    (data / "openb_node_list_gpu_node.csv").unlink()
    for name, text in (("openb_pod_list_tiny", PODS), ("openb_node_list_gpu_node", NODES)):
        with gzip.open(data / f"{name}.csv.gz", "wt") as file:
            file.write(text)
    found = document("--data", str(data), "--seeds", "3", "--policy", "binpack")
    assert [r["list"] for r in found["rows"]] == ["packed", "tiny"]


def test_of_a_list_that_is_there_twice_the_plain_one_counts(data):
    (data / "openb_pod_list_packed.csv").write_text("")
    with pytest.raises(CommandError, match=r"openb_pod_list_packed\.csv: line 1"):
        call_command("experiment", "openb-fgd", "--data", str(data), "--lists", "packed")


def test_seeds():
    assert parse_seeds("42-44") == [42, 43, 44]
    assert parse_seeds("7, 1-2,2") == [7, 1, 2]
    with pytest.raises(StudyError):
        parse_seeds("-3")


def test_runs_in_processes_come_in_order():
    seen = []
    found = list(in_parallel(abs, [-3, 2, -1], lambda done, of: seen.append((done, of))))
    assert found == [(-3, 3), (2, 2), (-1, 1)]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    with pytest.raises(ZeroDivisionError):
        list(in_parallel(_fails, [1], lambda *_: None))


def _fails(number):
    return number / 0


@pytest.mark.usefixtures("at_once")
def test_a_former_name_of_a_policy_is_understood(data):
    found = document("--data", str(data), "--seeds", "3", "--policy", "fragmentation-gradient")
    assert {r["policy"] for r in found["rows"]} == {"fragmentation"}


def test_what_is_measured_is_what_the_engine_decides(data, monkeypatch):
    """Every pod is a job in a cycle, under a policy with the strategy that the row names."""
    seen = []

    def watched(state, deltas, now):
        found = run_cycle(state, deltas, now)
        jobs = [d.job for d in deltas if isinstance(d, JobSubmitted)]
        seen.append((dict(state.policy.strategies), jobs, found.started))
        return found

    monkeypatch.setattr(openb_fgd, "run_cycle", watched)
    task = FgdTask(
        data / "openb_pod_list_tiny.csv", data / "openb_node_list_gpu_node.csv", "spread", 3
    )
    at_100, at_130, _ = inflate(task)
    assert {name for strategies, _, _ in seen for name in strategies.values()} == {"spread"}
    assert all(len(jobs) == 1 for _, jobs, _ in seen)
    milli = sum(p.milli * len(p.devices) for _, _, got in seen for s in got for p in s.placements)
    assert at_100 <= at_130 == pytest.approx(100 * milli / 24_000)
    without = {jobs[0].id for _, jobs, _ in seen if jobs[0].without_gpus}
    assert without & {s.job_id for _, _, got in seen for s in got}


@pytest.mark.parametrize(
    ("strategy", "name", "over"),
    [
        ("fragmentation", "default", 0.4),
        ("e-binpack", "gpushare60", -0.5),
        ("fragmentation", "gpuspec20", 0.4),
        ("e-binpack", "multigpu30", -0.5),
    ][: None if NIGHTLY else 2],
)
def test_the_product_against_the_published_policy(strategy, name, over):
    folder = django_settings.KANT_TRACES / "openb"
    if not folder.is_dir():
        missing(str(folder), "fetch the public traces and set KANT_TRACES")
    nodes = folder / "openb_node_list_gpu_node.csv"
    at_100, at_130, _ = inflate(
        FgdTask(folder / f"openb_pod_list_{name}.csv.xz", nodes, strategy, 3)
    )
    fgd = openb_fgd._published(folder)[name, "06-FGD"]
    assert at_100 >= fgd[0] + over
    assert at_130 >= fgd[1] + over


def test_study_modules_register_themselves_once():
    assert all(name == s.name and isinstance(s, study.Study) for name, s in STUDIES.items())
