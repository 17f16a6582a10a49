"""`manage.py simulate`: one JSON document, files, and one line for every wrong input."""

import csv
import json
import lzma
import os
import subprocess
import sys
import threading
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from metrics.management.commands import simulate as simulate_command
from metrics.simulate import sources
from metrics.simulate.inputs import lines_of
from scheduling.simulator.traces import TENANTS, BadRows

ROOT = Path(__file__).resolve().parents[2]
HEADER = "id,submitted_at,duration_s,gpus,pods,tenant\n"


def simulate(*args, err=None):
    out = StringIO()
    call_command("simulate", *args, "--json", stdout=out, stderr=err or StringIO())
    return json.loads(out.getvalue())


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "a,0,100,8,2,x\nb,10,50,4,1,y\nbig,20,1,8,99,y\n")
    return path


def test_a_trace_of_three_jobs(trace):
    found = simulate(
        "--trace", str(trace), "--fleet", "2x8", "--policy", "best-effort-fifo+binpack"
    )
    assert found["jobs"] == 3
    assert found["never_runnable"] == 1
    states = {"WAITING": 0, "RUNNING": 0, "SUCCEEDED": 2, "FAILED": 1, "CANCELLED": 0}
    assert found["states"] == states
    assert found["waits"]["2–7"]["mean_s"] == 90
    assert found["pools"]["H100"]["sor"] == pytest.approx((16 * 100 + 4 * 50) / (16 * 150))
    assert found["tenants"]["x"]["gpu_hours"] == pytest.approx(1600 / 3600)
    assert found["jtted"]["16"] == {"jobs": 1, "nodes": 1.0, "groups": 1.0}


def test_a_generated_day_is_the_same_twice():
    def once():
        found = simulate("--hours", "6", "--fleet", "100x8", "--seed", "5", "--policy", "native")
        for name in ("seconds", "cpu_seconds", "events_per_second", "peak_mb"):
            found.pop(name)
        return found

    first = once()
    assert first == once()
    # Six hours of a night contain few jobs, so a month is compared with the published shares.
    assert first["workload"]["small_jobs"] > 0.7


def test_files(trace, tmp_path):
    simulate("--trace", str(trace), "--fleet", "2x8", "--out", str(tmp_path / "out"))
    names = {p.name for p in (tmp_path / "out").iterdir()}
    tables = {f"{n}.csv" for n in ("jobs", "samples", "placements", "nodes", "losses", "events")}
    assert names == tables | {"summary.json", "report.html"}
    rows = (tmp_path / "out" / "jobs.csv").read_text().splitlines()
    assert len(rows) == 4
    assert rows[1].startswith("a,x,H100,16.0,0,0.0,0.0,100.0,SUCCEEDED")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "policy.json: The file is not valid JSON: Expecting"),
        ("[]", "policy.json: must be one object of policy fields"),
        ('{"queueing": "lifo"}', "policy.json: queueing: Choose one of strict-fifo"),
        ('{"preemption": ["price"]}', "policy.json: preemption.0: Choose one of priority"),
        ('{"min_runtime_s": -1}', "policy.json: min_runtime_s: Must be a number from 0"),
        ('{"queueing": "backfill", "queueing": "strict-fifo"}', "'queueing' appears twice"),
        ('{"min_runtime_s": NaN}', "policy.json: The file is not valid JSON: NaN"),
        ("[" * 9999, "policy.json: The file is nested too deeply"),
    ],
)
def test_a_wrong_policy_file_is_one_line(tmp_path, trace, text, message):
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(CommandError, match=message) as error:
        simulate("--trace", str(trace), "--fleet", "2x8", "--policy", str(path))
    assert "\n" not in str(error.value)
    assert error.value.returncode == 2, "as of every command that was called with wrong input"


def test_a_policy_file_says_all_that_a_policy_may(tmp_path):
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(f"{HEADER.strip()},priority\nlow,0,100,8,1,x,0\nhigh,10,100,8,1,x,9\n")
    policy = tmp_path / "policy.json"
    policy.write_text('{"preemption": ["priority"], "min_runtime_s": 5}')
    found = simulate("--trace", str(jobs), "--fleet", "1x8", "--policy", str(policy))
    assert found["preempted_jobs"] == 1
    # The victim waits again while the other job runs, but not while it runs itself.
    assert found["waits"]["8"]["mean_s"] == 100 / 2
    assert found["waits"]["8"]["first_start"]["mean_s"] == 0


