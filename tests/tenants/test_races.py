"""Invariants under concurrent writers; collected on PostgreSQL only (conftest.py)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections

from scheduling.models import Job, JobEvent
from scheduling.services.jobs.submit import submit_job
from tenants.errors import DomainError, Invalid
from tenants.models import AuditRecord, Queue, Quota, Tenant
from tenants.permissions import lineage
from tenants.selectors import parents_by_id
from tenants.services.audit import Why
from tenants.services.moves.change import ChangeRefused, PlaceChange, change_together
from tenants.services.queues.change import create_queue, delete_queue, set_state
from tenants.services.quota_sheet import SheetChange
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota
from tenants.services.tenants import change_tenant
from tests import organisation
from tests.tenants.test_lock_order import crossed

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def org():
    assert connection.vendor != "sqlite", "needs many writers: let DATABASE_URL name a PostgreSQL"
    return organisation.build()


def at_once(calls):
    """Run all calls at the same time, each on its own connection; exceptions are results."""

    def run(call):
        try:
            return call()
        except DomainError as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_one_key_makes_one_job(org):
    clients = [org.client("eve") for _ in range(8)]
    body = {"name": "once", "tenant": "vision", "gpu_type": "H100", "gpus": 1}

    def post(client):
        return client.post("/api/v1/jobs", body, format="json", headers={"Idempotency-Key": "k"})

    answers = at_once([lambda c=c: post(c) for c in clients])
    assert Job.objects.count() == 1
    assert {a.status_code for a in answers} <= {201, 409}
    assert all(a.json()["code"] == "key-in-flight" for a in answers if a.status_code == 409)
    assert post(clients[0])["Idempotency-Replayed"] == "true"


def test_siblings_never_get_more_than_their_parent_has(org):
    ops = org.users["ops"]
    children = [Tenant.objects.create(name=f"c{i}", parent=org.tenants["ml"]) for i in range(6)]

    def promise(tenant, gpus):
        return change_quota(
            ops,
            QuotaChange(tenant, org.gpu_types["H100"], 0, "race", "api"),
            QuotaTerms(gpus * 1000),
        )

    promise(org.tenants["ml"], 16)
    results = at_once([lambda t=t: promise(t, 8) for t in children])
    assert sum(isinstance(r, Invalid) for r in results) == 4
    given = Quota.objects.filter(tenant__in=children)
    assert sum(q.guaranteed_milli for q in given) == 16000


def test_moves_never_close_a_cycle(org):
    ops = org.users["ops"]
    roots = [Tenant.objects.create(name=f"r{i}") for i in range(4)]
    ring = list(zip(roots, roots[1:] + roots[:1], strict=True))

    def move(tenant, above):
        return change_tenant(ops, tenant, {"parent": above.name}, source="api")

    results = at_once([lambda t=t, a=a: move(t, a) for t, a in ring])
    assert any(isinstance(r, DomainError) for r in results)
    parents = parents_by_id()
    for tenant in roots:
        assert parents[list(lineage(parents, tenant.pk))[-1]] is None


def law_and_vision(org):
    """8 GPUs each; with vision below it, law has no room for more."""
    for name in ("law", "vision"):
        Quota.objects.create(
            tenant=org.tenants[name], gpu_type=org.gpu_types["H100"], guaranteed_milli=8000
        )


def quota_of(org, name, gpus):
    change = QuotaChange(org.tenants[name], org.gpu_types["H100"], 1, "race", "api")
    return change, QuotaTerms(gpus * 1000)


def together(org, tenants, quotas):
    """Raise the first error of the two."""
    try:
        change_together(org.users["ops"], tenants, quotas, reason="race", source="api")
    except ChangeRefused as refused:
        raise next(iter((refused.tenants or refused.quotas).values())) from None


MOVES = {
    "alone": lambda o: change_tenant(
        o.users["ops"], o.tenants["vision"], {"parent": "law"}, source="api"
    ),
    "in a draft": lambda o: together(
        o, [PlaceChange(o.tenants["vision"], {"parent": "law"}, {"parent": "ml"})], ()
    ),
}
QUOTAS = {
    "more for what moves": lambda o: change_quota(o.users["ops"], *quota_of(o, "vision", 12)),
    "less above it": lambda o: change_quota(o.users["ops"], *quota_of(o, "law", 4)),
    "in a draft": lambda o: together(o, (), [SheetChange(*quota_of(o, "law", 4))]),
}


@pytest.mark.parametrize("quota", QUOTAS)
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("first", ["move", "quota"])
def test_a_move_and_a_quota_at_the_same_time_break_no_sum(org, move, quota, first):
    """The second one begins before the first has committed, and is refused."""
    law_and_vision(org)
    calls = [lambda: MOVES[move](org), lambda: QUOTAS[quota](org)]
    crossed(*(calls if first == "move" else reversed(calls)))
    given = dict(Quota.objects.values_list("tenant__name", "guaranteed_milli"))
    above = Tenant.objects.get(name="vision").parent.name
    if first == "move":
        assert (above, given) == ("law", {"law": 8000, "vision": 8000})
    else:
        assert (above, sum(given.values())) == ("ml", 20000 if "more" in quota else 12000)


def test_changes_that_cross_close_no_cycle_of_jobs(org):
    eve = org.client("eve")
    body = {"tenant": "vision", "gpu_type": "H100", "gpus": 1}
    ids = [
        eve.post("/api/v1/jobs", {**body, "name": f"j{i}"}, format="json").json()["id"]
        for i in range(4)
    ]
    ring = list(zip(ids, ids[1:] + ids[:1], strict=True))
    clients = [org.client("eve") for _ in ring]

    def wait(client, job, other):
        return client.patch(f"/api/v1/jobs/{job}", {"after": [other]}, format="json")

    answers = at_once(
        [lambda c=c, j=j, o=o: wait(c, j, o) for c, (j, o) in zip(clients, ring, strict=True)]
    )
    assert sorted(a.status_code for a in answers) == [200, 200, 200, 422]


def test_an_array_is_cancelled_once(org):
    eve = org.client("eve")
    body = {"name": "sweep", "tenant": "vision", "gpu_type": "H100", "gpus": 1}
    array = eve.post("/api/v1/jobs", {**body, "array": {"count": 200}}, format="json").json()
    job = Job.objects.first()
    urls = [f"/api/v1/job-arrays/{array['id']}/cancel"] * 3 + [f"/api/v1/jobs/{job.pk}/cancel"] * 3
    clients = [org.client("eve") for _ in urls]
    answers = at_once([lambda c=c, u=u: c.post(u) for c, u in zip(clients, urls, strict=True)])
    assert {a.status_code for a in answers} <= {200, 409}
    assert not Job.objects.exclude(state="CANCELLED").exists()
    assert JobEvent.objects.filter(kind="CANCELLED").count() == 200


def test_a_deletion_among_other_writes_fails_nobody(org):
    job = {"name": "late", "tenant": "law", "gpu_type": "H100", "gpus": 1}
    quota = {"guaranteed": 0, "reason": "race"}

    def write(client, kind, number):
        if kind == 0:
            return client.delete("/api/v1/tenants/law")
        if kind == 1:
            return client.post("/api/v1/jobs", job, format="json")
        if kind == 2:
            below = {"name": f"below-{number}", "parent": "law"}
            return client.post("/api/v1/tenants", below, format="json")
        if kind == 3:
            role = {"role": "viewer"}
            return client.put("/api/v1/tenants/law/members/eve", role, format="json")
        return client.put(
            "/api/v1/quotas/law/H100", quota, format="json", headers={"If-None-Match": "*"}
        )

    for number in range(10):
        if not Tenant.objects.filter(name="law").exists():
            Tenant.objects.create(name="law")
        clients = [org.client("ops") for _ in range(5)]
        answers = at_once(
            [lambda c=c, k=k, n=number: write(c, k, n) for k, c in enumerate(clients)]
        )
        told = [(a.status_code, a.json() if a.content else None) for a in answers]
        assert all(status < 500 for status, _ in told), told
        Job.objects.all().delete()
        Tenant.objects.filter(name__startswith="below").delete()


def test_a_queue_is_not_deleted_under_a_job_that_enters_it(org):
    """Either the job exists and the queue stays, or the queue is gone and the job is refused."""
    ops = org.users["ops"]
    for number in range(8):
        queue = Queue.objects.create(tenant=org.tenants["vision"], name=f"q{number}")
        document = {"name": f"j{number}", "tenant": "vision", "gpu_type": "H100", "gpus": 1}
        document["queue"] = queue.name
        at_once(
            [
                lambda q=queue: delete_queue(ops, q, expected_version=1, why=Why("x", "api")),
                lambda d=document: submit_job(ops, d),
            ]
        )
        there = Queue.objects.filter(pk=queue.pk).exists()
        assert Job.objects.filter(queue=queue.name).exists() is there


def test_a_name_of_a_queue_is_given_once(org):
    ops, vision = org.users["ops"], org.tenants["vision"]
    made = at_once(
        [lambda: create_queue(ops, vision, "nightly", why=Why("", "api")) for _ in range(6)]
    )
    assert sum(not isinstance(one, DomainError) for one in made) == 1
    assert Queue.objects.filter(tenant=vision, name="nightly").count() == 1


def test_one_of_two_states_of_a_queue_is_refused_or_both_are_recorded(org):
    ops = org.users["ops"]
    queue = Queue.objects.get(tenant=org.tenants["vision"])
    done = at_once(
        [lambda s=s: set_state(ops, queue, s, why=Why("x", "api")) for s in ("held", "held")]
    )
    assert sum(isinstance(one, DomainError) for one in done) == 1
    queue.refresh_from_db()
    assert (queue.state, queue.version) == ("held", 2)
    assert AuditRecord.objects.filter(action="queue.changed").count() == 1
