"""A cluster's own history as a trace: what is read of it, and what `simulate` does with it."""

import json
import math
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from scheduling.engine.cluster.cluster import ClusterState
from scheduling.engine.states import JobEventKind, JobState
from scheduling.kube.translate.nodes import NodeTranslator
from scheduling.kube.translate.objects import NodeTaint
from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent, NodeRecord, PodSet
from scheduling.models.jobs import PlacementState
from scheduling.queries import history
from scheduling.services.common.lease import take_or_renew
from scheduling.services.scheduler.projection import write_nodes
from tenants.models import GpuType, Quota, Tenant
from tests.kube.test_nodes import H100, kube_node
from tests.metrics import rows

HOUR = 3600.0


@pytest.fixture
def cluster(db):
    found = rows.cluster(4, leaf_size=2)
    tenant, _ = Tenant.objects.get_or_create(name="vision")
    gpu_type = GpuType.objects.create(name="H100")
    Quota.objects.create(tenant=tenant, gpu_type=gpu_type, guaranteed_milli=64_000)
    return found


def window(cluster, since=0.0, until=1000.0):
    return history.Window(cluster, rows.at(since), rows.at(until))


def arrivals(cluster, **span):
    found = list(history.arrivals_of(window(cluster, **span)))
    names = dict(Job.objects.values_list("pk", "name"))
    names = {str(pk): name for pk, name in names.items()}
    return {names[a.job.id]: a for a in found}


def test_jobs_come_in_order_with_what_was_seen_of_them(cluster):
    rows.job(cluster, "gang", pods=2, submitted=10, bound=20, ended=120, nodes=("n000", "n001"))
    rows.job(cluster, "running", submitted=30, bound=40, nodes=("n002",))
    rows.job(cluster, "waiting", submitted=50)
    gone = rows.job(cluster, "gone", submitted=60)
    Job.objects.filter(pk=gone.pk).update(state=JobState.CANCELLED, ended_at=rows.at(75))
    failed = rows.job(cluster, "failed", submitted=80, bound=80, ended=90, nodes=("n003",))
    Job.objects.filter(pk=failed.pk).update(
        state=JobState.FAILED, declared_s=500, priority=7, kind="inference", after=["x"]
    )
    found = arrivals(cluster)
    assert list(found) == ["gang", "running", "waiting", "gone", "failed"]
    gang = found["gang"]
    assert (gang.submitted_at, gang.duration_s, gang.ends) == (10, 100, JobState.SUCCEEDED)
    assert [(s.count, s.gpus, s.gpu_models) for s in gang.job.pod_sets] == [(2, 8, ("H100",))]
    assert gang.job.tenant == "vision"
    assert found["running"].duration_s == found["waiting"].duration_s == math.inf
    assert (found["gone"].cancel_after_s, found["gone"].ends) == (15, JobState.CANCELLED)
    job = found["failed"].job
    assert (job.declared_s, job.priority, job.kind, job.after) == (500, 7, "inference", ("x",))
    assert (found["failed"].duration_s, found["failed"].ends) == (10, JobState.FAILED)


def test_pods_that_ended_apart_keep_their_own_ends(cluster):
    job = rows.job(cluster, "gang", pods=2, submitted=0, bound=0, ended=50, nodes=("n000", "n001"))
    job.placements.filter(ordinal=0).update(ended_at=rows.at(20))
    found = arrivals(cluster)["gang"]
    assert found.duration_s == 50
    assert found.pod_s == {(0, 0): 20, (0, 1): 50}