def test_a_policy_that_a_fresh_cluster_has(tmp_path):
    jobs = tmp_path / "jobs.csv"
    rows = "a,0,600,8,1,x,0\nb,70,50,8,1,x,5\nc,700,50,32,4,x,0\n"
    jobs.write_text(f"{HEADER.strip()},priority\n{rows}")
    found = simulate("--trace", str(jobs), "--fleet", "4x8", "--policy", "default")
    alone = simulate("--trace", str(jobs), "--fleet", "1x8", "--policy", "default")
    assert found["preempted_jobs"] == 0
    assert alone["preempted_jobs"] == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--policy", "fastest"],
            "'fastest' is no policy; write kant, native, default or QUEUEING",
        ),
        (["--fleet", "10"], "'10' is no size of a fleet"),
        (["--fleet", ""], "'' is no size of a fleet"),
        (["--policy", ""], "'' is no policy"),
        (["--fleet", "none.yaml"], "none.yaml: cannot be read"),
        (["--workload", "busy"], "'busy' is unknown; known are calibrated"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv: cannot be read"),
        (["--hours", "-1"], "--hours must be more than 0"),
        (["--cycle", "-1"], "--cycle must be at least 0 and finite, not -1"),
        (["--bind-delay", "nan"], "--bind-delay must be at least 0 and finite, not nan"),
        (["--checkpoint", "inf"], "--checkpoint must be more than 0 and finite, not inf"),
        (["--hours", "1e9"], "--hours must be at most 100000"),
        (["--hours", "1", "--warm-up-hours", "1"], "--warm-up-hours 1 leaves nothing of --hours 1"),
        (["--seed", "-1"], "--seed must be at least 0, not -1"),
    ],
)
def test_wrong_input_is_one_line(args, message):
    with pytest.raises(CommandError, match=message) as error:
        simulate(*args)
    assert "\n" not in str(error.value)


def test_a_wrong_row_stops_or_is_counted(trace):
    trace.write_text(HEADER + "a,0,100,8,2,x\nb,10,-5,4,1,y\n")
    with pytest.raises(CommandError, match=r"trace\.csv: line 3, column duration_s: is '-5'"):
        simulate("--trace", str(trace), "--fleet", "2x8")
    assert simulate("--trace", str(trace), "--fleet", "2x8", "--skip-bad")["skipped_rows"] == 1


def test_an_empty_trace(trace):
    trace.write_text("")
    with pytest.raises(CommandError, match="line 1: the trace is empty"):
        simulate("--trace", str(trace), "--fleet", "2x8")


def test_a_run_whose_files_cannot_be_written_is_printed_all_the_same(trace, tmp_path):
    (tmp_path / "summary.json").mkdir()
    out = StringIO()
    with pytest.raises(CommandError, match=r"--out .*: Is a directory; not all files are there"):
        call_command(
            "simulate", "--trace", str(trace), "--fleet", "2x8", "--json", "--out", str(tmp_path),
            stdout=out,
        )  # fmt: skip
    assert json.loads(out.getvalue())["jobs"] == 3


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(simulate_command, "Simulation", None)
    (tmp_path / "file").write_text("")
    for out, message in (
        (str(tmp_path / "file"), "file: is a file; name a folder that can be written"),
        (str(tmp_path / "file" / "below"), r"below: cannot be made \(Not a directory\)"),
        ("", "--out: must name a folder"),
    ):
        with pytest.raises(CommandError, match=message):
            simulate("--trace", str(trace), "--fleet", "2x8", "--out", out)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("> /dev/full", "CommandError: standard output: No space left on device\n"),
        (">&-", "CommandError: standard output: is closed\n"),
        ("| true", ""),
    ],
)
def test_a_standard_output_that_takes_nothing_ends_the_command_in_a_line(trace, command, message):
    run = f"{sys.executable} manage.py simulate --trace {trace} --fleet 2x8 --json {command}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {run}"], cwd=ROOT, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, message)


