"""Writes below a tenant against its deletion; collected on PostgreSQL only (conftest.py).

A deletion that begins before a writer has committed waits for the writer; the writer never waits
for the deletion.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.db import connection, connections, transaction

from scheduling.models import Job
from scheduling.services.jobs.submission.together import UsersJob, submit_together
from scheduling.services.jobs.submit import submit_job
from tenants.errors import DomainError
from tenants.models import Queue, Quota, Tenant
from tenants.services import joined
from tenants.services.audit import Why
from tenants.services.drafts.edits import DraftEdit, TenantEdit, edit_draft
from tenants.services.gpu_types import delete_gpu_type
from tenants.services.members import remove_member, set_member
from tenants.services.moves.change import PlaceChange, change_together
from tenants.services.queues.change import change_queue, delete_queue, set_state
from tenants.services.quota_sheet import QuotaEdit, carried_out, sheet_changes
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota, delete_quota
from tenants.services.sign_in import Person, Rights, sign_in
from tenants.services.tenants import delete_tenant
from tests import organisation
from webhooks.services.hooks import change_hook, create_hook, rotate_secret, turn_off

pytestmark = pytest.mark.django_db(transaction=True)
WHY = Why("race", "api")
PERSON = Person("https://id", "1", "una", "Una", "", "")
HOOK = {"name": "h", "url": "https://example.com/", "events": ["quota.changed"]}


@pytest.fixture
def org(monkeypatch):
    monkeypatch.setattr("webhooks.services.hooks.check_url", lambda *_, **__: None)
    org = organisation.build()
    org.ops, org.law = org.users["ops"], org.tenants["law"]
    for kind in ("H100", "A100"):
        change_quota(org.ops, quota(org, kind, 0), QuotaTerms(0))
    org.queue = Queue.objects.create(tenant=org.law, name="nightly")
    org.hook = create_hook(org.ops, org.law, HOOK, why=WHY).hook
    edit_draft(org.ops, [edit(org, "H100", "1")])
    sign_in(PERSON, Rights({"law": ("viewer", "g")}, ""))
    return org


def quota(org, kind, version):
    return QuotaChange(org.law, org.gpu_types[kind], version, "race", "api")


def edit(org, kind, typed):
    return DraftEdit(org.law, org.gpu_types[kind], typed)


def sheet(org):
    edits = [
        QuotaEdit(org.law, org.gpu_types[k], {"guaranteed": 1000}, 1) for k in ("H100", "A100")
    ]
    carried_out(org.ops, sheet_changes(edits, reason="race", source="api"))


def submission(org):
    job = {"name": "j", "tenant": "law", "queue": "nightly", "gpu_type": "H100", "gpus": 1}
    submit_job(org.ops, job)


WRITERS = {
    "member set": lambda o: set_member(o.ops, o.law, "lex", "viewer", source="api"),
    "member removed": lambda o: remove_member(o.ops, o.law, "lex", source="api"),
    "roles of groups": lambda o: sign_in(PERSON, Rights({"law": ("engineer", "g")}, "")),
    "roles taken": lambda o: sign_in(PERSON, Rights({}, "")),
    "quota changed": lambda o: change_quota(o.ops, quota(o, "H100", 1), QuotaTerms(1000)),
    "quota withdrawn": lambda o: delete_quota(o.ops, quota(o, "H100", 1)),
    "sheet": sheet,
    "edits": lambda o: edit_draft(o.ops, [edit(o, "H100", "2"), edit(o, "A100", "2")]),
    "tenant edited": lambda o: edit_draft(o.ops, tenants=[TenantEdit(o.law, {"weight": "2"})]),
    "tenant weighed": lambda o: change_together(
        o.ops, [PlaceChange(o.law, {"weight": 2.0}, {"weight": "1"})], (), reason="r", source="api"
    ),
    "queue changed": lambda o: change_queue(
        o.ops, o.queue, {"weight": 2}, expected_version=1, why=WHY
    ),
    "queue held": lambda o: set_state(o.ops, o.queue, "held", why=WHY),
    "queue deleted": lambda o: delete_queue(o.ops, o.queue, expected_version=1, why=WHY),
    "submission": submission,
    "webhook changed": lambda o: change_hook(
        o.ops, o.hook, {"name": "i"}, expected_version=1, why=WHY
    ),
    "webhook's secret": lambda o: rotate_secret(o.ops, o.hook, why=WHY),
    "webhook turned off": lambda o: turn_off(type(o.hook).objects.all(), "race"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_who_deletes_a_tenant_waits_for_writers_below_it(org, name):
    crossed(lambda: WRITERS[name](org), lambda: delete_tenant(org.ops, org.law, source="api"))
    assert Tenant.objects.filter(name="law").exists() is (name == "submission")


def test_who_deletes_a_gpu_type_waits_for_edits_of_its_quotas(org):
    Quota.objects.all().delete()
    h200 = organisation.GpuType.objects.create(name="H200")
    edit_draft(org.ops, [DraftEdit(org.law, h200, "1")])
    edits = [DraftEdit(org.tenants[tenant], h200, "2") for tenant in ("law", "vision")]
    crossed(
        lambda: edit_draft(org.ops, edits), lambda: delete_gpu_type(org.ops, h200, source="api")
    )
    assert not organisation.GpuType.objects.filter(name="H200").exists()


def test_sheets_take_gpu_types_in_one_order(org):
    """Whatever the order of their edits, and of their tenants in the tree."""
    lab = org.tenants["vision-lab"]

    def write(first, second):
        edits = [
            QuotaEdit(org.tenants["ml"], org.gpu_types[first], {"guaranteed": 1000}, 0),
            QuotaEdit(lab, org.gpu_types[second], {"guaranteed": 1000}, 0),
        ]
        try:
            carried_out(org.ops, sheet_changes(edits, reason="race", source="api"))
        finally:
            connections.close_all()

    for _ in range(10):
        with ThreadPoolExecutor(2) as pool:
            each = [pool.submit(write, *kinds) for kinds in (("H100", "A100"), ("A100", "H100"))]
        assert [one.exception() for one in each] == [None, None]
        Quota.objects.exclude(tenant=org.law).delete()


def test_who_submits_together_does_not_wait_for_a_lock_of_one(org, monkeypatch):
    """Otherwise all would wait for the row that only one of them needs."""
    monkeypatch.setattr(joined, "LOCK_S", 0.01)
    Queue.objects.filter(pk=org.queue.pk).update(max_waiting=5)
    job = {"name": "j", "tenant": "law", "gpu_type": "H100", "gpus": 1}
    both = [UsersJob(org.ops, job), UsersJob(org.ops, {**job, "queue": "nightly"})]
    locked, go = Event(), Event()

    def lock():
        try:
            with transaction.atomic():
                Queue.objects.select_for_update().get(pk=org.queue.pk)
                locked.set()
                assert go.wait(60)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(lock)
        assert locked.wait(60)
        with pytest.raises(joined.EachAlone):
            submit_together(both)
        go.set()
        held.result(60)
    assert not Job.objects.exists()
    assert all(isinstance(one, Job) for one in submit_together(both))


def crossed(write, delete):
    """Commit a write once the deletion, which began after it, waits for it; neither may fail."""
    written, waits = Event(), Event()

    def writing():
        try:
            with transaction.atomic():
                try:
                    write()
                finally:
                    written.set()
                assert waits.wait(60)
        finally:
            connections.close_all()

    def deleting():
        try:
            assert written.wait(60)
            delete()
        except DomainError as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(writing), pool.submit(deleting)]
        while not (both[1].done() or somebody_waits()):
            time.sleep(0.01)
        waits.set()
    assert [one.exception() for one in both] == [None, None]


def somebody_waits():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        )
        return cursor.fetchone()[0] > 0
