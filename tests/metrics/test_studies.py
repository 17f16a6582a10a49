"""Studies that compare policies: intervals, pairing, bars, partial results, the report."""

import gzip
import json
import re
from argparse import ArgumentParser
from dataclasses import replace
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from scipy import stats

from metrics.benches import incremental
from metrics.experiments import defrag, fairness, faults, learned, runs, walltime
from metrics.experiments.comparison import QUICK_SEEDS, Comparison, at_least, at_most, summarised
from metrics.experiments.intervals import half_width, paired, t_quantile
from metrics.experiments.paper import inference as paper_inference
from metrics.experiments.registry import STUDIES
from metrics.experiments.runs import Task, policy
from metrics.experiments.study import Study, StudyError
from metrics.management.commands import experiment
from metrics.simulate.report import Figure, Report, write_files
from scheduling.engine.types import JobRequest, PodSetSpec, QuotaSpec, TenantSpec
from scheduling.simulator.model import Arrival, HardwareFault
from scheduling.simulator.nodes import engine_nodes, sized
from scheduling.simulator.workload import HOUR, Variant


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 99])
def test_t_quantiles_agree_with_scipy(freedom):
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-9)


def test_paired_differences_agree_with_scipy():
    variant, base = [5.0, 7.5, 6.0, 9.0], [4.0, 7.0, 4.5, 6.0]
    found = paired(variant, base)
    low, high = stats.ttest_rel(variant, base).confidence_interval()
    assert (found["low"], found["high"]) == (pytest.approx(low), pytest.approx(high))
    assert found["mean"] == pytest.approx(1.5)
    assert found["ratio"] == pytest.approx(sum(variant) / sum(base))
    assert half_width([3.0]) is None
    alone = paired([2.0], [0.0])
    assert (alone["low"], alone["ratio"], alone["pairs"]) == (None, None, 1)


def test_a_size_that_one_seed_lacks_is_averaged_over_the_others():
    found = summarised(
        [
            {"wait_mean_s": {"1": 2.0, "8": 5.0}, "gfr_mean": 0.1},
            {"wait_mean_s": {"1": 4.0, "8": None}, "gfr_mean": None},
        ]
    )
    assert found["wait_mean_s"] == {"1": 3.0, "8": 5.0}
    assert (found["gfr_mean"], found["seeds"]) == (0.1, 2)
    assert found["half"]["wait_mean_s"]["8"] is None


def small(options):
    return [
        Task(
            run=runs.training,
            scenario="small",
            name=name,
            policy=policy("best-effort-fifo", strategy),
            seed=0,
            hours=options["hours"],
            warm_up_h=options["warm_up_h"],
            fleet="20x8",
            variant=Variant(load=1.05),
        )
        for name, strategy in (("native", "native"), ("kant", "e-binpack"))
    ]


def small_bars(scenarios):
    summary = scenarios["small"]["summary"]
    return [
        at_most("GFR", summary["kant"]["gfr_mean"], 1.0),
        at_least("GAR", summary["kant"]["gar_mean"], 2.0),
        at_least("nothing", None, 1.0),
    ]


@pytest.fixture
def small_study(monkeypatch):
    """A study that takes a second, in this process."""

    def serial(run, tasks, progress):
        for done, task in enumerate(tasks, start=1):
            yield task, run(task)
            progress(done, len(tasks))

    monkeypatch.setattr(experiment, "in_parallel", serial)
    study = Comparison("small", "small", small, small_bars, seeds="1-3", hours=24.0).study()
    monkeypatch.setitem(STUDIES, "small", study)
    return study


