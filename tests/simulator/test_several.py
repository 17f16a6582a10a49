"""One queue over several simulated clusters, on runs small enough to work out by hand."""

from dataclasses import replace

import pytest

from scheduling.engine.states import JobState
from scheduling.engine.types import Policy, QueueSpec, QuotaSpec, TenantSpec
from scheduling.simulator.journal import RunJournal
from scheduling.simulator.model import ClusterOfRun, HardwareFault, Settings
from scheduling.simulator.run import TraceError
from scheduling.simulator.several import SeveralClusters
from tests.simulator.runs import arrival, machines, rows, simulation


def cluster(name, nodes=1, policy=None, **more):
    named = tuple(replace(node, name=f"{name}/{node.name}") for node in machines(nodes))
    return ClusterOfRun(name, named, policy or Policy(), **more)


def run_on(clusters, arrivals, *, quota=10**9, settings=None, **more):
    """Return the outcome, and where each job was sent: {job: [(instant, cluster), …]}."""
    journal = RunJournal()
    tenants = (TenantSpec("a"), TenantSpec("b"))
    quotas = tuple(QuotaSpec(t.id, "H100", quota, borrow_limit=0) for t in tenants)
    outcome = SeveralClusters(
        clusters, arrivals, tenants=tenants, quotas=quotas, journal=journal,
        settings=settings or Settings(), **more,
    ).run()  # fmt: skip
    sent = {}
    for at, row, event in journal.events:
        if event.startswith("sent to "):
            job = outcome.observer.jobs.ids[row]
            sent.setdefault(job, []).append((at, event.removeprefix("sent to ")))
    return outcome, sent


def test_a_job_goes_where_it_starts_at_once():
    arrivals = [replace(arrival("x", 0, 100), cluster="east"), arrival("y", 10, 50)]
    out, sent = run_on([cluster("east"), cluster("west")], arrivals)
    assert rows(out) == {"x": (0, 100, "SUCCEEDED"), "y": (10, 60, "SUCCEEDED")}
    assert sent == {"x": [(0, "east")], "y": [(10, "west")]}
    assert {name: p.milli_s for name, p in out.pools.items()} == {
        "H100 on east": 8000 * 100,
        "H100 on west": 8000 * 50,
    }


def test_it_goes_to_the_larger_room_and_labels_go_before_room():
    clusters = [cluster("east", labels={"data/x": "local"}), cluster("west", nodes=2)]
    near = replace(arrival("near", 0, 10, gpus=4), cluster_labels={"data/x": "local"})
    must = replace(arrival("must", 20, 10), cluster_selector={"data/x": "local"})
    other = replace(arrival("other", 40, 10), cluster_selector={"data/x": "remote"})
    out, sent = run_on(clusters, [near, arrival("far", 0, 10), must, other])
    assert [sent.get(name) for name in ("near", "far", "must", "other")] == [
        [(0, "east")], [(0, "west")], [(20, "east")], None,
    ]  # fmt: skip
    assert out.never == {"other": "east: it lacks the label data/x=remote; west: it lacks the "
                         "label data/x=remote"}  # fmt: skip
    assert rows(out)["other"][2] == "FAILED"


def test_it_goes_to_no_cluster_that_can_never_run_it():
    out, sent = run_on([cluster("east"), cluster("west", nodes=2)], [arrival("x", 0, 9, pods=2)])
    assert sent == {"x": [(0, "west")]}
    assert rows(out)["x"] == (0, 9, "SUCCEEDED")


def test_a_job_that_waits_moves_when_another_cluster_frees_up():
    long, short = (replace(arrival(n, 0, d), cluster=c) for n, d, c in
                   (("long", 1000, "east"), ("short", 50, "west")))  # fmt: skip
    busy = replace(arrival("busy", 1, 40), cluster="west")
    out, sent = run_on([cluster("east"), cluster("west")], [long, short, busy, arrival("x", 2, 5)])
    # No job waits on east, so x waits there; west is free once busy has ended.
    assert sent["x"] == [(2, "east"), (90, "west")]
    assert rows(out)["x"] == (90, 95, "SUCCEEDED")


def test_it_stays_thirty_seconds_where_it_was_sent_though_nothing_else_happens():
    arrivals = [
        replace(arrival("x", 0, 1000), cluster="east"),
        replace(arrival("y", 0, 10), cluster="west"),
        arrival("z", 5, 5),
    ]
    clusters = [cluster("east"), cluster("west")]
    out, sent = run_on(clusters, arrivals)
    assert sent["z"] == [(5, "east"), (35, "west")]
    assert rows(out)["z"] == (35, 40, "SUCCEEDED")


