"""A pass needs as many database statements for many pods as for few."""

import math
import time
from types import SimpleNamespace

import pytest
from django.conf import settings
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from msgspec.structs import replace

from scheduling.engine.types import Device, Node
from scheduling.kube.seam import (
    Bind,
    CallOutcome,
    Connected,
    EffectDone,
    NodeFacts,
    PodSeen,
    Result,
)
from scheduling.models import Cluster, Job, JobEvent, NodeRecord, Placement, SchedulerLease
from scheduling.services.common.lease import LeaseLost, take_or_renew
from scheduling.services.plain_pods import books
from scheduling.services.scheduler import cycle
from scheduling.services.scheduler.cycle import Scheduler, Written
from scheduling.services.scheduler.keeper import Led
from scheduling.session import bites, changes
from scheduling.session.memory import news
from scheduling.session.session import Session
from tenants.models import Quota
from tests import organisation
from tests.scheduling.test_take_up import plain

pytestmark = pytest.mark.django_db
NODES, GPUS = 20, 8


class Door:
    """A stand-in for the gateway: what the test says is seen, and what it is asked to do."""

    def __init__(self):
        self.seen, self.asked = [Connected()], []

    def drain(self):
        seen, self.seen = self.seen, []
        return seen

    @property
    def waiting(self):
        return len(self.seen)

    is_alive = True
    remarks = ""

    def submit(self, effects):
        self.asked += effects

    def fence(self, until):
        """It keeps the lead however long the test takes."""


class Live:
    """A session that leads a whole cluster."""

    def __init__(self, org, count=NODES):
        self.lease = take_or_renew(org.cluster.pk, "me", now=timezone.now(), seconds=600)
        self.session = Session(org.cluster, lambda: None)
        self.door = self.session.gateway = Door()
        nodes = [f"n{number}" for number in range(count)]
        devices = tuple(Device(index) for index in range(GPUS))
        for name in nodes:
            node = Node(name, gpu_model="H100", devices=devices, cpu_milli=10**6, memory_mib=10**6)
            self.session.nodes.seen(NodeFacts(node, {}, f"uid-{name}"))
        self.session.nodes.arrived(set(nodes))
        self.session.changes.start()
        self.led = Led(self.session, self.lease, time.monotonic())
        self.scheduler = Scheduler()
        self.statements()

    def statements(self):
        """Return the statements of the next pass."""
        with CaptureQueriesContext(connection) as told:
            self.scheduler._pass(self.led)
        return [query["sql"] for query in told.captured_queries]

    def told(self):
        """Return the statements that report on nodes and on the scheduler."""
        key = self.lease.cluster_id, self.lease.scope
        written = self.scheduler._written.setdefault(key, Written())
        written.at, written.order.again_at = 0.0, math.inf
        with CaptureQueriesContext(connection) as told:
            self.scheduler._project(key, self.led)
        return [query["sql"] for query in told.captured_queries]


@pytest.fixture
def org(monkeypatch):
    # Ids before the first event may belong to other tests: nobody waits for them.
    monkeypatch.setattr(news, "LATE_S", 0.0)
    org = organisation.build()
    org.cluster.namespace_tenants = {"*": ["*"]}
    org.cluster.save()
    of = {"tenant": org.tenants["vision"], "gpu_type": org.gpu_types["H100"]}
    Quota.objects.create(**of, guaranteed_milli=NODES * GPUS * 1000)
    return org


@pytest.fixture
def live(org):
    return Live(org)


def seen_to_bound(live, first, count):
    """Return the statements of the pass that sees pods, and of the one that sees them bound."""
    pods = {pod.uid: pod for pod in (plain(first + n, gpus=1, extended={}) for n in range(count))}
    live.door.seen = [PodSeen(pod) for pod in pods.values()]
    placed = live.statements()
    assert bind(live, pods) == pods.keys(), set(Job.objects.values_list("message"))
    return placed, live.statements()


def bind(live, pods):
    """Bind what is to be bound; return the uids."""
    binds = [effect for effect in live.door.asked if isinstance(effect, Bind)]
    live.door.asked.clear()
    for one in binds:
        outcome = CallOutcome(Result.BOUND, one.uid, one.node)
        live.door.seen.append(EffectDone(one, outcome, time.time()))
        live.door.seen.append(PodSeen(replace(pods[one.uid], node=one.node, phase="Pending")))
    return {one.uid for one in binds}