def test_of_a_job_that_started_twice_the_last_start_counts(cluster):
    job = rows.job(cluster, "twice", submitted=0, bound=0, ended=10, nodes=("n000",))
    job.placements.create(
        attempt=2, pod_set=0, ordinal=0, pod_name="twice-b", node="n001", intended_at=rows.at(30),
        ended_at=rows.at(70),
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(admitted_at=rows.at(30), ended_at=rows.at(70), attempt=2)
    assert arrivals(cluster)["twice"].duration_s == 40


def test_a_job_that_was_resized_asks_for_all_the_pods_that_it_had(cluster):
    """Each pod counts for as long as the job had it: pods that left, and pods that came later."""
    names = ("n000", "n001", "n002")
    job = rows.job(cluster, "web", pods=1, gang=False, submitted=0, bound=0, ended=90, nodes=names)
    job.placements.filter(ordinal=1).update(ended_at=rows.at(20))
    job.placements.filter(ordinal=2).update(intended_at=rows.at(40), ended_at=rows.at(50))
    found = arrivals(cluster)["web"]
    assert [s.count for s in found.job.pod_sets] == [3]
    assert found.pod_s == {(0, 0): 90, (0, 1): 20, (0, 2): 10}
    # Whole slices only.
    job.pod_sets.update(slice_size=2, count=2, required_level="leaf")
    assert [s.count for s in arrivals(cluster)["web"].job.pod_sets] == [4]


def test_a_replica_that_was_moved_counts_from_its_first_place(cluster):
    job = rows.job(cluster, "moved", submitted=0, bound=0, ended=50, nodes=("n000",))
    (first,) = job.placements.all()
    job.placements.update(ended_at=rows.at(12), state=PlacementState.RELEASED)
    job.placements.create(
        attempt=2, pod_set=0, ordinal=0, pod_name="moved-b", node="n001",
        intended_at=rows.at(12), ended_at=rows.at(50),
    )  # fmt: skip
    JobEvent.objects.create(
        job=job, at=rows.at(10), kind=JobEventKind.REASON, reason="Moved", to_state="RUNNING",
        evidence={"pod_set": 0, "ordinal": 0, "which": first.pod_name},
    )  # fmt: skip
    found = arrivals(cluster)["moved"]
    assert found.duration_s == 50
    assert found.leaves_s == {(0, 0): (2,)}


def test_who_is_cancelled_while_he_waits_again_gives_up_then(cluster):
    job = rows.job(cluster, "victim", submitted=5, bound=5, nodes=("n000",))
    job.placements.update(ended_at=rows.at(12), state=PlacementState.RELEASED)
    Job.objects.filter(pk=job.pk).update(state=JobState.CANCELLED, ended_at=rows.at(30))
    found = arrivals(cluster)["victim"]
    assert (found.duration_s, found.cancel_after_s) == (math.inf, 25)
    carried = arrivals(cluster, since=10)["victim"]
    assert carried.job.submitted_at + carried.cancel_after_s == pytest.approx(20)


def test_who_began_anew_and_is_cancelled_would_have_run_on(cluster):
    job = rows.job(cluster, "again", submitted=0, bound=0, nodes=("n000",))
    job.placements.update(ended_at=rows.at(12), state=PlacementState.RELEASED)
    JobEvent.objects.create(
        job=job, at=rows.at(10), kind=JobEventKind.PREEMPTED, reason="Preempted",
        to_state="PENDING",
    )  # fmt: skip
    job.placements.create(
        attempt=2, pod_set=0, ordinal=0, pod_name="again-b", node="n001",
        intended_at=rows.at(20), ended_at=rows.at(32),
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(
        state=JobState.CANCELLED, admitted_at=rows.at(20), ended_at=rows.at(30), attempt=2
    )
    found = arrivals(cluster)["again"]
    assert (found.duration_s, found.pod_s, found.cancel_after_s) == (math.inf, None, 32)


def test_pods_that_had_to_go_are_known_by_name_however_they_ended(cluster):
    nodes = ("n000", "n001", "n002")
    job = rows.job(cluster, "web", pods=3, submitted=0, bound=0, nodes=nodes)
    job.placements.update(ended_at=rows.at(12), state=PlacementState.SUCCEEDED)
    first, second, _ = job.placements.order_by("ordinal")
    for pod, at in ((first, 8), (second, 11)):
        JobEvent.objects.create(
            job=job, at=rows.at(at), kind=JobEventKind.REASON, reason="Preempted",
            to_state="RUNNING", evidence={"which": pod.pod_name},
        )  # fmt: skip
    assert arrivals(cluster)["web"].leaves_s == {(0, 0): (4,), (0, 1): (1,)}


def test_how_long_a_victim_took_to_go_each_time(cluster):
    job = rows.job(cluster, "victim", pods=2, bound=0, ended=12, nodes=("n000", "n001"))
    again = rows.job(cluster, "quick", bound=0, ended=20, nodes=("n002",))
    job.placements.filter(ordinal=0).update(ended_at=rows.at(10.5))
    for i, (begun, ended) in enumerate(((30, 45), (60, 90))):
        job.placements.create(
            attempt=2 + i, pod_set=0, ordinal=0, pod_name=f"victim-{i}", node="n001",
            intended_at=rows.at(begun), ended_at=rows.at(ended),
        )  # fmt: skip
    job.placements.filter(attempt__lt=3).update(state=PlacementState.RELEASED)
    Job.objects.filter(pk=job.pk).update(admitted_at=rows.at(60), ended_at=rows.at(90), attempt=3)
    for victim, at in ((job, 10), (job, 41), (again, 20)):
        JobEvent.objects.create(
            job=victim, at=rows.at(at), kind=JobEventKind.PREEMPTED, reason="Preempted",
            to_state="PENDING",
        )  # fmt: skip
    found = arrivals(cluster)
    assert found["victim"].leaves_s == {(0, 0): (0.5, 4), (0, 1): (2,)}
    assert found["victim"].duration_s == 30
    assert found["quick"].leaves_s is None, "its pod was gone by then"


def test_what_was_there_before_the_window_comes_first(cluster):
    rows.job(cluster, "new", submitted=500, bound=500, ended=600, nodes=("n003",))
    rows.job(cluster, "second", submitted=390)
    rows.job(cluster, "over", submitted=1, bound=2, ended=300, nodes=("n000",))
    rows.job(cluster, "first", submitted=380)
    old = rows.job(cluster, "old", submitted=100, bound=100, ended=700, nodes=("n001",))
    Job.objects.filter(pk=old.pk).update(declared_s=900)
    found = arrivals(cluster, since=400)
    assert list(found) == ["old", "first", "second", "new"]
    assert found["old"].submitted_at == history.RUNNING_AT
    assert found["old"].submitted_at + found["old"].duration_s == 300, "it ends when it ended"
    assert found["old"].job.declared_s == 900 - (400 + history.RUNNING_AT - 100)
    assert history.WAITING_AT < found["first"].submitted_at < found["second"].submitted_at < 0
    assert found["new"].submitted_at == 100


def test_when_the_scheduler_heard_of_a_job_and_when_it_was_let_go(cluster):
    heard, held = rows.job(cluster, "heard", submitted=10), rows.job(cluster, "held", submitted=10)
    released = rows.job(cluster, "released", submitted=10)
    for job, kind, at in (
        (heard, JobEventKind.SUBMITTED, 10),
        (heard, JobEventKind.QUOTA_RESERVED, 10.5),
        (heard, JobEventKind.REASON, 11),
        (released, JobEventKind.RELEASED, 42),
    ):
        JobEvent.objects.create(job=job, at=rows.at(at), kind=kind, to_state="PENDING")
    Job.objects.filter(pk=held.pk).update(held=True)
    found = arrivals(cluster)
    assert [found[n].heard_after_s for n in ("heard", "held")] == [0.5, 0]
    assert [found[n].not_before for n in ("heard", "held", "released")] == [
        -math.inf,
        math.inf,
        42,
    ]


def test_jobs_are_read_as_they_are_needed(cluster, django_assert_num_queries, monkeypatch):
    monkeypatch.setattr(history, "CHUNK", 3)
    for i in range(10):
        rows.job(cluster, f"job-{i}", submitted=i // 4)
    reading = history.arrivals_of(window(cluster))
    # Keys of earlier rows, twice, and of the rest; jobs and pod sets; events.
    with django_assert_num_queries(2 + 1 + 2 + 2):
        first = next(reading)
    found = [first, *reading]
    assert len({a.job.id for a in found}) == 10
    assert [a.submitted_at for a in found] == [i // 4 for i in range(10)]


def test_a_row_that_makes_no_sense_is_named(cluster):
    job = rows.job(cluster, "bad", submitted=1)
    job.pod_sets.all().delete()
    (found,) = history.arrivals_of(window(cluster))
    assert isinstance(found, history.HistoryError)
    assert str(found) == f"job {job.pk}: cannot be read (the job has no pod set)"


def test_nodes_are_those_the_scheduler_decides_by(db):
    labels = {**H100, "nvidia.com/gpu.memory": "81559", "network.topology.nvidia.com/leaf": "l1"}
    notes = {"kant.io/unhealthy-gpus": "[2]", "kant.io/nics": "4", "kant.io/unhealthy-nics": "[1]"}
    translator = NodeTranslator({})
    node_facts = [
        translator.translate(kube_node("a", labels, notes)),
        translator.translate(
            kube_node("b", unschedulable=True, taints=[NodeTaint("team", "x", "NoSchedule")])
        ),
        translator.translate(kube_node("c", {}, capacity={"cpu": "8", "memory": "16Gi"})),
    ]
    cluster = Cluster.objects.create(name="c")
    lease = take_or_renew(cluster.pk, "a", now=rows.T0, seconds=15)
    state = ClusterState()
    for facts in node_facts:
        state.upsert_node(facts.node)
    write_nodes(lease, state, node_facts, set(), rows.T0)
    for found, facts in zip(history.nodes_of(cluster), node_facts, strict=True):
        node = facts.node
        assert [(d.index, d.numa, d.healthy, d.memory_mib) for d in found.devices] == [
            (d.index, d.numa, d.healthy, d.memory_mib) for d in node.devices
        ]
        for name in (
            "name", "gpu_model", "nics", "topology", "hyper_node", "labels", "taints", "cpu_milli",
            "memory_mib", "max_pods", "extended", "schedulable", "link_model", "zone",
        ):  # fmt: skip
            assert getattr(found, name) == getattr(node, name), name


# --- the command ----------------------------------------------------------------------------------
def simulate(*args):
    out = StringIO()
    call_command("simulate", "--from-history", *args, "--json", stdout=out, stderr=StringIO())
    return json.loads(out.getvalue())


def seconds(instant):
    return (instant - rows.T0).total_seconds()


@pytest.fixture
def recent(cluster):
    """Two jobs that fill the cluster one after the other, starting two hours ago."""
    start = seconds(timezone.now()) - 2 * HOUR
    nodes = tuple(f"n{i:03}" for i in range(4))
    rows.job(cluster, "x", pods=4, submitted=start, bound=start, ended=start + 600, nodes=nodes)
    rows.job(
        cluster, "y", pods=4, submitted=start + 60, bound=start + 600, ended=start + 900,
        nodes=nodes,
    )  # fmt: skip
    return rows.at(start)


def test_the_history_is_simulated_on_the_clusters_own_nodes(recent):
    rows.job(Cluster.objects.get(), "z", pods=1, submitted=seconds(recent) + 1700)
    found = simulate("--since", recent.isoformat(), "--hours", "0.5")
    assert (found["fleet"], found["gpus"], found["policy"]) == ("c1", 32, "the cluster's own")
    states = {"WAITING": 0, "RUNNING": 1, "SUCCEEDED": 2, "FAILED": 0, "CANCELLED": 0}
    assert found["states"] == states
    assert found["waits"]["32"]["mean_s"] == pytest.approx((0 + 540) / 2, abs=1e-3)
    assert found["pools"]["H100"]["sor"] == pytest.approx((900 + 100 / 4) / 1800, abs=1e-3)
    assert found["jtted"]["32"] == {"jobs": 2, "nodes": 1.0, "groups": 1.0}


def test_a_job_that_takes_any_gpu_is_judged_by_the_one_it_got(recent):
    PodSet.objects.update(gpu_models=[])
    found = simulate("--since", recent.isoformat())
    assert found["jtted"]["32"] == {"jobs": 2, "nodes": 1.0, "groups": 1.0}


def test_what_was_held_before_counts_under_a_policy_that_counts_it(recent):
    cluster, start = Cluster.objects.get(), seconds(recent)
    nodes = tuple(f"n{i:03}" for i in range(4))
    times = {"submitted": start - 700, "bound": start - 700, "ended": start - 100}
    rows.job(cluster, "before", pods=4, **times, nodes=nodes)
    times = {"submitted": start + 120, "bound": start + 900, "ended": start + 1000}
    rows.job(cluster, "z", pods=4, **times, nodes=nodes)
    for name, tenant in (("x", "third"), ("z", "law")):
        Job.objects.filter(name=name).update(tenant=Tenant.objects.create(name=tenant))
    for tenant in Tenant.objects.exclude(quotas__isnull=False):
        Quota.objects.create(
            tenant=tenant, gpu_type=GpuType.objects.get(), guaranteed_milli=1_000_000
        )
    policy = ClusterPolicy.objects.create(cluster=cluster, document={"fair_share": True})
    found = simulate("--since", recent.isoformat())
    assert found["waits"]["32"]["mean_s"] == pytest.approx((540 + 780) / 3, abs=1e-3)
    policy.document["usage_half_life_s"] = 600
    policy.save()
    found = simulate("--since", recent.isoformat())
    assert found["waits"]["32"]["mean_s"] == pytest.approx((640 + 480) / 3, abs=1e-3)


def test_another_fleet_and_policy_may_be_asked_for(recent):
    found = simulate("--since", "3h", "--fleet", "8x8", "--policy", "native")
    assert found["gpus"] == 64
    assert found["waits"]["32"]["mean_s"] == 0
    assert found["hours"] == pytest.approx(3)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--from-history needs --since"),
        (
            ["--since", "yesterday"],
            "--since 'yesterday' is not a time: write one like 2026-11-20T08",
        ),
        (["--since", "2999-01-01"], "--since '2999-01-01' lies in the future; it is"),
        (["--since", "1m"], r"--since: no job waited or ran in cluster c1 from .*; the last one"),
        (
            ["--since", "2020-01-01", "--hours", "1"],
            "no job waited or ran in cluster c1 from 2020-01-01 00:00:00 to 2020-01-01 01:00:00",
        ),
        (["--since", "1h", "--cluster", "no"], "--cluster 'no' is unknown; known are c1"),
        (["--since", "1h", "--trace", "x"], "not allowed with argument"),
    ],
)
@pytest.mark.usefixtures("recent")
def test_wrong_input_is_one_line(args, message):
    with pytest.raises(CommandError, match=message) as error:
        simulate(*args)
    assert "\n" not in str(error.value)


def test_a_cluster_has_to_be_named_among_several_and_to_have_nodes(recent):
    Cluster.objects.create(name="c2")
    with pytest.raises(CommandError, match="--cluster: name one of c1, c2"):
        simulate("--since", "3h")
    NodeRecord.objects.all().delete()
    with pytest.raises(CommandError, match="cluster c1: has no GPUs"):
        simulate("--since", "3h", "--cluster", "c1")


def test_since_is_for_a_history_only():
    with pytest.raises(CommandError, match="--since is for --from-history only"):
        call_command("simulate", "--since", "1h")


def test_jobs_older_than_the_window_are_left_out_of_waits(recent):
    found = simulate("--since", (recent + timedelta(seconds=30)).isoformat(), "--hours", "0.5")
    assert found["jobs"] == 1, "the other one had been submitted before"
    assert found["waits"]["32"]["mean_s"] == pytest.approx(540, abs=1e-3)
    assert found["pools"]["H100"]["sor"] == pytest.approx(1.0), "until nothing is left to happen"
