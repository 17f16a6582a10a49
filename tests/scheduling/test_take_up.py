"""Taking up plain pods costs few statements, and a fault in one pod does not harm the others."""

from collections import Counter
from operator import attrgetter
from uuid import UUID, uuid5

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from msgspec.structs import replace

from scheduling.models import Job, JobEvent, JobPod, NodeRecord, PodSet
from scheduling.services.common.bulk import insert
from scheduling.services.common.lease import take_or_renew
from scheduling.services.plain_pods.books import Books, Shelf
from scheduling.services.plain_pods.take_up import take_up
from scheduling.session.memory import load
from scheduling.session.memory.live import Offer
from tenants.models import Queue, Tenant
from tests import organisation
from tests.scheduling.test_plain_gangs import member

pytestmark = pytest.mark.django_db


@pytest.fixture
def org():
    org = organisation.build()
    org.cluster.namespace_tenants = {"*": ["*"]}
    org.cluster.save()
    return org


def plain(number, tenant="vision", **fields):
    """Return a pod with a uid of its own; every second pod has its number as a label."""
    labels = fields.pop("labels", {})
    pod = member(f"p-{number}", None, None, tenant, **fields)
    return replace(
        pod,
        uid=str(uuid5(UUID(int=7), f"{tenant}-{number}")),
        labels={**pod.labels, "job-index": str(number), **labels},
    )


def offered(org, *units, shelf=None):
    """Take up these units of one or several pods; return their offers and the statements used."""
    offers = [Offer(unit if isinstance(unit, tuple) else (unit,)) for unit in units]
    now = timezone.now()
    lease = take_or_renew(org.cluster.pk, "me", now=now, seconds=60)
    with transaction.atomic(), CaptureQueriesContext(connection) as told:
        taken = take_up(lease, offers, now, shelf)
        taken.made.write()
        made = [JobEvent(**event) for event in taken.made.events]
        insert([*made, *taken.followed])
    return offers, [query["sql"] for query in told.captured_queries]


def refused(offers):
    """Return {pod name: why it was refused}."""
    return {p.name: o.refused[p.uid].reason for o in offers for p in o.pods if p.uid in o.refused}


def unlike(count, first=0):
    """Return pods of two tenants that request sixty amounts; one in ten names an unknown queue."""
    return [
        plain(
            first + n,
            ("vision", "law")[n % 2],
            cpu_milli=100 + n % 60,
            labels={"kant.io/queue": "nope"} if n % 10 == 5 else {},
        )
        for n in range(count)
    ]


def test_a_thousand_pods_take_as_many_statements_as_ten(org):
    few, many = offered(org, *unlike(10))[1], offered(org, *unlike(100, first=10))[1]
    assert len(many) == len(few) < 20, many
    offers, most = offered(org, *unlike(1000, first=1000))
    # Only look-ups by uid are split into parts.
    assert len(most) <= len(few) + 1, most
    assert Counter(refused(offers).values()) == {"InvalidPod": 100}
    jobs = Job.objects.count()
    assert jobs == 9 + 90 + 900
    assert all(table.objects.count() == jobs for table in (PodSet, JobPod, JobEvent))


def test_pods_that_ask_for_the_same_have_names_labels_and_places_in_the_queue_of_their_own(org):
    pods = [plain(n, labels={"app": f"a{n}"}) for n in range(3)]
    gated = plain(3, gates=("example.com/later",))
    offered(org, *pods, gated)
    jobs = list(Job.objects.order_by("submitted_at"))
    assert [str(job.pk) for job in jobs] == [p.uid for p in (*pods, gated)]
    assert [(j.name, j.pod_name) for j in jobs] == [(f"p-{n}", f"p-{n}") for n in range(4)]
    assert [j.labels.get("app") for j in jobs] == ["a0", "a1", "a2", "bert"]
    assert [j.labels["job-index"] for j in jobs] == ["0", "1", "2", "3"]
    assert len({job.submitted_at for job in jobs}) == 4
    assert [j.reason for j in jobs] == ["PendingEvaluation"] * 3 + ["OnHold"]
    assert jobs[3].message == jobs[3].pod_hold != ""
    for job in jobs:
        [row], [pod], [event] = job.pod_sets.all(), job.pods.all(), job.events.all()
        assert (row.gpus, row.count, row.cpu_milli, row.command) == (8, 1, 100, ["train"])
        assert (str(pod.uid), pod.name, pod.labels["job-index"]) == (
            str(job.pk),
            job.pod_name,
            job.labels["job-index"],
        )
        assert (event.at, event.kind, event.to_state) == (job.submitted_at, "SUBMITTED", "PENDING")
        assert event.message == f"Taken up from pod ns/{job.pod_name}."


def test_one_that_is_refused_harms_no_other_that_asks_for_the_same(org):
    pods = [
        plain("first"),
        plain("label", labels={"app": "not a label"}),
        plain("denied", labels={"app.kubernetes.io/name": "kant"}),
        plain("unknown", "nobody"),
        plain("large", gpus=9),
        plain("model", notes={"kant.io/gpu-models": "B9000"}),
        plain("last"),
    ]
    offers, _ = offered(org, *pods)
    assert refused(offers) == {
        "p-label": "InvalidPod",
        "p-denied": "DeniedByJobRules",
        "p-unknown": "UnknownTenant",
        "p-large": "ExceedsCapacity",
        "p-model": "InvalidPod",
    }
    assert sorted(Job.objects.values_list("name", flat=True)) == ["p-first", "p-last"]


