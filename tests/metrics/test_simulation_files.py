"""What `simulate --out` writes: other code can recompute every figure from it."""

import csv
import importlib.util
import json
import math
import random
from collections import defaultdict

import pytest
from django.core.management import CommandError, call_command

from metrics import definitions


def table(path):
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return [{k: number(v) for k, v in row.items()} for row in rows]


def number(text):
    try:
        return float(text) if text else None
    except ValueError:
        return text


def trace(path, seed):
    rng, at = random.Random(seed), 0.0
    lines = ["id,submitted_at,duration_s,gpus,pods,tenant,priority,kind,declared_s,ends,after"]
    for i in range(120):
        at += rng.choice((0, 20, 90, 400))
        pods, gpus = rng.choice(((1, 0.5), (1, 1), (1, 8), (2, 4), (3, 8), (1, 2)))
        kind = rng.choice(("training", "training", "inference", "development"))
        after = f"j{rng.randrange(i)}" if i and rng.random() < 0.1 else ""
        lines.append(
            f"j{i},{at},{rng.choice((60, 600, 3000))},{gpus},{pods},{rng.choice('abc')},"
            f"{rng.choice((0, 0, 0, 7))},{kind},,{rng.choice(('', '', 'FAILED'))},{after}"
        )
    lines.append(f"huge,{at + 1},60,8,40,a,0,training,,,")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def results(tmp_path, request):
    trace(tmp_path / "trace.csv", request.param)
    (tmp_path / "policy.json").write_text('{"preemption": ["priority"], "queueing": "backfill"}')
    call_command(
        "simulate", "--trace", str(tmp_path / "trace.csv"), "--fleet", "4x8", "--policy",
        str(tmp_path / "policy.json"), "--out", str(tmp_path / "out"), "--hours", "6",
        "--warm-up-hours", "0.5", "--evict-delay", "7", "--bind-delay", "3", "--restart-cost", "5",
        "--faults", "stress", "--seed", str(request.param), "--parquet", "--json",
    )  # fmt: skip
    return tmp_path / "out"


@pytest.mark.parametrize("results", range(3), indirect=True)
def test_every_figure_follows_from_the_tables(results):
    said = json.loads((results / "summary.json").read_text())
    jobs, placements, nodes, losses, events, samples = (
        table(results / f"{name}.csv")
        for name in ("jobs", "placements", "nodes", "losses", "events", "samples")
    )
    since, until = said["counted_from_s"], said["ended_at_s"]
    for row in [*jobs, *placements]:
        for key in ("ended_s", "end_s"):
            if key in row and row[key] is None:
                row[key] = math.inf
    assert len(jobs) > 100
    _pools(said, since, until, placements, nodes, losses)
    counted = [job for job in jobs if job["submitted_s"] >= since]
    assert said["jobs"] == len(counted)
    states = defaultdict(int)
    for job in counted:
        states[job["state"]] += 1
    assert {name: count for name, count in said["states"].items() if count} == states
    assert said["never_runnable"] == sum(job["never_runnable"] for job in jobs) == 1
    since_then = [event for event in events if event["at_s"] >= since]
    kinds = {"preempted": "preemptions", "moved": "moves", "requeued": "requeues"}
    for kind, key in kinds.items():
        assert said[key] == sum(event["event"] == kind for event in since_then)
    preempted = {event["job"] for event in since_then if event["event"] == "preempted"}
    assert (said["preempted_jobs"], said["jobs_present"]) == (
        len(preempted),
        sum(not job["ended_s"] < since for job in jobs),
    )
    assert said["preemptions"]
    held = defaultdict(list)
    for p in placements:
        held[p["job"]].append(p)
    may_run = [job for job in counted if not job["never_runnable"]]
    _waits(said, until, may_run, held)
    _jtted(said, may_run, held, nodes)
    _tenants(said, since, until, jobs, may_run, held)
    medians = {"gar_median": "gar", "sor_median": "sor", "gfr_median": "gfr"}
    for model, pool in said["pools"].items():
        for key, column in medians.items():
            known = sorted(
                s[column] for s in samples if s["gpu_model"] == model and s[column] is not None
            )
            middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
            assert pool[key] == pytest.approx(middle, abs=1e-6)


def _pools(said, since, until, placements, nodes, losses):
    """Check GAR, SOR, GFR, GPU-hours and losses by walking through all instants."""
    model_of = {row["node"]: row["gpu_model"] for row in nodes}
    changes = [(p["begin_s"], p["node"], p["gpu_milli"]) for p in placements]
    changes += [(p["end_s"], p["node"], -p["gpu_milli"]) for p in placements]
    facts = sorted(nodes, key=lambda row: row["at_s"])
    instants = sorted({at for at, *_ in changes if at < until} | {r["at_s"] for r in facts})
    changes.sort()
    allocated, state, i, k = defaultdict(float), {}, 0, 0
    sums = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for at, after in zip(instants, [*instants[1:], until], strict=True):
        while i < len(changes) and changes[i][0] <= at:
            allocated[changes[i][1]] += changes[i][2]
            i += 1
        while k < len(facts) and facts[k]["at_s"] <= at:
            state[facts[k]["node"]] = facts[k]
            k += 1
        span = max(0.0, min(after, until) - max(at, since))
        for name, row in state.items():
            offered = row["healthy_gpus"] * 1000 if row["schedulable"] else 0
            pool = sums[model_of[name]]
            pool[0] += allocated[name] * span
            pool[1] += max(offered, allocated[name]) * span
            pool[2] += (0 < allocated[name] < offered) * span
            pool[3] += (offered > 0) * span
    for model, pool in said["pools"].items():
        held, offered, fragmented, in_service = sums[model]
        assert pool["gar_mean"] == pool["sor"] == pytest.approx(held / offered)
        assert pool["gfr_mean"] == pytest.approx(fragmented / in_service)
        assert pool["gpu_hours"] == pytest.approx(held / 3.6e6)
    lost = sum(
        row["gpu_milli"] * (max(row["end_s"], since) - max(row["begin_s"], since)) for row in losses
    )
    assert said["lost_gpu_hours"] == pytest.approx(lost / 3.6e6)
    assert lost > 0


