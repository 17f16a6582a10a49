"""The Prometheus page parses and agrees with the tables."""

from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from metrics import selectors, services
from metrics.gpu_time import totals
from metrics.prometheus import exporter
from metrics.prometheus.queues import queue_families
from scheduling.engine.decisions import CycleStats
from scheduling.kube.seam import CallOutcome, CreateAndBind, Result
from scheduling.models import Cluster, Job, JobEvent, Placement, PodSet
from scheduling.models.jobs import PlacementState
from scheduling.session.pace import Pace
from tenants.models import GpuType, Queue, Quota, Tenant, User
from tenants.services.tokens import create_token
from tenants.web import conditional
from tests.metrics.rows import T0, at, cluster, exposition, job

pytestmark = pytest.mark.django_db
PASSES = "kant_scheduler_pass_seconds_bucket"


def values(text):
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_gauges_and_histogram():
    c = cluster(2)
    job(c, "a", submitted=0, bound=4, nodes=("n000",))
    job(c, "b", submitted=0)
    moved = {"at": at(5), "kind": "REASON", "to_state": "RUNNING", "reason": "Moved"}
    JobEvent.objects.create(job=Job.objects.get(name="a"), **moved)
    services.record_sample(c, at(10))
    found = values(exposition().decode())
    assert (
        found["kant_pending_gpus", (("cluster", "c1"), ("reason", ""), ("tenant", "vision"))] == 8
    )
    pool, size = (("cluster", "c1"), ("gpu_type", "H100")), ("size_class", "8")
    assert found["kant_job_wait_seconds_bucket", (*pool, ("le", "1.0"), size)] == 0
    assert found["kant_job_wait_seconds_bucket", (*pool, ("le", "5.0"), size)] == 1
    assert found["kant_job_wait_seconds_sum", (*pool, size)] == 4
    assert found["kant_job_events_total", (("cluster", "c1"), ("event", "moved"))] == 1
    key = (("cluster", "c1"), ("gpu_type", "H100"))
    assert found["kant_gpu_allocation_ratio", key] == 0.5
    assert found["kant_gpus", (*key, ("state", "available"))] == 16


def test_whether_and_how_a_scheduler_works(now):
    c = cluster(1)
    up = ("kant_scheduler_up", (("cluster", "c1"),))
    assert values(exposition().decode())[up] == 0
    pace = Pace()
    for seconds in (0.005, 0.006, 7.0, 11.0):
        pace.took(seconds)
    for _ in range(2):
        stats = CycleStats(walks=1, asked=3, remembered=40, attempts=2, starts=1, checked=5)
        pace.decided(stats._replace(wrong=1), 0.25)
    pace.spent("write", 1.5)
    bind = CreateAndBind("key", "default", "pod", {}, "node", {})
    for result in (Result.BOUND, Result.BOUND, Result.REFUSED):
        pace.ended(bind, CallOutcome(result))
    c.leases.create(holder="a", expires_at=now + timedelta(minutes=1), pace=pace.document())
    Cluster.objects.update(connected=True, last_cycle_at=now)
    found = values(exposition().decode())
    scope = (("cluster", "c1"), ("scope", ""))
    assert found[up] == 1
    within = {s: n for (name, labels), n in found.items() if name == PASSES for s in [labels[1][1]]}
    assert [within[s] for s in ("0.005", "0.01", "5.0", "10.0", "+Inf")] == [1, 2, 2, 3, 4]
    assert found["kant_scheduler_pass_seconds_sum", scope] == pytest.approx(18.011)
    asked = (("cluster", "c1"), ("effect", "create_and_bind"))
    for result, number in (("bound", 2), ("refused", 1)):
        key = (*asked, ("result", result), ("scope", ""))
        assert found["kant_kubernetes_effects_total", key] == number
    counts = {"walks": 2, "classes_asked": 6, "classes_remembered": 80, "attempts": 4, "starts": 2}
    counts |= {"answers_checked": 10, "answers_wrong": 2, "preemption_plans": 0}
    for name, number in counts.items():
        assert found[f"kant_scheduler_{name}_total", scope] == number
    for phase, seconds in (("decide", 0.5), ("write", 1.5)):
        key = (("cluster", "c1"), ("phase", phase), ("scope", ""))
        assert found["kant_scheduler_phase_seconds_total", key] == seconds
    # A row from a version with other buckets is counted anew.
    c.leases.update(pace={"within": [1], "passes": 1})
    found = values(exposition().decode())
    assert found["kant_scheduler_pass_seconds_count", scope] == 0


def test_a_tenant_uses_what_those_below_it_use():
    c = cluster(2)
    job(c, "a", bound=4, nodes=("n000",))
    above, below = Tenant.objects.create(name="research"), Tenant.objects.get(name="vision")
    Tenant.objects.filter(pk=below.pk).update(parent=above)
    kind = GpuType.objects.create(name="H100")
    for tenant in (above, below):
        Quota.objects.create(tenant=tenant, gpu_type=kind, guaranteed_milli=16_000)
    found = values(exposition().decode())
    for tenant in ("research", "vision"):
        key = (("gpu_type", "H100"), ("kind", "used"), ("tenant", tenant))
        assert found["kant_quota_gpus", key] == 8