@pytest.mark.parametrize("limited", ["ml", "vision", "default"])
def test_limits_of_waiting_jobs_count_those_of_the_same_pass(org, limited):
    offered(org, plain("there"), plain("below", "vision-lab"))
    waiting = 1 if limited == "default" else 2
    if limited == "default":
        Queue.objects.filter(tenant=org.tenants["vision"]).update(max_waiting=waiting + 2)
    else:
        Tenant.objects.filter(name=limited).update(max_waiting=waiting + 2)
    offers, _ = offered(org, *(plain(n) for n in range(5)), plain("law", "law"))
    assert refused(offers) == {f"p-{n}": "TooManyWaiting" for n in (2, 3, 4)}
    [cause] = {o.refused[o.pods[0].uid].text for o in offers if o.refused}
    assert f"has {waiting + 2} waiting jobs of at most {waiting + 2}; 1 more" in cause
    assert Job.objects.filter(tenant=org.tenants["law"]).count() == 1


def test_a_default_queue_that_is_not_there_is_made_once(org):
    Queue.objects.filter(tenant=org.tenants["vision"]).delete()
    offers, _ = offered(org, *(plain(n) for n in range(3)))
    assert refused(offers) == {}
    assert Queue.objects.get(tenant=org.tenants["vision"]).name == "default"
    assert Job.objects.count() == 3


@pytest.mark.parametrize("gone", ["tenant", "queue"])
def test_who_is_deleted_before_the_rows_are_locked_takes_no_pods(org, gone, monkeypatch):
    """Both are named by what was read before: the answer is as precise as if the deletion came
    later."""
    Queue.objects.create(tenant=org.tenants["law"], name="night")

    def hold(books, named):
        if gone == "tenant":
            Queue.objects.filter(tenant__name="law").delete()
            Tenant.objects.filter(name="law").delete()
        Queue.objects.filter(name="night").delete()
        held(books, named)

    held = Books.hold
    monkeypatch.setattr(Books, "hold", hold)
    night = {"kant.io/queue": "night"}
    offers, _ = offered(org, plain("gone", "law", labels=night), plain("there"))
    assert refused(offers) == {"p-gone": "UnknownTenant" if gone == "tenant" else "InvalidPod"}
    assert Job.objects.get().name == "p-there"


def test_a_gang_and_pods_by_themselves_are_written_together(org):
    gang = tuple(member(f"w-{n}", "3", "train", "vision", gpus=4) for n in range(3))
    gang = tuple(replace(pod, uid=str(uuid5(UUID(int=8), pod.name))) for pod in gang)
    half = tuple(replace(pod, labels=pod.labels | {"kant.io/gang": "half"}) for pod in gang[:2])
    half = tuple(replace(pod, uid=str(uuid5(UUID(int=9), pod.name))) for pod in half)
    offers, _ = offered(org, gang, half, plain("alone"))
    assert refused(offers) == dict.fromkeys(("w-0", "w-1"), "GangIncomplete")
    job = Job.objects.get(pod_gang="train")
    assert [(s.count, s.gpus) for s in job.pod_sets.all()] == [(3, 4)]
    assert [(p.ordinal, p.name) for p in job.pods.all()] == [(n, f"w-{n}") for n in range(3)]
    assert job.events.get().message == "Taken up from 3 pods of gang ns/train."
    assert Job.objects.filter(pod_gang="").count() == 1


def test_a_job_is_told_as_it_would_be_read_back(org):
    gang = tuple(member(f"w-{n}", "3", "train", "vision", gpus=4) for n in range(3))
    gang = tuple(replace(pod, uid=str(uuid5(UUID(int=8), pod.name))) for pod in gang)
    notes = {"kant.io/gpu-models": "H100,A100", "kant.io/declared-seconds": "60"}
    more = plain("more", labels={"team.io/a": "b"}, notes=notes, selector={"zone": "a"})
    gated = plain("gated", gates=("example.com/later",))
    offers, _ = offered(org, gang, more, gated, plain(0), plain(1), plain("no", "nobody"))
    told = sorted((job for offer in offers for job in offer.jobs), key=attrgetter("id"))
    read, _ = load.jobs([str(job_id) for job_id in Job.objects.values_list("id", flat=True)])
    assert len(told) == 5
    for job, row in zip(told, sorted(read, key=attrgetter("id")), strict=True):
        assert job == row


def test_the_next_pods_of_the_same_settings_take_fewer_statements(org):
    shelf = Shelf().as_of(("as", "now"))
    first = offered(org, plain(0), shelf=shelf)[1]
    second = offered(org, plain(1), shelf=shelf.as_of(("as", "now")))[1]
    assert len(second) == len(first) - 4
    third = offered(org, plain(2), shelf=shelf.as_of(("as", "then")))[1]
    assert len(third) == len(first)


def test_nobody_is_refused_by_what_was_read_before(org):
    """A tenant, a GPU type, a rule and nodes that appeared just before the pods count."""
    shelf = Shelf().as_of(("as", "now"))
    large = plain("large", gpus=16)
    offers, _ = offered(org, plain(0), plain(1, "new"), large, shelf=shelf)
    assert refused(offers) == {"p-1": "UnknownTenant", "p-large": "ExceedsCapacity"}
    Tenant.objects.create(name="new", parent=org.tenants["law"])
    NodeRecord.objects.update(gpus=16)
    offers, _ = offered(org, plain(2, "new"), large, plain(3, "nobody"), shelf=shelf)
    assert refused(offers) == {"p-3": "UnknownTenant"}
    assert sorted(job.name for offer in offers for job in offer.jobs) == ["p-2", "p-large"]
    assert Job.objects.count() == 3


def test_what_is_offered_again_becomes_no_second_job(org):
    pods = [plain(n) for n in range(3)]
    offered(org, *pods)
    offers, _ = offered(org, *pods, plain(3))
    assert (refused(offers), Job.objects.count(), JobEvent.objects.count()) == ({}, 4, 4)
