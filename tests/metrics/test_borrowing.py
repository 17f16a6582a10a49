"""Borrowed GPU-hours are exact: the integral of use above the guarantee, whatever changes
meanwhile. They are written for each day and outlive their jobs."""

import random
from collections import Counter, defaultdict
from datetime import date, timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.core.cache import cache
from django.db import connection

from metrics.gpu_time import accounting, usage
from metrics.gpu_time.accounting import account, measured
from metrics.gpu_time.borrowing import Borrowing
from metrics.gpu_time.guarantees import guaranteed
from metrics.gpu_time.usage import Period, UsageScope
from metrics.models import BorrowedDay, UsageLedger
from scheduling.models import Cluster, Retention
from scheduling.queries.quota_use import quota_uses
from tenants.models import AuditRecord, GpuType, Quota, Tenant, User
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota, delete_quota
from tenants.services.tenants import change_tenant, create_tenant, delete_tenant
from tests.cases import seeds
from tests.metrics import rows
from tests.metrics.rows import at
from tests.metrics.test_accounting import DAY, HOUR, MS, NEW_YEAR, held, job

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster(db):
    return rows.cluster(4)  # 32 H100


@pytest.fixture
def ops(db):
    return User.objects.create_user("ops", is_operator=True)


def tenant(name, parent=None):
    return Tenant.objects.create(name=name, parent=parent and Tenant.objects.get(name=parent))


def quota(name, gpus, model="H100"):
    gpu_type, _ = GpuType.objects.get_or_create(name=model)
    return Quota.objects.create(
        tenant=Tenant.objects.get(name=name), gpu_type=gpu_type, guaranteed_milli=int(1000 * gpus)
    )


@pytest.fixture
def family(cluster):
    """org (8) with children a (5) and b (3), and law (4); all of H100."""
    for name, parent, gpus in (
        ("org", None, 8),
        ("a", "org", 5),
        ("b", "org", 3),
        ("law", None, 4),
    ):
        tenant(name, parent)
        quota(name, gpus)
    return {name: job(cluster, name, tenant=name) for name in ("org", "a", "b", "law")}


def dated(second):
    """Date the newest record of the audit trail to this second."""
    record = AuditRecord.objects.latest("at", "id")
    AuditRecord.objects.filter(pk=record.pk).update(at=at(second))


LATER = at(10 * DAY)


def told(by=("tenant",), now=LATER, *, since=NEW_YEAR, days=60, **scope):
    """Return {labels of a row: GPU-hours borrowed, None = unknown} of rows with any. Clears the
    cache, because tests change finished days."""
    cache.clear()
    found = usage.usage(UsageScope(Period(since, since + timedelta(days=days)), **scope), by, now)
    hours = {
        labels if len(by) > 1 else labels[0]: a.borrowed and a.borrowed / (1000 * MS)
        for labels, a in found.items()
    }
    return {labels: h for labels, h in hours.items() if h != 0}


# --- what is borrowed -----------------------------------------------------------------------------
def test_what_is_held_above_the_guarantee_is_borrowed_as_long_as_it_is(family):
    held(family["law"], 0, 4 * HOUR, milli=3500)
    held(family["law"], HOUR, 3 * HOUR, milli=750, ordinal=1)  # 0.25 over
    held(family["law"], 2 * HOUR, None, milli=4000, ordinal=2)  # 4.25, 3.5 over, then none
    assert told(now=at(6 * HOUR)) == {"law": 0.25 + 4.25 + 3.5}
    assert told(now=at(1.5 * HOUR)) == {"law": 0.125}


def test_it_is_exact_to_the_microsecond_and_rounded_once(family):
    for i in range(1000):
        held(family["law"], i, i + 0.000001, milli=5000, ordinal=i)
    assert told() == {"law": 1 / MS}  # 1,000 µs x 1 GPU