def test_queues_tell_jobs_by_stage_gpus_the_oldest_wait_and_their_state(now):
    c = cluster(2)
    job(c, "a", bound=4, nodes=("n000",))
    job(c, "b")
    vision = Tenant.objects.get(name="vision")
    nightly = Queue.objects.create(
        tenant=vision, name="nightly", state="held", max_gpus={"H100": 4}
    )
    Job.objects.filter(name="b").update(
        queue="nightly", submitted_at=now - timedelta(minutes=5), reason="OnHold"
    )
    found = values(exposition().decode())

    def told(family, queue, **labels):
        key = {"tenant": "vision", "queue": queue, **labels}
        return found[f"kant_queue_{family}", tuple(sorted(key.items()))]

    assert told("jobs", "default", stage="running") == 1
    assert told("held_gpus", "default", gpu_type="H100") == 8
    assert told("jobs", "nightly", stage="tenant-queue") == 1
    assert told("jobs", "nightly", stage="global-queue") == 0
    assert (told("asked_gpus", "nightly"), told("asked_gpus", "default")) == (8, 0)
    assert told("max_gpus", "nightly", gpu_type="H100") == 4
    assert told("oldest_wait_seconds", "nightly") == 300
    assert told("oldest_wait_seconds", "default") == 0
    assert told("state", "nightly", state="held") == 1
    assert told("state", "nightly", state="open") == 0
    # Deleted objects leave no labels behind, even if jobs keep their names.
    nightly.delete()
    assert not [key for _, key in values(exposition().decode()) if ("queue", "nightly") in key]


def test_queues_cost_as_many_queries_for_many_as_for_one(django_assert_num_queries):
    cluster(1)
    for number in range(20):
        Tenant.objects.create(name=f"t{number}")
    with django_assert_num_queries(4):
        families = {family.name: family for family in queue_families()}
    assert len(families["kant_queue_oldest_wait_seconds"].samples) == Queue.objects.count()


def test_waits_are_told_by_the_pool_that_a_job_would_take_first():
    c = cluster(1)
    cluster(1, model="A100")
    job(c, "a", bound=4, nodes=("n000",))
    job(c, "b", bound=9, nodes=("n001",), model="A100")
    PodSet.objects.filter(job=job(c, "c", bound=7, nodes=("n000",))).update(gpu_models=[])
    small = PodSet.objects.get(job__name="b")
    PodSet.objects.create(job=small.job, index=1, name="cpu", count=1, gpus=0, gpu_models=["X"])
    found = values(exposition().decode())
    sums = {
        dict(labels)["gpu_type"]: value
        for (name, labels), value in found.items()
        if name == "kant_job_wait_seconds_sum"
    }
    assert sums == {"H100": 4, "A100": 9, "": 7}


def test_a_wait_as_long_as_a_bucket_is_within_it():
    c = cluster(1)
    for number, seconds in enumerate((1, 1.000001, 5, 86_400, 90_000)):
        job(c, f"j{number}", bound=seconds, nodes=("n000",))
    counted = totals.totals()
    (told,) = counted.waits.values()
    assert told.within == [1, 3, 3, 3, 3, 3, 3, 3, 3, 4]
    assert (told.count, told.sum_us) == (5, 176_407_000_001)
    assert list(counted.first_starts.values()) == [told]


def test_the_counters_of_waits_contain_no_run_time_and_pods_count_one_by_one():
    c = cluster(2)
    again = job(c, "again", bound=50, nodes=("n000",))
    Placement.objects.create(
        job=again, attempt=0, pod_set=0, ordinal=0, pod_name="again-0", node="n001",
        gpu_model="H100", held_milli=8000, intended_at=at(10), held_from=at(10), ended_at=at(40),
        state=PlacementState.RELEASED,
    )  # fmt: skip
    again.placements.filter(attempt=1).update(attempt=2)
    Job.objects.filter(pk=again.pk).update(attempt=2)
    job(c, "web", pods=2, gang=False, bound=4, nodes=("n000", "n001"))
    counted = totals.totals()
    sums = [
        {size: (w.count, w.sum_us) for (*_, size), w in found.items()}
        for found in (counted.waits, counted.first_starts)
    ]
    assert sums == [
        {"8": (1, 20_000_000), "16": (2, 8_000_000)},
        {"8": (1, 10_000_000), "16": (2, 8_000_000)},
    ]
    assert totals.fold(at(1000))
    assert totals.totals() == counted


def test_events_are_counted_in_one_pass(django_assert_num_queries):
    c = cluster(1)
    job(c, "a")
    of = Job.objects.get()
    for kind, reason in (
        ("SUBMITTED", ""),
        ("REASON", "Moved"),
        ("REASON", ""),
        ("REQUEUED", "Moved"),
    ):
        JobEvent.objects.create(job=of, at=at(1), kind=kind, to_state="PENDING", reason=reason)
    with django_assert_num_queries(9):  # the row, events, jobs, the row
        counted = totals.totals()
    assert counted.events == {str(c.pk): {"submitted": 1, "requeued": 1, "moved": 2}}