def call(*args):
    out, err = StringIO(), StringIO()
    call_command("experiment", *args, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


@pytest.mark.usefixtures("small_study")
def test_document_has_the_summary_of_each_policy_and_paired_differences():
    document = json.loads(call("small", "--json", "--seeds", "3,5")[0])
    assert document["seeds"] == [3, 5]
    assert document["summary"] == document["scenarios"]["small"]["summary"]
    kant, native = document["summary"]["kant"], document["summary"]["native"]
    for row in (kant, native):
        assert row["seeds"] == 2
        assert 0 < row["gar_mean"] <= 1
        assert {"gar_median", "sor_median", "jobs", "preempted_jobs", "lost_gpu_hours"} <= set(row)
        assert set(row["wait_mean_s"]) >= {"1", "8", "all"}
        assert all(value >= 1 for value in row["jtted_nodes"].values())
    difference = document["paired"]["kant"]["gfr_mean"]
    assert difference["mean"] == pytest.approx(kant["gfr_mean"] - native["gfr_mean"])
    assert difference["low"] <= difference["mean"] <= difference["high"]
    assert kant["gfr_mean"] < native["gfr_mean"]
    assert [b["holds"] for b in document["bars"]] == [True, False, None]


@pytest.mark.usefixtures("small_study")
def test_table_says_what_is_met_and_what_is_missed():
    text = call("small", "--quick")[0]
    assert re.search(r"met\s+GFR: ", text)
    assert re.search(r"MISSED\s+GAR: ", text)
    assert "kant - native, 95 %" in text
    assert f"seeds {', '.join(str(s) for s in range(1, QUICK_SEEDS + 1))};" in text
    assert "QUICK" in text


@pytest.mark.usefixtures("small_study")
def test_ctrl_c_gives_what_is_done_marked_partial(monkeypatch, tmp_path):
    def interrupted(run, tasks, progress):
        yield tasks[0], run(tasks[0])
        yield tasks[1], run(tasks[1])
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "in_parallel", interrupted)
    out, err = call("small", "--json", "--out", str(tmp_path / "found"))
    document = json.loads(out)
    assert document["partial"]
    assert document["bars"] == []
    assert document["summary"]["kant"]["seeds"] == 1
    assert document["seeds"] == [1], "of three that were asked for"
    assert "partial" in err
    assert "PARTIAL" in (tmp_path / "found" / "report.html").read_text()


@pytest.mark.usefixtures("small_study")
def test_out_has_the_document_and_a_page_that_needs_nothing_else(tmp_path):
    call("small", "--seeds", "1", "--out", str(tmp_path / "found"))
    page = (tmp_path / "found" / "report.html").read_text()
    assert "Plotly.newPlot" in page
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page)
    assert json.loads((tmp_path / "found" / "experiment.json").read_text())["experiment"] == "small"
    assert not list((tmp_path / "found").glob("*.partial"))
    assert "intervals" not in page.partition("<h2>Figures")[0], "one seed has none"
    call("small", "--seeds", "1,2", "--hours", "8", "--out", str(tmp_path / "found"))
    page = (tmp_path / "found" / "report.html").read_text()
    assert "<figcaption>small: shares, with 95 % intervals</figcaption>" in page


@pytest.mark.usefixtures("small_study")
def test_a_folder_that_cannot_be_written_loses_no_figures(tmp_path):
    (tmp_path / "experiment.json").mkdir()
    out = StringIO()
    with pytest.raises(CommandError, match=r"--out .*: Is a directory; not all files are there"):
        call_command(
            "experiment", "small", "--seeds", "1", "--json", "--out", str(tmp_path), stdout=out
        )
    assert json.loads(out.getvalue())["summary"]


@pytest.mark.usefixtures("small_study")
def test_a_folder_that_cannot_be_made_is_refused_before_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "in_parallel", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match=r"--out .*below: cannot be made"):
        call("small", "--out", str(tmp_path / "file" / "below"))


def test_report_escapes_what_it_shows():
    page = Report(
        title="<b>",
        note="",
        text=["a < b"],
        figures=[Figure("<i>", [{"name": "</script><b>"}], {})],
    ).html()
    assert "<title>&lt;b&gt;</title>" in page
    assert "a &lt; b" in page
    assert "</script><b>" not in page


def test_files_are_whole_or_not_there(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(OSError, match="b"):
        write_files(tmp_path, {"a": "1", "b": "2"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("small", "--hours", "0"), "--hours must be more than 0"),
        (("small", "--seeds", "x"), "--seeds 'x'"),
        (("walltime", "--data", "/nowhere"), "/nowhere: is no file and no folder"),
        (("paper-incremental", "--repeats", "0"), "--repeats must be at least 1"),
    ],
)
@pytest.mark.usefixtures("small_study")
def test_wrong_options_are_named(args, words):
    with pytest.raises(CommandError, match=re.escape(words)):
        call(*args)


def test_incremental_cycles_are_paired_with_copying_ones(monkeypatch):
    measured = iter((1.0, 3.0))

    def run():
        factor = next(measured)
        names = ("cycle_us", "deltas_100_us", "deepcopy_over_deltas", "index_mb")
        return {
            **dict.fromkeys(names, factor),
            "copying_cycle_us": 4 * factor,
            "deepcopy_us": 9 * factor,
            "cycle_cpu_ratio": 0.25,
        }

    monkeypatch.setattr(incremental, "run", run)
    found = json.loads(call("paper-incremental", "--repeats", "2", "--json")[0])
    assert found["summary"]["copying"]["cycle_us"] == 8
    assert found["summary"]["incremental"]["update_us"] == 2
    assert found["paired"]["incremental"]["cycle_us"]["mean"] == -6
    assert found["paired"]["incremental"]["cycle_us"]["ratio"] == 0.25
    assert [bar["holds"] for bar in found["bars"]] == [True]