def test_children_lend_to_each_other_within_what_their_parent_is_guaranteed(family):
    held(family["a"], 0, 2 * HOUR, milli=7000)
    assert told() == {"a": 4.0}  # two of b's GPUs for two hours; org holds 7 of its 8
    held(family["b"], HOUR, 3 * HOUR, milli=3000)
    assert told() == {"a": 4.0, "org": 2.0}  # b needs all of its own, so two come from outside
    held(family["b"], HOUR, 2 * HOUR, milli=1000, ordinal=1)
    assert told() == {"a": 4.0, "b": 1.0, "org": 3.0}
    # Jobs of org itself hold what its quota leaves the children, or more.
    held(family["org"], 5 * HOUR, 6 * HOUR, milli=9000)
    assert told() == {"a": 4.0, "b": 1.0, "org": 4.0}


def test_a_tenant_without_a_quota_borrows_where_the_nearest_above_it_does(family, cluster):
    tenant("lab", "a")
    held(job(cluster, "lab", tenant="lab"), 0, HOUR, milli=9000)
    assert told() == {"a": 4.0, "org": 1.0}
    quota("lab", 0)
    assert told() == {"lab": 9.0, "a": 4.0, "org": 1.0}
    tenant("poor")
    held(job(cluster, "poor", tenant="poor"), 0, HOUR, milli=2000)  # not guaranteed
    assert told() == {"lab": 9.0, "a": 4.0, "org": 1.0, "poor": 2.0}


def test_models_are_told_apart_and_clusters_are_not(family, cluster):
    quota("law", 2, "A100")
    other = Cluster.objects.create(name="c2")
    held(family["law"], 0, HOUR, milli=3000)
    held(job(other, "x", tenant="law"), 0, HOUR, milli=3000)
    held(family["law"], 0, HOUR, milli=3000, model="A100", ordinal=1)
    held(family["law"], 0, HOUR, milli=500, model="T4", ordinal=2)
    assert told(["tenant", "gpu_type"]) == {
        ("law", "H100"): 2.0,
        ("law", "A100"): 1.0,
        ("law", "T4"): 0.5,
    }
    assert told() == {"law": 3.5}
    assert told(gpu_model="A100") == {"law": 1.0}


def test_a_job_that_starts_again_borrows_while_it_holds(family):
    held(family["law"], 0, HOUR, milli=6000)
    held(family["law"], 2 * HOUR, 2.5 * HOUR, milli=6000, attempt=2)
    held(family["law"], 2.5 * HOUR, 3 * HOUR, milli=6000, attempt=3)  # right after
    assert told() == {"law": 4.0}


def test_midnights_part_it(family):
    held(family["law"], DAY - HOUR, 2 * DAY + 2 * HOUR, milli=5000)
    for _ in "before the days are written", "after":
        assert told(["tenant", "day"]) == {
            ("law", "2026-01-01"): 1.0,
            ("law", "2026-01-02"): 24.0,
            ("law", "2026-01-03"): 2.0,
        }
        assert told(["month", "tenant"]) == {("2026-01", "law"): 27.0}
        account(at(2 * DAY + HOUR))


def test_it_is_told_of_tenants_only(family, cluster):
    held(family["law"], 0, HOUR)
    for by in (
        ["gpu_type"],
        ["tenant", "user"],
        ["tenant", "kind"],
        ["cluster", "tenant"],
        ["day"],
    ):
        found = usage.usage(UsageScope(Period(NEW_YEAR, NEW_YEAR)), by, at(DAY))
        assert [a.borrowed for a in found.values()] == [None]
    scope = UsageScope(Period(NEW_YEAR, NEW_YEAR), cluster=cluster.pk)
    found = usage.usage(scope, ["tenant"], at(DAY))
    assert [a.borrowed for a in found.values()] == [None]
    assert usage.total_of([accounting.Amount(borrowed=5)]).borrowed is None


def test_who_sees_only_a_child_sees_what_it_borrowed(family):
    held(family["a"], 0, HOUR, milli=9000)
    a = frozenset({Tenant.objects.get(name="a").pk})
    assert told(tenants=a) == {"a": 4.0}
    assert told(tenants=frozenset()) == {}


# --- what changes meanwhile -----------------------------------------------------------------------
def set_quota(ops, name, gpus, second):
    found = Quota.objects.filter(tenant__name=name, gpu_type__name="H100").first()
    change_quota(
        ops,
        QuotaChange(
            Tenant.objects.get(name=name),
            GpuType.objects.get(name="H100"),
            found.version if found else 0,
            "test",
            "api",
        ),
        QuotaTerms(int(1000 * gpus)),
        overcommit=True,
    )
    dated(second)