def test_pods_that_do_not_divide(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"id": "a", "submitted_at": 0, "duration_s": 5, "gpus": 0.5, "pods": 2}\n')
    with pytest.raises(CommandError, match=r"column gpus: is '0.5'"):
        simulate("--trace", str(path), "--fleet", "2x8")


def test_a_pod_of_openb_that_names_no_model_takes_any(tmp_path):
    fleet, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    fleet.write_text("sn,cpu_milli,memory_mib,gpu,model\na,64000,9999,2,G2\nb,64000,9999,8,T4\n")
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,"
        "scheduled_time\nlarge,1,1,8,1000,,0,100,0\nsmall,1,1,2,1000,,1,101,1\n"
    )
    found = simulate("--trace", str(pods), "--fleet", str(fleet))
    assert found["waits"]["all"]["mean_s"] == 0
    assert {name: pool["gar_mean"] for name, pool in found["pools"].items()} == {
        "G2": pytest.approx(100 / 101),
        "T4": pytest.approx(100 / 101),
    }


def test_nodes_fail_while_jobs_of_a_trace_wait_and_a_run_that_cannot_be_done_ends(trace):
    day = 86400
    # Twice as much work arrives as the fleet can do in that time.
    trace.write_text(HEADER + "".join(f"j{i},{i * day},{2 * day},8,8,x\n" for i in range(30)))
    options = ("--trace", str(trace), "--fleet", "8x8", "--faults", "stress")
    found = simulate(*options, "--checkpoint", "3600", "--out", str(trace.parent / "out"))
    assert found["states"]["SUCCEEDED"] == 30
    assert found["simulated_s"] > 60 * day
    with (trace.parent / "out" / "jobs.csv").open() as file:
        late = [row for row in csv.DictReader(file) if float(row["started_s"]) > 32 * day]
    assert sum(int(row["requeues"]) for row in late) > 0

    # Eight nodes do not stay up for ten years, and nothing is ever saved.
    trace.write_text(HEADER + f"long,0,{3650 * day},8,8,x\n")
    found = simulate(*options)
    assert (found["states"]["SUCCEEDED"], found["requeues"] > 0) == (0, True)
    assert found["simulated_s"] == 3600 * 100_000


def test_an_unsorted_trace_is_sorted_and_a_pipe_is_read_once(trace, tmp_path):
    lines = trace.read_text().splitlines(keepends=True)
    found = simulate("--trace", str(trace), "--fleet", "2x8")
    trace.write_text("".join([lines[0], *reversed(lines[1:])]))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("".join(lines),))
    writer.start()
    for path, remark in ((trace, "job b was submitted at 10 s, before the job above"), (pipe, "")):
        err = StringIO()
        again = simulate("--trace", str(path), "--fleet", "2x8", err=err)
        assert remark in err.getvalue()
        assert again["waits"] == found["waits"]
        assert again["tenants"] == found["tenants"]
    writer.join()


def test_a_sorted_trace_is_read_while_it_is_simulated(trace, monkeypatch):
    trace.write_text(HEADER + "".join(f"j{i},{i},1,1,1,\n" for i in range(100)))
    read = []

    def counted(path):
        for line in lines_of(path):
            read.append(line)
            yield line

    monkeypatch.setattr(sources, "lines_of", counted)
    source = sources.traced(trace, sources.pools_of("2x8"), None, "", BadRows())
    assert len(source.tenants) == TENANTS
    read.clear()
    assert next(source.arrivals).job.id == "j0"
    assert len(read) == 1
    assert sum(1 for _ in source.arrivals) == 99


def test_a_compressed_list_of_machines_with_its_columns_in_any_order(trace, tmp_path):
    path = tmp_path / "nodes.csv.xz"
    with lzma.open(path, "wt", encoding="utf-8-sig") as file:
        file.write("gpu,sn,cpu_milli,memory_mib,model\n8,a,64000,9999,G2\n8,b,64000,9999,G2\n")
    for fleet in (str(path), f"openb:{path}"):
        assert simulate("--trace", str(trace), "--fleet", fleet)["gpus"] == 16