def test_named_jobs_and_those_that_had_a_place_stay():
    arrivals = [
        replace(arrival("x", 0, 1000), cluster="east"),
        replace(arrival("named", 1, 5), cluster="east"),
        arrival("other", 50, 1000),
        replace(arrival("there", 60, 20), cluster="west"),
    ]
    clusters = [cluster("east"), cluster("west")]
    out, sent = run_on(clusters, arrivals)
    assert sent["named"] == [(1, "east")]
    assert rows(out)["named"][0] == 1000
    # After a fault the job waits on the cluster where it ran.
    faulty = [cluster("east", faults=[HardwareFault(10, "east/n000", 500)]), cluster("west")]
    out, sent = run_on(faulty, [arrival("x", 0, 100)])
    assert sent["x"] == [(0, "east")]
    assert rows(out)["x"] == (510, 610, "SUCCEEDED")


def test_a_cluster_in_maintenance_gets_only_jobs_that_name_it():
    clusters = [cluster("east", nodes=2, takes_any=False), cluster("west")]
    named = replace(arrival("z", 0, 5), cluster="east")
    arrivals = [arrival("x", 0, 40), arrival("y", 0, 40), named]
    out, sent = run_on(clusters, arrivals)
    assert sent == {"x": [(0, "west")], "y": [(0, "west")], "z": [(0, "east")]}
    assert rows(out)["y"][0] == 40


def test_quota_counts_over_all_clusters_and_what_comes_back_starts_others():
    clusters = [cluster("east"), cluster("west")]
    arrivals = [arrival("x", 0, 40), replace(arrival("y", 1, 10), cluster="west")]
    out, _ = run_on(clusters, arrivals, quota=8000)
    assert rows(out) == {"x": (0, 40, "SUCCEEDED"), "y": (40, 50, "SUCCEEDED")}
    # Jobs on two clusters wait for the same quota; one of them gets it.
    arrivals.append(replace(arrival("z", 2, 10), cluster="east"))
    out, _ = run_on(clusters, arrivals, quota=8000)
    assert sorted(row[:2] for row in rows(out).values()) == [(0, 40), (40, 50), (50, 60)]


def test_a_job_goes_where_those_are_that_it_waits_for():
    arrivals = [
        replace(arrival("x", 0, 40), cluster="west"),
        replace(arrival("y", 0, 80), cluster="east"),
        arrival("after-x", 1, 5, after=("x",)),
        arrival("after-both", 2, 5, after=("x", "y")),
    ]
    clusters = [cluster("east", nodes=3), cluster("west")]
    out, sent = run_on(clusters, arrivals)
    assert sent["after-x"] == [(1, "west")]
    assert rows(out)["after-x"][0] == 40
    assert sent["after-both"] == [(40, "east")]
    assert rows(out)["after-both"][0] == 80


def test_a_failed_job_that_comes_again_is_sent_anew():
    failing = arrival("x", 0, 10, ends=JobState.FAILED, resubmit_after_s=5)
    arrivals = [failing, replace(arrival("y", 12, 100), cluster="east")]
    _, sent = run_on([cluster("east"), cluster("west")], arrivals)
    assert sent["x"] == [(0, "east")]
    assert sent["x+"] == [(15, "west")]


def test_one_cluster_alone_runs_as_it_would_by_itself():
    """A single cluster gives the same starts and ends as a plain run, with random arrivals and no
    preemption."""
    jobs = [
        arrival(f"j{i}", i * 7 % 50 + i, 10 + i * 13 % 90, gpus=1 + i * 5 % 8) for i in range(60)
    ]
    jobs.sort(key=lambda one: one.submitted_at)
    alone = simulation(jobs, nodes=3).run()
    named = replace(cluster("east"), nodes=machines(3))
    out, _ = run_on([named], jobs)
    assert rows(out) == rows(alone)
    assert out.pools["H100 on east"].milli_s == alone.pools["H100"].milli_s


def test_what_cannot_be_run():
    with pytest.raises(TraceError, match="job x: cluster north is unknown; known are east"):
        run_on([cluster("east")], [replace(arrival("x", 0, 1), cluster="north")])
    with pytest.raises(ValueError, match="cluster east appears twice"):
        run_on([cluster("east"), cluster("east", nodes=2)], [])
    with pytest.raises(ValueError, match="cannot be called any"):
        run_on([cluster("any")], [])
    with pytest.raises(ValueError, match="leave out --cycle"):
        run_on([cluster("east")], [], settings=Settings(cycle_s=5.0))
    with pytest.raises(ValueError, match="queue a/q has limits"):
        run_on([cluster("east")], [], queues=(QueueSpec("a", "q", max_running=1),))


def test_quota_that_many_jobs_of_two_clusters_wait_for_is_never_exceeded():
    clusters = [cluster("east", nodes=2), cluster("west", nodes=2)]
    arrivals = [
        replace(arrival(f"j{n}", n, 20 + n, gpus=4), cluster=("east", "west", "any")[n % 3])
        for n in range(24)
    ]
    out, _ = run_on(clusters, arrivals, quota=12_000)
    found = rows(out).values()
    assert {state for *_, state in found} == {"SUCCEEDED"}
    for at, *_ in found:
        assert sum(begin <= at < end for begin, end, _ in found) <= 3