def test_a_quota_that_is_changed_counts_from_then_on(family, ops):
    held(family["law"], 0, 4 * HOUR, milli=6000)
    set_quota(ops, "law", 1, HOUR)
    set_quota(ops, "law", 2.5, 2 * HOUR)
    law, h100 = Tenant.objects.get(name="law"), GpuType.objects.get(name="H100")
    version = Quota.objects.get(tenant=law).version
    delete_quota(ops, QuotaChange(law, h100, version, "x", "api"))
    dated(3 * HOUR)
    assert told() == {"law": 2 + 5 + 3.5 + 6}
    assert guaranteed(at(0), at(4 * HOUR))["law", "H100"] == (4 + 1 + 2.5) * 1000 * MS
    set_quota(ops, "law", 5, 3.5 * HOUR)
    assert told() == {"law": 2 + 5 + 3.5 + 3 + 0.5}
    assert told(now=at(2 * HOUR)) == {"law": 2 + 5}


def test_a_tenant_that_is_moved_counts_above_where_it_stood(family, ops):
    held(family["b"], 0, 4 * HOUR, milli=6000)  # 3 over
    held(family["a"], 0, 4 * HOUR, milli=5000)
    Quota.objects.filter(tenant__name="law").update(guaranteed_milli=8000)
    change_tenant(ops, Tenant.objects.get(name="b"), {"parent": "law"}, source="api")
    dated(HOUR)
    assert told() == {"b": 12.0, "org": 3.0}
    held(family["law"], 2 * HOUR, 3 * HOUR, milli=4000)
    assert told() == {"b": 12.0, "org": 3.0, "law": 2.0}
    change_tenant(ops, Tenant.objects.get(name="b"), {"parent": None}, source="api")
    dated(3 * HOUR)
    assert told() == {"b": 12.0, "org": 3.0, "law": 2.0}
    change_tenant(ops, Tenant.objects.get(name="b"), {"parent": "org"}, source="api")
    dated(3.5 * HOUR)
    assert told() == {"b": 12.0, "org": 4.5, "law": 2.0}


def test_a_tenant_of_an_old_name_has_not_borrowed_what_the_old_one_did(family, ops):
    held(family["b"], 0, 4 * HOUR, milli=6000)
    old = create_tenant(ops, "new", source="api")
    dated(-HOUR)
    quota("new", 4)
    moved = Tenant.objects.get(name="b")
    change_tenant(ops, moved, {"parent": "new"}, source="api")
    dated(-1800)
    change_tenant(ops, moved, {"parent": "org"}, source="api")
    dated(HOUR)
    assert told() == {"b": 12.0, "new": 2.0}
    delete_tenant(ops, old, reason="over", source="api")
    withdrawn = AuditRecord.objects.get(action="quota.deleted")
    assert (withdrawn.subject, withdrawn.before["guaranteed"]) == ("new / H100", 4.0)
    for record in AuditRecord.objects.order_by("-at", "-id")[:2]:
        AuditRecord.objects.filter(pk=record.pk).update(at=at(2 * HOUR))
    create_tenant(ops, "new", source="api")
    dated(3 * HOUR)
    assert told() == {"b": 12.0}
    assert guaranteed(at(0), at(4 * HOUR))["new", "H100"] == 2 * 4 * 1000 * MS


# --- against small steps --------------------------------------------------------------------------
STEP = 1800
STEPS = 3 * 48  # of three days
NAMES = ("r1", "r2", "c1", "c2", "c3", "g1", "g2")
MODELS = ("H100", "A100")


def _audit(action, subject, second, before, after, about=None):
    record = AuditRecord.objects.create(
        actor_name="ops", action=action, subject=subject, before=before, after=after,
        tenant=about, source="api",
    )  # fmt: skip
    AuditRecord.objects.filter(pk=record.pk).update(at=at(second))


def _above(parents, name):
    while name is not None:
        yield name
        name = parents[name]