@pytest.mark.parametrize("value", [None, 0.0])
@pytest.mark.parametrize(
    "study", [s for s in STUDIES.values() if s.plan and s.name != "openb-fgd"], ids=lambda s: s.name
)
def test_runs_too_short_for_a_figure_leave_its_bars_unknown(study, value, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,submission_time,duration,num_gpu\na,0,100,1\n")
    names = (
        "gar_mean", "gar_median", "sor_mean", "sor_median", "sor_net", "gfr_mean",
        "idle_nodes_mean", "preempted_share", "restart_wait_s", "returned_after_s",
        "cpu_us_per_event", "mean_wait_s", "large_wait_s", "broken_reservations", "told", "near",
        "held", "width_ratio", "lost_share", "whole_wait_s",
    )  # fmt: skip
    empty = {**dict.fromkeys(names, value), **{name: {} for name in runs.BY_SIZE}}

    def runner(_, tasks, progress):
        return ((task, empty) for task in tasks)

    options = {"seeds": "1", "hours": 0.05, "quick": False, "data": str(trace)}
    document = study.run(options, lambda *_: None, runner)
    text = list(study.lines(document))
    assert document["bars"]
    if value is None:
        assert {bar["holds"] for bar in document["bars"]} == {None}
        assert any(line.strip().startswith("unknown") for line in text)


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_the_help_tells_the_warm_up_that_a_study_has(name, tmp_path):
    study = STUDIES[name]
    parser = ArgumentParser()
    study.add_arguments(parser)
    told = "its first quarter (at most a week) is warm-up" in " ".join(parser.format_help().split())
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,submission_time,duration,num_gpu\na,0,60,8\nb,7200,60,8\n")
    options = vars(parser.parse_args([]))
    if "hours" in options:
        _, tasks = study.plan({**options, "hours": 8.0, "data": trace})
        assert {task.warm_up_h for task in tasks} == {2.0 if told else 0.0}


def test_every_study_has_a_plan():
    for study in STUDIES.values():
        assert isinstance(study, Study)
    plan = paper_inference.tasks({"hours": 4.0, "warm_up_h": 1.0})
    assert {t.scenario for t in plan} == set(paper_inference.SCENARIOS)


def test_a_lender_gets_its_half_back_only_with_reclamation():
    without, with_it = (
        runs.carry_out(task) for task in fairness.tasks({"hours": 12.0, "warm_up_h": 0.0})
    )
    assert with_it["returned_after_s"] <= fairness.T_S
    assert without["returned_after_s"] > 10 * fairness.T_S
    assert with_it["lender_gpu_hours"] > without["lender_gpu_hours"]


def test_moves_for_a_price_leave_fewer_nodes_partly_used_and_lose_no_more_than_they_may():
    found = {
        task.name: runs.carry_out(replace(task, fleet="200x8", seed=1))
        for task in defrag.tasks({"hours": 24.0, "warm_up_h": 6.0})
    }
    base, most = found[defrag.BASE], found[defrag.MOST]
    assert (base["moves_a_day"], base["lost_share"]) == (0.0, 0.0)
    assert found["consolidation"]["gfr_mean"] == base["gfr_mean"]  # there are no replicas
    assert most["moves_a_day"] > 0.0
    assert most["gfr_mean"] < 0.8 * base["gfr_mean"]
    for name, terms in defrag.POLICIES.items():
        # Leaving and restarting have no price here.
        assert found[name]["lost_share"] <= 1.3 * terms.get("defrag_loss", 0.0)


def after_a_fault(case):
    """A gang of 32 nodes loses one of 34; two smaller jobs want the rest."""
    plan = faults.tasks({"hours": 10.0, "warm_up_h": 0.0, "quick": False})
    task = next(t for t in plan if t.name == case)
    if task.policy.spare_nodes:
        task = replace(task, policy=replace(task.policy, spare_nodes={"H100": 1}))
    made = [("gang", 0.0, 32, 10.0), ("one", 1.0, 1, 5.0), ("two", 2.0, 1, 5.0)]
    arrivals = [
        Arrival(
            JobRequest(
                name, "a", at, (PodSetSpec("main", pods, 8, ("H100",)),), uses_spares=pods == 32
            ),
            hours * HOUR,
        )
        for name, at, pods, hours in made
    ]
    return runs.simulate(
        task,
        engine_nodes(sized("34x8")),
        arrivals,
        simulation_type=faults.Restarts,
        tenants=(TenantSpec("a"),),
        quotas=(QuotaSpec("a", "H100", 10**9),),
        faults=[HardwareFault(HOUR, "node-00000", 15 * HOUR)],
    )


def test_a_spare_node_takes_the_place_of_one_that_failed():
    waits = {case: after_a_fault(case) for case in faults.CASES}
    assert {case: found["restarts_of_large"] for case, found in waits.items()} == dict.fromkeys(
        faults.CASES, 1
    )
    # Without one it waits until a smaller job, which began after 1 s, has ended.
    assert waits["neither"]["restart_wait_s"] == 4 * HOUR + 1
    assert waits["fast requeue"]["restart_wait_s"] == 4 * HOUR + 1
    assert waits["both"]["restart_wait_s"] == waits["spares"]["restart_wait_s"] == 0
    assert waits["both"]["sor_net"] > waits["neither"]["sor_net"]


def swf_line(number, submit, run, declared, procs=8):
    return f"{number} {submit} -1 {run} {procs} -1 -1 {procs} {declared} -1 1 1 1 -1 1 -1 -1 -1\n"


def test_swf_files_of_a_folder_are_taken_before_others(tmp_path):
    (tmp_path / "below").mkdir()
    archive = tmp_path / "below" / "CTC-SP2-1996-3.1-cln.swf.gz"
    with gzip.open(archive, "wt") as file:
        file.write("; Version: 2.2\n" + "".join(swf_line(i, 60 * i, 900, 600) for i in range(30)))
    (tmp_path / "notes.csv").write_text("this is no trace\n")
    plan = walltime.tasks({"hours": 100.0, "data": tmp_path})
    assert {task.more["path"] for task in plan} == {archive}
    found = {task.name: runs.carry_out(task) for task in plan}
    assert found["backfill"]["jobs"] == 30
    assert found["backfill"]["broken_reservations"] == 0, "no job runs longer than it declared"
    archive.unlink()
    with pytest.raises(StudyError, match=r"notes.csv: line 1: no known trace begins like this"):
        walltime.tasks({"hours": 100.0, "data": tmp_path})
    (tmp_path / "notes.csv").unlink()
    with pytest.raises(StudyError, match=r"has no trace \(a file of .swf, .csv, .jsonl"):
        walltime.tasks({"hours": 100.0, "data": tmp_path})


def test_a_trace_that_no_fleet_can_hold_is_refused(tmp_path):
    path = tmp_path / "large.swf"
    path.write_text("; Version: 2.2\n" + swf_line(1, 0, 900, 600, procs=2_000_000))
    with pytest.raises(StudyError, match=r"large\.swf: load 0.85 takes 250,000 nodes of 8 GPUs"):
        walltime.tasks({"hours": 100.0, "data": path})


def test_reservations_are_kept_and_counted(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "job_id,submission_time,duration,num_gpu\n"
        + "".join(
            f"j{i},{3000 * (i // 20)},{600 + 97 * i % 1800},{(1, 2, 8, 16)[i % 4]}\n"
            for i in range(80)
        )
    )
    plan = walltime.tasks({"hours": 100.0, "data": path})
    found = {task.name: runs.carry_out(task) for task in plan}
    assert found["backfill"]["reserved_jobs"] > 0
    assert found["backfill"]["broken_reservations"] == 0
    assert found["backfill"]["mean_wait_s"] <= found["strict-fifo"]["mean_wait_s"]


def test_halves_of_a_trace_are_backfilled_by_learned_run_times(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "job_id,submission_time,duration,num_gpu\n"
        + "".join(
            f"j{i},{900 * (i // 5)},{600 + 97 * i % 1800},{(1, 2, 8, 64)[i % 4]}\n"
            for i in range(160)
        )
    )
    plan = learned.tasks({"hours": 100.0, "data": path})
    assert len({task.scenario for task in plan}) == 2
    found = {task.name: runs.carry_out(task) for task in plan if "first" in task.scenario}
    assert found[learned.BASE]["jobs"] == 80
    assert found[learned.LEARNED]["reserved_jobs"] > 0
    assert found[learned.CLOSING]["reserved_jobs"] == 0
    assert found[learned.EXACT]["broken_reservations"] == 0
    scenario = {"summary": found}
    claims = [bar.claim for bar in learned.bars({"a half": scenario})]
    assert claims == [
        "mean wait over best-effort's, a half",
        "mean wait from 64 GPUs on over best-effort's, a half",
    ]
    large = found[learned.LEARNED]["wait_mean_s"]["64"]
    assert found[learned.LEARNED]["large_wait_s"] == pytest.approx(large)