def _waits(said, until, jobs, held):
    sizes = defaultdict(list)
    for job in jobs:
        for wait in _of_job(job, held, until):
            sizes[definitions.size_class(round(job["gpus"] * 1000))].append(wait)
            sizes["all"].append(wait)
    assert said["waits"].keys() == sizes.keys()
    for size, waits in sizes.items():
        _is_curve(said["waits"][size], [(w, placed) for w, placed, *_ in waits])
        _is_curve(said["waits"][size]["first_start"], [(f, started) for *_, f, started in waits])


def _of_job(job, held, until):
    """Return (waited, has its place, until the first start, started) of the gang, or of each
    pod."""
    over = min(job["ended_s"], until)
    mine = held[job["id"]]
    units = [mine]
    if not job["gang"]:
        units = [[p for p in mine if p["ordinal"] == n] for n in range(int(job["pods"]))]
    for places in units:
        waited, free_from, lost = 0.0, job["submitted_s"], True
        for p in sorted(places, key=lambda p: p["begin_s"]):
            waited += max(0.0, p["begin_s"] - free_from)
            if p["end_s"] >= free_from:
                lost = (
                    bool(p["lost"])
                    if p["end_s"] > free_from or free_from == p["begin_s"]
                    else (lost and bool(p["lost"]))
                )
            free_from = max(free_from, p["end_s"])
        placed = bool(places) and (not lost or free_from > over)
        first = min((p["begin_s"] for p in places), default=over) - job["submitted_s"]
        yield waited if placed else waited + over - free_from, placed, first, bool(places)


def _is_curve(said, waits):
    """Check a curve against Kaplan-Meier by hand."""
    left, share, mean, before = len(waits), 1.0, 0.0, 0.0
    within = {}
    for time in sorted({w for w, _ in waits}):
        here = [seen for w, seen in waits if w == time]
        mean += share * (time - before)
        share *= 1 - sum(here) / left
        left -= len(here)
        before = time
        for name, part in (("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99)):
            if 1 - share >= part - 1e-12:
                within.setdefault(name, time)
    assert (said["jobs"], said["waiting"]) == (len(waits), sum(not seen for _, seen in waits))
    assert said["mean_s"] == pytest.approx(mean)
    for name in ("p50_s", "p90_s", "p99_s"):
        assert said[name] == pytest.approx(within.get(name))


def _jtted(said, jobs, held, nodes):
    group_of = {row["node"]: row["group"] for row in nodes}
    members = defaultdict(int)
    for group in group_of.values():
        members[group] += 1
    found = defaultdict(list)
    for job in jobs:
        start = job["started_s"]
        if start is None:
            continue
        places = [p for p in held[job["id"]] if p["begin_s"] <= start < p["end_s"]]
        used = {p["node"] for p in places}
        fewest = math.ceil(math.ceil(job["gpus"]) / 8)
        groups = math.ceil(fewest / max(members.values()))
        size = definitions.size_class(round(job["gpus"] * 1000))
        found[size].append((len(used) / fewest, len({group_of[n] for n in used}) / groups))
    assert said["jtted"].keys() == found.keys()
    for size, rows in found.items():
        by_nodes, by_groups = (sum(column) / len(rows) for column in zip(*rows, strict=True))
        row = said["jtted"][size]
        assert (row["jobs"], row["nodes"], row["groups"]) == pytest.approx(
            (len(rows), by_nodes, by_groups)
        )


def _tenants(said, since, until, jobs, may_run, held):
    for tenant, row in said["tenants"].items():
        milli_s = sum(
            p["gpu_milli"] * max(0.0, min(p["end_s"], until) - max(p["begin_s"], since))
            for job in jobs
            if job["tenant"] == tenant
            for p in held[job["id"]]
        )
        assert row["gpu_hours"] == pytest.approx(milli_s / 3.6e6)
        mine = [job for job in may_run if job["tenant"] == tenant]
        waits = [wait for job in mine for wait in _of_job(job, held, until)]
        _is_curve(row, [(w, placed) for w, placed, *_ in waits])


@pytest.mark.parametrize("results", [5], indirect=True)
def test_parquet_holds_what_the_csv_holds(results):
    from pyarrow import parquet

    for path in sorted(results.glob("*.csv")):
        rows = parquet.read_table(path.with_suffix(".parquet")).to_pylist()
        with path.open() as file:
            texts = list(csv.DictReader(file))
        told = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
        assert told == texts, path.name


def test_without_the_package_parquet_is_refused_before_the_run(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "metrics.simulate.files.find_spec",
        lambda name: None if name == "pyarrow" else find(name),
    )
    with pytest.raises(CommandError, match=r"pip install -r requirements-parquet\.txt"):
        call_command("simulate", "--hours", "1", "--out", str(tmp_path / "out"), "--parquet")
    with pytest.raises(CommandError, match="--parquet needs --out"):
        call_command("simulate", "--hours", "1", "--parquet")
    assert not (tmp_path / "out").exists()
