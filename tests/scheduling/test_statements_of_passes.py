"""A pass costs as many statements to the database for many pods as for few."""

import time

import pytest
from django.db import connection
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
from scheduling.models import Job, JobEvent, Placement
from scheduling.services.common.lease import take_or_renew
from scheduling.services.scheduler.cycle import Scheduler
from scheduling.services.scheduler.keeper import Led
from scheduling.session.memory import news
from scheduling.session.session import Session
from tenants.models import Quota
from tests import organisation
from tests.scheduling.test_take_up import plain

pytestmark = pytest.mark.django_db
NODES, GPUS = 20, 8


class Door:
    """In place of the gateway: what the test has seen, and what it is asked to do."""

    def __init__(self):
        self.seen, self.asked = [Connected()], []

    def drain(self):
        seen, self.seen = self.seen, []
        return seen

    def submit(self, effects):
        self.asked += effects


class Live:
    """A session that leads all of a cluster."""

    def __init__(self, org):
        self.lease = take_or_renew(org.cluster.pk, "me", now=timezone.now(), seconds=600)
        self.session = Session(org.cluster, lambda: None)
        self.door = self.session.gateway = Door()
        nodes = [f"n{number}" for number in range(NODES)]
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
        """Those of the next pass."""
        with CaptureQueriesContext(connection) as told:
            self.scheduler._pass(self.led)
        return [query["sql"] for query in told.captured_queries]


@pytest.fixture
def live(monkeypatch):
    # The ids before the first event may be those of other tests: nobody waits for them.
    monkeypatch.setattr(news, "LATE_S", 0.0)
    org = organisation.build()
    org.cluster.namespace_tenants = {"*": ["*"]}
    org.cluster.save()
    gpu_type = org.gpu_types["H100"]
    Quota.objects.create(
        tenant=org.tenants["vision"], gpu_type=gpu_type, guaranteed_milli=NODES * GPUS * 1000
    )
    return Live(org)


def seen_to_bound(live, first, count):
    """The statements of the pass that sees pods, and of the one that sees them bound."""
    pods = {pod.uid: pod for pod in (plain(first + n, gpus=1, extended={}) for n in range(count))}
    live.door.seen = [PodSeen(pod) for pod in pods.values()]
    placed = live.statements()
    binds = [effect for effect in live.door.asked if isinstance(effect, Bind)]
    assert {bind.uid for bind in binds} == pods.keys(), set(Job.objects.values_list("message"))
    live.door.asked.clear()
    for bind in binds:
        outcome = CallOutcome(Result.BOUND, bind.uid, bind.node)
        live.door.seen.append(EffectDone(bind, outcome, time.time()))
        live.door.seen.append(PodSeen(replace(pods[bind.uid], node=bind.node, phase="Pending")))
    return placed, live.statements()


def test_pods_cost_passes_not_statements(live):
    seen_to_bound(live, 0, 1)  # what is read once is read
    few, many = seen_to_bound(live, 1, 3), seen_to_bound(live, 4, 120)
    assert [len(told) for told in many] == [len(told) for told in few], many
    assert Job.objects.exclude(bound_at=None).count() == 124
    assert Placement.objects.filter(state="BOUND").count() == 124
    # Each has one that asks, three that begin, fence and end the transaction. Then: who is known,
    # what is locked, free ids, and a table each that is written, on PostgreSQL all by one.
    place, confirm = (len(told) - 4 for told in many)
    writes = (1, 1) if connection.vendor == "postgresql" else (5, 2)
    assert (place, confirm) == (4 + writes[0], writes[1]), many


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