@pytest.mark.parametrize("seed", seeds(12))
def test_it_is_the_integral_by_small_steps(cluster, seed):
    """All events fall on steps; recompute everything within each step."""
    rng = random.Random(seed)
    tenants = {name: tenant(name) for name in NAMES}
    jobs = {name: job(cluster, name, tenant=name) for name in NAMES}
    types = {model: GpuType.objects.create(name=model) for model in MODELS}
    pods = []
    for i in range(60):
        begun = rng.randrange(-40, STEPS)
        ended = begun + rng.randrange(1, 60) if rng.random() < 0.9 else None
        name, model, milli = rng.choice(NAMES), rng.choice(MODELS), rng.choice((250, 1000, 4000))
        pods.append((name, model, milli, begun, ended))
        held(jobs[name], begun * STEP, None if ended is None else ended * STEP, milli=milli,
             model=model, ordinal=i)  # fmt: skip
    parents = dict.fromkeys(NAMES)
    parents |= {"c1": "r1", "c2": "r1", "c3": "r2", "g1": "c1", "g2": "c1"}
    quotas = {
        (name, model): rng.choice((0, 500, 2000, 8000))
        for name in NAMES for model in MODELS if rng.random() < 0.7
    }  # fmt: skip
    expected, idle = Counter(), Counter()
    changes = {rng.randrange(STEPS): rng.random() for _ in range(14)}
    for step in range(STEPS):
        if step in changes and changes[step] < 0.5:
            name, to = rng.choice(NAMES), rng.choice((*NAMES, None))
            if to is None or name not in _above(parents, to):
                documents = {"parent": parents[name]}, {"parent": to}
                _audit("tenant.changed", name, step * STEP, *documents, tenants[name])
                parents[name] = to
        elif step in changes:
            key, milli = (rng.choice(NAMES), rng.choice(MODELS)), rng.choice((None, 0, 1500, 6000))
            was = quotas.pop(key, None)
            _audit(
                "quota.deleted" if milli is None else "quota.changed", " / ".join(key), step * STEP,
                None if was is None else {"guaranteed": was / 1000},
                None if milli is None else {"guaranteed": milli / 1000}, tenants[key[0]],
            )  # fmt: skip
            if milli is not None:
                quotas[key] = milli
        used = defaultdict(int)
        for name, model, milli, begun, ended in pods:
            if begun <= step < (STEPS if ended is None else ended):
                for above in _above(parents, name):
                    used[above, model] += milli
        for (name, model), milli in used.items():
            line = list(_above(parents, name))
            if (name, model) in quotas or not any((t, model) in quotas for t in line):
                over = max(0, milli - quotas.get((name, model), 0))
                day = NEW_YEAR + timedelta(days=step // 48)
                expected[day, tenants[name].pk, model] += over * STEP * 1000
        idle.update({key: milli * STEP * 1000 for key, milli in quotas.items()})
    for name, above in parents.items():
        Tenant.objects.filter(name=name).update(parent=above and tenants[above])
    for (name, model), milli in quotas.items():
        Quota.objects.create(
            tenant=tenants[name], gpu_type=types[model], guaranteed_milli=milli
        )  # fmt: skip
    borrowing = Borrowing(at(0), at(3 * DAY))
    measured(at(0), at(3 * DAY), borrowing)
    assert +Counter(borrowing.sums()) == +expected
    assert expected.total() > 0
    assert +guaranteed(at(0), at(3 * DAY)) == +idle
    # One day at a time, and from the written days: the same result.
    account(at(4 * DAY))
    written = BorrowedDay.objects.values_list("day", "tenant_id", "gpu_model", "borrowed")
    found = {tuple(key): borrowed for *key, borrowed in written}
    days = [NEW_YEAR + timedelta(days=i) for i in range(3)]
    assert {key: borrowed for key, borrowed in found.items() if key[0] in days} == +expected


@pytest.mark.parametrize("seed", range(5))
def test_where_all_lend_it_is_what_the_book_of_the_engine_says(cluster, seed):
    rng = random.Random(seed)
    tenants: list[str] = []
    for number in range(8):
        tenant(f"t{number}", rng.choice([None, *tenants]))
        tenants.append(f"t{number}")
        if rng.random() < 0.8:
            quota(f"t{number}", rng.choice((0, 1, 4, 20)))
        for ordinal in range(rng.randrange(3)):
            one = job(cluster, f"j{number}-{ordinal}", tenant=f"t{number}")
            held(one, 0, None, milli=rng.choice((500, 3000, 8000)))
    borrowing = Borrowing(at(HOUR), at(HOUR + 1))
    measured(at(HOUR), at(HOUR + 1), borrowing)
    names = {t.pk: t.name for t in Tenant.objects.all()}
    found = {names[key.tenant_id]: ms // 1000 for key, ms in borrowing.sums().items()}
    uses = quota_uses()
    assert {u.tenant: u.borrowed for u in uses if u.borrowed} == {
        name: milli for name, milli in found.items() if name in {u.tenant for u in uses}
    }


# --- what is written ------------------------------------------------------------------------------
def test_it_is_the_same_before_and_after_its_days_are_written_and_its_jobs_deleted(family, ops):
    held(family["a"], HOUR, 2 * DAY + HOUR, milli=9500)
    set_quota(ops, "a", 4, DAY + HOUR)
    by, now = ["tenant", "gpu_type", "day"], at(2 * DAY + 2 * HOUR)
    before = told(by, now)
    assert before["a", "H100", "2026-01-02"] == 4.5 + 23 * 5.5
    for second in (DAY + HOUR, 2 * DAY + HOUR):
        account(at(second))
        assert told(by, now) == before
    assert BorrowedDay.objects.count() == 4  # a and org, of two days
    account(at(4 * DAY))
    family["a"].delete()
    assert told(by, now) == before


def test_of_days_that_were_written_before_it_is_not_known(family):
    """The ledger as the migration leaves it."""
    held(family["law"], 0, 4 * DAY, milli=5000)
    account(at(2 * DAY + HOUR))
    BorrowedDay.objects.all().delete()
    UsageLedger.objects.update(borrowed_from=date(2026, 1, 3))
    account(at(3 * DAY + HOUR))
    assert told(["tenant", "day"]) == {
        ("law", "2026-01-01"): None,
        ("law", "2026-01-02"): None,
        ("law", "2026-01-03"): 24.0,
        ("law", "2026-01-04"): 24.0,
    }
    assert told() == {"law": None}
    assert told(["tenant", "month"]) == {("law", "2026-01"): None}
    # Periods that start on the first known day are fully known.
    assert told(since=date(2026, 1, 3)) == {"law": 48.0}
    assert told(["tenant", "month"], since=date(2026, 1, 3)) == {("law", "2026-01"): 48.0}


def test_an_upgrade_leaves_the_written_days_unknown(family):
    migration = import_module("metrics.migrations.0006_borrowed_days")
    UsageLedger.objects.create(until=date(2026, 1, 3))
    migration.not_known_of_written_days(apps, connection.schema_editor())
    assert UsageLedger.objects.get().borrowed_from == date(2026, 1, 3)
    UsageLedger.objects.all().delete()
    # A new ledger knows what was borrowed on every day that it writes.
    account(at(3 * DAY))
    assert usage.days_known().borrowed_from is None
    UsageLedger.objects.all().delete()
    Retention.objects.create(complete_from=at(0.5 * DAY))
    account(at(3 * DAY))
    assert usage.days_known().borrowed_from == usage.days_known().complete_from == date(2026, 1, 2)


def test_a_tenant_that_is_deleted_keeps_its_name(family, ops):
    held(family["a"], 0, HOUR, milli=9000)
    account(at(DAY + HOUR))
    for name in ("a", "b", "org"):
        family[name].delete()
        Tenant.objects.get(name=name).delete()
    assert told() == {"a": 4.0, "org": 1.0}


def test_a_question_is_a_handful_of_queries(family, ops, django_assert_max_num_queries):
    for number in range(20):
        set_quota(ops, "law", number, number * HOUR)
        held(family["law"], 0, DAY, milli=1000, ordinal=number)
    with django_assert_max_num_queries(14):
        assert told(["tenant", "day"], at(DAY)) != {}