def test_an_inventory_needs_no_suffix(trace, tmp_path):
    path = tmp_path / "inventory"
    path.write_text(
        "name: lab\npools:\n"
        "- {name: h, count: 2, cpu_milli: 1, memory_mib: 1, gpu_model: H100, gpus: 8}\n"
        "- {name: cpu, count: 2, cpu_milli: 1, memory_mib: 1}\n"
    )
    found = simulate("--trace", str(trace), "--fleet", str(path), "--out", str(tmp_path / "out"))
    assert (found["gpus"], set(found["pools"])) == (16, {"H100"}), "no pool without GPUs"
    with (tmp_path / "out" / "samples.csv").open() as file:
        assert {row["gpu_model"] for row in csv.DictReader(file)} <= {"H100"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ip,DSW,PSW,ASW\n\n10.0.0.1,core,spine,\n", "line 3, column ASW: is empty"),
        ('ip,DSW,PSW,ASW\n"' + 200_000 * "x", "line 2: field larger than field limit"),
        ("ip,DSW,PSW\n", "line 1: the columns ip, DSW, PSW, ASW are needed, 'ASW' is missing"),
    ],
)
def test_a_wrong_network_is_named_by_its_line(tmp_path, text, message):
    path = tmp_path / "network.csv"
    path.write_text(text)
    with pytest.raises(CommandError, match=message):
        simulate("--fleet", str(path))


def test_what_is_nested_too_deeply_is_one_line(tmp_path):
    for option, name in (("--fleet", "deep.yaml"), ("--policy", "deep.json")):
        (tmp_path / name).write_text("[" * 100_000)
        with pytest.raises(CommandError, match=f"{name}: .*is nested (far )?too deeply"):
            simulate(option, str(tmp_path / name))


def test_a_switch_on_two_levels_is_a_loop(tmp_path):
    path = tmp_path / "network.csv"
    path.write_text("ip,DSW,PSW,ASW\n10.0.0.1,core,spine,leaf\n10.0.0.2,spine,core,leaf\n")
    loop = r"network.csv: line 3, column DSW: spine stands in column PSW on line 2; .* loop"
    with pytest.raises(CommandError, match=loop):
        simulate("--fleet", str(path))


CLUSTERS = """clusters:
  east: {fleet: 1x8, labels: {data/x: local}}
  west: {fleet: 2x8, policy: native}
"""


def test_several_clusters_with_one_queue(tmp_path):
    jobs, clusters = tmp_path / "jobs.jsonl", tmp_path / "clusters.yaml"
    job = {"submitted_at": 0, "duration_s": 10, "gpus": 8, "pods": 1}
    jobs.write_text(
        "".join(
            json.dumps(job | more) + "\n"
            for more in (
                {"id": "a", "cluster_labels": {"data/x": "local"}},
                {"id": "b", "cluster": "any"},
                {"id": "c", "cluster": "west"},
                {"id": "d", "submitted_at": 1, "pods": 2},
            )
        )
    )
    clusters.write_text(CLUSTERS)
    out = tmp_path / "out"
    found = simulate("--trace", str(jobs), "--clusters", str(clusters), "--out", str(out))
    assert found["gpus"] == 24
    assert found["states"]["SUCCEEDED"] == 4
    assert set(found["pools"]) == {"H100 on east", "H100 on west"}
    placements = (out / "placements.csv").read_text().splitlines()[1:]
    assert {row.split(",")[0]: row.split(",")[3].split("/")[0] for row in placements} == {
        "a": "east", "b": "west", "c": "west", "d": "west",
    }  # fmt: skip
    assert "0.0,a,sent to east" in (out / "events.csv").read_text()