def test_pods_cost_passes_not_statements(live):
    seen_to_bound(live, 0, 1)  # what is read only once has been read
    few, many = seen_to_bound(live, 1, 3), seen_to_bound(live, 4, 120)
    assert [len(told) for told in many] == [len(told) for told in few], many
    assert Job.objects.exclude(bound_at=None).count() == 124
    assert Placement.objects.filter(state="BOUND").count() == 124
    # Each has one reading statement and, on PostgreSQL, one writing statement: decisions about new
    # pods come first. SQLite takes pods up in a transaction that begins with reads (known pods,
    # locked rows); it then fences, asks for ids and writes each table in a statement of its own.
    expected = (2, 2) if connection.vendor == "postgresql" else (12, 6)
    assert tuple(map(len, many)) == expected, many


def test_ids_that_were_asked_for_in_vain_are_no_gap(live):
    """Pods that become no job have no events; nobody checks whether their events come late."""
    seen_to_bound(live, 0, 1)
    live.door.seen = [PodSeen(plain(n, "nobody", gpus=1, extended={})) for n in range(5)]
    live.statements()
    job = Job.objects.get()
    JobEvent.objects.create(job=job, at=timezone.now(), kind="REASON", to_state=job.state)
    assert len(live.statements()) == 1


@pytest.fixture
def passes(monkeypatch):
    """Let this many seconds pass for everything that pods are judged by."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=time.monotonic())
    monkeypatch.setattr(books, "time", clock)

    def passes(seconds):
        clock.now += seconds

    return passes


def test_a_pod_that_comes_alone_waits_for_nothing_that_is_read_now_and_then(live, passes):
    seen_to_bound(live, 0, 1)
    at_once, _ = seen_to_bound(live, 1, 1)
    live.told()  # what the next scheduler must know is read only once
    usual, more = len(live.told()), []
    for _ in range(30):
        passes(2.0)  # as under load; otherwise it is reported each second
        more.append(len(live.told()) - usual)
    assert len(seen_to_bound(live, 2, 1)[0]) == len(at_once)
    # Each pass reads the cluster, tenants, installed GPUs and GPU types, and the names that pods
    # use if it decides before its transaction.
    read = 5 if connection.vendor == "postgresql" else 4
    assert set(more) == {0, read}
    assert more.count(read) <= 60.0 / (books.FRESH_S - books.AHEAD_S)


def test_a_pod_does_not_wait_until_all_open_jobs_are_compared(live, monkeypatch):
    seen_to_bound(live, 0, 1)
    live.statements()
    monkeypatch.setattr(changes, "COUNT_S", 0.2)
    live.session.changes._counted_at = time.monotonic() - 0.3
    live.door.seen = [PodSeen(plain(1, gpus=1, extended={}))]
    live.statements()
    assert not live.session.changes.counted
    live.statements()  # nothing of the cluster waits
    assert live.session.changes.counted
    live.session.changes._counted_at -= 0.5
    live.door.seen = [PodSeen(plain(2, gpus=1, extended={}))]
    live.statements()
    assert live.session.changes.counted  # it is not put off for ever


def test_the_lease_is_renewed_behind_the_pass(live):
    """It is renewed early, so that no pass for a pod has to begin with it."""
    key = live.lease.cluster_id, live.lease.scope
    scheduler = live.scheduler
    scheduler.keeper.held[key] = scheduler.led[key] = live.led
    scheduler._scopes[key[0]] = [live.lease.scope], math.inf
    scheduler._written[key] = Written(at=math.inf)
    table = connection.ops.quote_name(SchedulerLease._meta.db_table)
    for part, renews in ((0.2, False), (cycle.EARLY, True)):
        live.led.renewed_at = time.monotonic() - part * settings.KANT_LEASE_SECONDS
        live.door.seen = [PodSeen(plain(part, gpus=1, extended={}))]
        with CaptureQueriesContext(connection) as told:
            scheduler.run(key[0])
        sqls = [query["sql"] for query in told.captured_queries]
        renewed = [
            n for n, sql in enumerate(sqls) if sql.startswith(f'UPDATE {table} SET "expires')
        ]
        assert bool(renewed) is renews
        placed = max(n for n, sql in enumerate(sqls) if Placement._meta.db_table in sql)
        assert all(n > placed for n in renewed)
        assert live.led.is_due(cycle.EARLY) is False


def test_what_no_pod_was_judged_by_is_not_read(live, passes):
    live.told()
    usual = len(live.told())
    passes(60.0)
    assert len(live.told()) == usual


def test_a_job_that_is_placed_at_once_is_written_once(live):
    seen_to_bound(live, 0, 1)
    told, _ = seen_to_bound(live, 1, 5)
    table = connection.ops.quote_name(Job._meta.db_table)
    assert not any(f"UPDATE {table}" in sql for sql in told), told
    events = JobEvent.objects.order_by("id").values_list("job", "kind")
    assert all([k for j, k in events if j == job] == ["SUBMITTED", "ADMITTED"] for job, _ in events)
    assert set(Job.objects.values_list("state", "version")) == {("ADMITTED", 2)}


def test_a_job_that_waits_says_so_from_the_first(live):
    seen_to_bound(live, 0, NODES * GPUS)
    live.door.seen = [PodSeen(plain(1000, gpus=1, extended={}))]
    live.statements()
    job = Job.objects.get(name="p-1000")
    assert (job.state, job.reason) == ("PENDING", "WaitingForQuota")
    assert "remedies" in job.evidence


def test_what_a_scheduler_wrote_it_does_not_read(live):
    seen_to_bound(live, 0, 1)
    told = [sql for of_pass in seen_to_bound(live, 1, 5) for sql in of_pass]
    tables = [model._meta.db_table for model in (Placement, Job)]
    read = [
        sql
        for sql in told
        if sql.startswith("SELECT") and any(f'FROM "{t}"' in sql for t in tables)
    ]
    assert read == []


def test_a_pass_without_news_asks_once(live):
    seen_to_bound(live, 0, 2)
    live.statements()
    assert len(live.statements()) == 1


def test_a_steady_load_costs_few_statements_a_pod(org, monkeypatch):
    """Ninety pods a second by the test's clock, once passes wait for more pods."""
    rate, begun, seconds, step = 90, 2, 6, 0.05
    Quota.objects.update(guaranteed_milli=rate * seconds * 1000)
    live, now = Live(org, rate * seconds // GPUS), 100.0
    monkeypatch.setattr(bites, "time", SimpleNamespace(monotonic=lambda: now))
    statements, pods = {}, {}
    for number in range(1, int(seconds / step) + 1):
        now += step
        came = [plain(n, gpus=1, extended={}) for n in range(len(pods), int(rate * number * step))]
        pods |= {pod.uid: pod for pod in came}
        live.door.seen += map(PodSeen, came)
        if live.session.rest() == 0.0:
            statements[number] = live.statements()
            bind(live, pods)
        if number % int(cycle.PROJECT_S * 2 / step) == 0:
            statements[number] = [*statements.get(number, ()), *live.told()]
    assert Placement.objects.count() > rate * (seconds - 1.2)
    later = [sql for number, told in statements.items() if number * step > begun for sql in told]
    most = 0.08 if connection.vendor == "postgresql" else 0.2
    assert len(later) <= most * rate * (seconds - begun), later


def test_nodes_and_the_scheduler_are_told_of_by_one_statement(live):
    live.told()  # what the next scheduler must know is read only once
    seen_to_bound(live, 0, 50)
    told = live.told()
    together = connection.vendor == "postgresql"
    assert len(told) == (1 if together else 5), told
    row = SchedulerLease.objects.get()
    assert row.pace["passes"] == live.session.pace.passes
    assert NodeRecord.objects.exclude(allocated_milli=0).count() == len(
        {placement.node for placement in Placement.objects.all()}
    )
    assert Cluster.objects.get().last_cycle_at is not None


def test_who_leads_no_more_tells_nothing(live):
    seen_to_bound(live, 0, 3)
    SchedulerLease.objects.update(token=F("token") + 1, pace={})
    with pytest.raises(LeaseLost):
        live.told()
    assert not NodeRecord.objects.exclude(allocated_milli=0).exists()
    assert Cluster.objects.get().last_cycle_at is None
    live.door.seen.append(PodSeen(plain(9, gpus=1, extended={})))
    with pytest.raises(LeaseLost):
        live.statements()
    assert (SchedulerLease.objects.get().pace, Job.objects.count()) == ({}, 3)