def test_placement_quality_is_that_of_rest():
    c = cluster(4, leaf_size=2)
    begun = (timezone.now() - T0).total_seconds() - 600
    job(c, "a", pods=2, submitted=begun, bound=begun, nodes=("n000", "n002"))
    services.record_sample(c, timezone.now())
    found = values(exposition().decode())
    key = (("cluster", "c1"), ("gpu_type", "H100"), ("size_class", "16"))
    assert found["kant_job_node_deviation_ratio", key] == 1
    assert found["kant_job_group_deviation_ratio", key] == 2


def test_placement_quality_of_all_pools_is_read_once_and_is_that_of_each(
    django_assert_max_num_queries,
):
    begun = (timezone.now() - T0).total_seconds() - 600
    c = cluster(4, leaf_size=2)
    cluster(2, gpus=4, model="A10", leaf_size=1)
    job(c, "a", pods=2, submitted=begun, bound=begun, nodes=("n000", "n002"))
    job(c, "b", pods=2, gpus=2, bound=begun, nodes=("n004", "n005"), model="A10")
    other = Cluster.objects.create(name="c2")
    for node in list(c.nodes.all()):
        other.nodes.create(name=node.name, gpu_model=node.gpu_model, gpus=2 * node.gpus, leaf="l")
    job(other, "c", pods=2, submitted=begun, bound=begun, nodes=("n000", "n002"))
    now = timezone.now()
    with django_assert_max_num_queries(2):
        found = selectors.jtted_by_pool(T0, now)
    assert found == {
        (where.pk, model): selectors.jtted(selectors.MetricScope(where, model, T0, now))
        for where, model in ((c, "H100"), (c, "A10"), (other, "H100"))
    }
    assert [q.group_deviation for q in found[c.pk, "H100"]] == [2]
    assert [q.node_deviation for q in found[other.pk, "H100"]] == [2]


def test_loans_are_told_by_borrower_and_lender():
    c = cluster(2)
    job(c, "a", bound=4, nodes=("n000",))
    kind, lender = GpuType.objects.create(name="H100"), Tenant.objects.create(name="speech")
    for tenant, milli in ((Tenant.objects.get(name="vision"), 3000), (lender, 8000)):
        Quota.objects.create(tenant=tenant, gpu_type=kind, guaranteed_milli=milli)
    found = values(exposition().decode())
    loan = (("borrower", "vision"), ("gpu_type", "H100"), ("lender", "speech"))
    assert found["kant_quota_loan_gpus", loan] == 5
    for tenant, what in (("vision", "borrowed"), ("speech", "lent")):
        key = (("gpu_type", "H100"), ("kind", what), ("tenant", tenant))
        assert found["kant_quota_gpus", key] == 5


def test_an_empty_installation_has_an_empty_page():
    assert values(exposition().decode()) == {}


SCRAPER = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}


def test_closed_to_strangers_where_the_setting_says_so(client, settings):
    settings.KANT_METRICS_OPEN = False
    refused = client.get("/metrics", headers=SCRAPER)
    assert (refused.status_code, refused["WWW-Authenticate"]) == (401, 'Bearer realm="kant"')
    settings.KANT_METRICS_OPEN = True
    answer = client.get("/metrics", headers=SCRAPER)
    assert (answer.status_code, answer["Content-Type"].split(";")[0]) == (200, "text/plain")


def test_the_token_of_an_operator_opens_it(client, settings):
    settings.KANT_METRICS_OPEN = False
    for name, status in (("ops", 200), ("eve", 403)):
        user = User.objects.create_user(name, password="x", is_operator=name == "ops")
        token = {"Authorization": f"Bearer {create_token(user, 'scrape').secret}"}
        assert client.get("/metrics", headers={**SCRAPER, **token}).status_code == status
        client.force_login(user)
        assert client.get("/metrics").status_code == status
        client.logout()
    wrong = {"Authorization": "Bearer kant_pat_nothing"}
    assert client.get("/metrics", headers=wrong).status_code == 401


def test_a_scrape_is_told_again_until_something_changes(monkeypatch, django_assert_max_num_queries):
    cache.clear()
    monkeypatch.setattr(conditional, "WORDS_LAST_S", 10**9)
    c = cluster(2)
    job(c, "a", submitted=0, bound=4, nodes=("n000",))
    services.record_sample(c, at(10))
    first = exporter.told()
    assert values(first.decode()) == values(exposition().decode())
    with django_assert_max_num_queries(6):
        assert exporter.told() == first
    pending = ("kant_pending_jobs", (("cluster", "c1"), ("reason", ""), ("tenant", "vision")))
    assert pending not in values(first.decode())
    waits = job(c, "b", submitted=5)
    JobEvent.objects.create(job=waits, at=at(5), kind="SUBMITTED", to_state="PENDING")
    assert values(exporter.told().decode())[pending] == 1
    services.record_sample(c, at(20))
    held = ("kant_allocated_gpu_seconds_total", (("cluster", "c1"), ("gpu_type", "H100")))
    before, after = (values(text.decode())[held] for text in (first, exporter.told()))
    assert after == before + 80