def test_a_generated_day_on_two_clusters_is_the_same_twice(tmp_path):
    clusters = tmp_path / "clusters.yaml"
    clusters.write_text("clusters: {a: {fleet: 20x8}, b: {fleet: 12x8}}")

    def once():
        args = ("--hours", "12", "--seed", "5", "--bind-delay", "5", "--faults", "stress")
        found = simulate(*args, "--clusters", str(clusters))
        for name in ("seconds", "cpu_seconds", "events_per_second", "peak_mb"):
            found.pop(name)
        return found

    first = once()
    assert first == once()
    assert first["states"]["SUCCEEDED"] > 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clusters: {}", "must be {clusters"),
        ("clusters: {A b: {fleet: 1x8}}", "clusters: A b: is no name of a cluster"),
        ("clusters: {a: {}}", "clusters: a: must be an object with fleet"),
        ("clusters: {a: {fleet: 1x8, size: 2}}", "clusters: a: size is unknown; known are fleet"),
        ("clusters: {a: {fleet: 1x8, takes_any: 1}}", "a: takes_any must be true or false"),
        ("clusters: {a: {fleet: 1x8, labels: {b: 1}}}", "a: labels must be texts by label"),
        ("clusters: {a: {fleet: nowhere}}", "clusters: a: --fleet 'nowhere'"),
        ("clusters: {a: {fleet: 1x8, policy: best}}", "clusters: a: 'best' is no policy"),
        ("clusters: {any: {fleet: 1x8}}", "a cluster cannot be called any"),
    ],
)
def test_a_wrong_list_of_clusters_is_one_line(tmp_path, text, message):
    path = tmp_path / "clusters.yaml"
    path.write_text(text)
    with pytest.raises(CommandError, match=message) as error:
        simulate("--clusters", str(path), "--hours", "1")
    assert "\n" not in str(error.value)


def test_a_trace_that_names_a_cluster_needs_the_list_of_them(tmp_path):
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(f"{HEADER.strip()},cluster\na,0,1,8,1,x,east\n")
    with pytest.raises(CommandError, match=r"job a names a cluster \(east\).*--clusters"):
        simulate("--trace", str(jobs), "--fleet", "1x8")
    labels = tmp_path / "labels.csv"
    labels.write_text(f"{HEADER.strip()},cluster_selector\na,0,1,8,1,x,zone\n")
    with pytest.raises(CommandError, match=r"column cluster_selector.*label=value"):
        simulate("--trace", str(labels), "--fleet", "1x8")
    with pytest.raises(CommandError, match="--clusters is instead of --fleet"):
        simulate("--clusters", str(jobs), "--fleet", "1x8")


@pytest.mark.parametrize(
    ("rows", "remark"),
    [
        ("a,0,10,8,1,x,\nb,10,10,8,1,x,a\nc,10,10,8,1,x,a b\n", ""),
        (
            "a,0,10,8,1,x,gone\nb,10,10,8,1,x,a gone\n",
            "1 is no job with GPUs of it (gone); it counts as ended",
        ),
        (
            "a,0,10,8,1,x,one two\nb,10,10,8,1,x,three four\n",
            "4 are no jobs with GPUs of it (one, two, three, …); they count as ended",
        ),
        ("a,0,10,8,1,x,b\nb,10,10,8,1,x,\n", "1 comes after a job that waits for it (b); it"),
        ("a,0,10,8,1,x,b\nb,0,10,8,1,x,\n", "1 comes after a job that waits for it (b); it"),
        ("b,10,10,8,1,x,\na,0,10,8,1,x,b\n", "1 comes after a job that waits for it (b); it"),
        ("b,10,10,8,1,x,a\na,0,10,8,1,x,\n", ""),
        ("cpu,0,10,0,1,x,\na,1,10,8,1,x,cpu\n", "1 is no job with GPUs of it (cpu); it counts"),
        (
            "a,0,10,8,1,x,b gone\nb,10,10,8,1,x,\n",
            "1 is no job with GPUs of it (gone) and 1 comes after a job that waits for it (b); "
            "they count as ended",
        ),
    ],
)
def test_names_that_nobody_can_wait_for_are_told_and_the_run_goes_on(trace, rows, remark):
    trace.write_text(HEADER.strip() + ",after\n" + rows)
    said = StringIO()
    found = simulate("--trace", str(trace), "--fleet", "2x8", err=said)
    told = [one for one in found["remarks"] if "after` names" in one]
    assert [remark in one for one in told] == ([True] if remark else []), found["remarks"]
    assert all(one in said.getvalue() for one in told)
    assert found["states"]["WAITING"] == 0
