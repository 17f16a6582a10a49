"""An act over REST and its dry run refuse the same things in the same words and at the same
fields, whoever asks and whatever the state is. A dry run changes nothing."""

import itertools
from collections import Counter
from functools import partial

import pytest
from django.utils import timezone

from scheduling.models import Cluster, ClusterPolicy, Job, PodSet
from tenants.models import AuditRecord, DraftCell, GpuType, Queue, Quota, Tenant
from tests.cases import NIGHTLY, some
from tests.scheduling.alike import PEOPLE, refused_alike, rehearsed_and_done, rows, taken_back
from tests.scheduling.test_rehearsal import fleet, runs  # noqa: F401 - a fixture

LONG = "x" * 2001
MATCHES = {"If-Match": '"1"'}
WHY = {"reason": "r"}
NUMBERS = (-1, -0.5, 0.0001, 1e10, 10**9 + 1, "x", "8", None, True, [], {})


@pytest.fixture
def act(fleet):  # noqa: F811
    """`act(who, method, path, body, **headers)` performs an act and its rehearsal; `act.found`
    counts the answers by status. No scheduler is connected, so nothing happens ahead of the
    request."""
    Cluster.objects.update(connected=False)
    clients = {who: fleet.client(who) for who in PEOPLE}
    found = Counter()

    def do(who, method, path, body=None, **headers):
        about = f"{who} {method} {path} {str(body)[:300]} {headers}"
        done, _ = rehearsed_and_done(
            about, clients[who], method, f"/api/v1/{path}", body, **headers
        )
        assert done.status_code < 500, about
        found[done.status_code] += 1
        return done

    do.found = found
    return do


@pytest.fixture
def tree(fleet):  # noqa: F811
    """ml may distribute 24 of the 32 H100: vision gets 16, of which vision-lab has 8. Law has
    the other 8."""
    for name, gpus in (("ml", 24), ("vision", 16), ("vision-lab", 8), ("law", 8)):
        Quota.objects.update_or_create(
            tenant=fleet.tenants[name],
            gpu_type=fleet.gpu_types["H100"],
            defaults={"guaranteed_milli": 1000 * gpus},
        )
    Cluster.objects.update(connected=False)
    return fleet


# --- quotas ---------------------------------------------------------------------------------------
TERMS = (
    *({"guaranteed": gpus} for gpus in (0, 4, 8, 16, 17.5, 24, 25, 33, *NUMBERS)),
    {},
    *({"guaranteed": 16, "mode": mode} for mode in ("shared", "isolated", "odd", "", None, 1)),
    *(
        {"guaranteed": 16, limit: gpus, "mode": mode}
        for limit in ("borrow_limit", "lend_limit")
        for gpus in (0, 8, 17, *NUMBERS)
        for mode in ("shared", "isolated")
    ),
    {"guaranteed": 16, "unknown": 1},
)
VERSIONS = ({}, MATCHES, {"If-Match": '"2"'}, {"If-Match": "x"}, {"If-Match": "*"},
            {"If-None-Match": "*"}, {"If-None-Match": '"1"'}, {"If-Match": '"0"'})  # fmt: skip


def test_one_quota(tree, act):
    put = partial(act, "ops", "put", "quotas/vision/H100")
    for terms in some(TERMS):
        put(terms | WHY, **MATCHES)
    for reason in ("", " ", LONG, None, 1, "\0"):
        put({"guaranteed": 16, "reason": reason}, **MATCHES)
    put({"guaranteed": 16}, **MATCHES)
    for body in ([], "x", None, {"guaranteed": {"x": 1}}):
        put(body, **MATCHES)
    for headers in VERSIONS:
        put({"guaranteed": 12} | WHY, **headers)
        act("ops", "delete", "quotas/vision/H100?reason=r", **headers)
        act("ops", "delete", "quotas/vision/T4?reason=r", **headers)
        act("ops", "put", "quotas/vision/T4", {"guaranteed": 0} | WHY, **headers)
    for reason in ("", "?reason=", f"?reason={LONG}", "?reason=r&x=1"):
        act("ops", "delete", f"quotas/vision/H100{reason}", **MATCHES)
    for overcommit in ("true", "false", "x"):
        for who in ("ops", "root"):
            path = f"quotas/vision/H100?overcommit={overcommit}"
            act(who, "put", path, {"guaranteed": 40} | WHY, **MATCHES)
    assert {200, 201, 204, 400, 404, 412, 422, 428} <= act.found.keys()


def test_who_sets_one_quota_of_whom(tree, act, settings):
    for most in (None, 2.0):
        settings.KANT_QUOTA_APPROVAL_GPUS = most
        tenants, types = ("ml", "vision", "vision-lab", "law", "nobody"), ("H100", "T4")
        cells = itertools.product(PEOPLE, types, tenants, (0, 7, 12, 16))
        for who, gpu_type, tenant, gpus in some(cells):
            headers = {"If-None-Match": "*"} if gpu_type == "T4" else MATCHES
            act(who, "put", f"quotas/{tenant}/{gpu_type}", {"guaranteed": gpus} | WHY, **headers)
        for who, gpu_type, tenant in some(itertools.product(PEOPLE, types, tenants)):
            act(who, "delete", f"quotas/{tenant}/{gpu_type}?reason=r", **MATCHES)
    assert {200, 201, 204, 403, 404, 409, 422} <= act.found.keys()


SETS = (
    (("vision", 16),),
    (("vision", 12), ("law", 12)),  # the GPUs that one gives are those that the other takes
    (("law", 12), ("vision", 12)),
    (("ml", 16), ("vision", 8), ("law", 16)),
    (("ml", 8), ("law", 24)),  # ml has given out more already
    (("vision", 25),),
    (("vision", 4),),
    (("vision-lab", 17), ("vision", 20)),
    (("vision-lab", 17), ("vision", 12)),
    (("ml", 33),),
    (("vision", -1), ("law", 0.0001)),
    (("vision", "x"), ("nobody", 4)),
    (("vision", 1e10),),
)


def drafted(client, quotas):
    """Write several quotas into a user's draft. Returns the address that applies it and the
    version, or the refusal of what the draft does not accept."""
    who = client.get("/api/v1/me").json()["username"]
    path = f"/api/v1/quota-drafts/{who}"
    answer = client.patch(path, {"cells": quotas}, format="json")
    return path, answer


def fields(answer):
    """Return the fields at fault, without their paths, and the messages about them."""
    told = answer.json()
    found = [(e["pointer"].split("/")[3:], e["detail"]) for e in told["errors"]]
    return answer.status_code, sorted(found) or told["detail"]


@pytest.mark.parametrize("who", ["ops", "root", "ada", "eve", "vic", "lex"])
def test_several_quotas_are_previewed_as_a_draft_of_them_is_applied(tree, who):
    client, refused = tree.client(who), 0
    more = ({"mode": "isolated"}, {"mode": "odd"}, {"borrow_limit": -1}, {"lend_limit": "x"},
            {"mode": "isolated", "borrow_limit": 4}, {"borrow_limit": 4, "lend_limit": None},
            {"gpu_type": "X1"})  # fmt: skip
    sets = [[{"tenant": t, "gpu_type": "H100", "guaranteed": g} for t, g in one] for one in SETS]
    sets += [[{"tenant": "vision", "gpu_type": "H100", "guaranteed": 12} | m] for m in more]
    for quotas in sets if who == "root" else some(sets):
        before = rows()
        previewed = client.post("/api/v1/quotas:preview", {"quotas": quotas}, format="json")
        assert rows() == before, quotas
        with taken_back():
            path, done = drafted(client, quotas)
            if done.status_code == 200:
                headers = {"If-Match": done["ETag"]}
                done = client.post(f"{path}/apply", WHY, format="json", headers=headers)
        about = f"{who} {quotas}: {previewed.content} {done.content}"
        assert (previewed.status_code == 200) == (done.status_code == 200), about
        if done.status_code != 200:
            refused += 1
            assert fields(previewed) == fields(done), about
    assert refused > 0
    assert refused < len(sets) or who not in ("ops", "root")


APPLIES = (
    WHY,
    {},
    {"reason": ""},
    {"reason": LONG},
    WHY | {"starts_at": "2020-01-01T00:00:00Z"},
    WHY | {"starts_at": "2100-01-01T00:00:00Z"},
    WHY | {"starts_at": "x"},
    WHY | {"ends_at": "2020-01-01T00:00:00Z"},
    WHY | {"unknown": 1},
)
CELLS = (
    *({"guaranteed": g} for g in (0, 4, 12, 16, 25)),
    {"guaranteed": 12, "version": 7},
    {"guaranteed": 12, "mode": "isolated"},
    *({"typed": t} for t in ("12", "x", "1,000", "１２", "-3", "1e1", "4 5", "8 isolated borrow 2",
                             "8 borrow", "12 shared borrow 4 lend any", "", "0.0001")),
)  # fmt: skip
PLACES = (
    {"tenant": "vision", "parent": "law"},
    {"tenant": "vision", "parent": None},
    {"tenant": "ml", "parent": "vision-lab"},
    {"tenant": "vision", "parent": "vision"},
    {"tenant": "vision-lab", "parent": "ml"},
    {"tenant": "vision", "weight": 3},
    {"tenant": "law", "weight": 0.5, "parent": "ml"},
)


@pytest.mark.parametrize(("who", "most"), [("ops", None), ("root", None), ("root", 2.0)])
def test_drafts(tree, act, settings, who, most):
    settings.KANT_QUOTA_APPROVAL_GPUS = most
    client = tree.client(who)
    bodies = [{"cells": [{"tenant": t, "gpu_type": "H100"} | cell]}
              for cell in CELLS for t in ("vision", "vision-lab")]  # fmt: skip
    bodies += [{"tenants": [one]} for one in PLACES]
    bodies += [{"tenants": [PLACES[0]], "cells": [{"tenant": "law", "gpu_type": "H100",
                                                  "guaranteed": 24}]}]  # fmt: skip
    path = f"quota-drafts/{who}"
    for body in some(bodies):
        act(who, "patch", path, body)
        with taken_back():
            written = client.patch(f"/api/v1/{path}", body, format="json")
            if written.status_code != 200:
                continue
            tag = {"If-Match": written["ETag"]}
            act(who, "post", f"{path}/apply", WHY, **tag)
            if "cells" not in body or body["cells"][0].get("guaranteed") != 12:
                continue
            for given in APPLIES if most is None else some(APPLIES):
                act(who, "post", f"{path}/apply", given, **tag)
            for headers in ({}, {"If-Match": '"99"'}, {"If-Match": "x"}):
                act(who, "post", f"{path}/apply", WHY, **headers)
            act(who, "delete", path)
            # Another person was faster, or the tenant no longer exists.
            Quota.objects.filter(tenant__name__startswith="vision").update(version=3)
            act(who, "post", f"{path}/apply", WHY, **tag)
            DraftCell.objects.update(version=3)
            GpuType.objects.filter(name="T4").delete()
            act(who, "post", f"{path}/apply", WHY, **tag)
            Tenant.objects.filter(name="vision-lab").delete()
            act(who, "post", f"{path}/apply", WHY, **tag)
    assert {200, 412, 422, 428} <= act.found.keys()


# --- tenants --------------------------------------------------------------------------------------
NEW = (
    {"name": "new", "parent": "vision"}, {"name": "vision"}, {"name": "No!", "parent": "vision"},
    {"name": "new"}, {"name": "new", "parent": "nobody"},
    {"name": "new", "parent": "vision", "namespace": "x"}, {},
)  # fmt: skip


def test_tenants(tree, act, settings):
    changes = (
        *({"parent": p} for p in ("ml", "law", "vision-lab", "vision", "nobody", None, 1)),
        *({"weight": w} for w in (2, 0, -1, 1e9, "x", None)),
        *({n: v} for n in ("max_running", "max_waiting") for v in (0, 5, -1, 10**7, "x", None)),
        *({"max_priority": v} for v in (5, 10**7, "x", None)),
        *({"min_runtime_s": v} for v in (60, -1, 1e12, None)),
        *({"namespace": v} for v in ("team", "Team!", "default", "kube-system", None)),
        {"title": "T"}, {"title": "x" * 201}, {"is_active": False}, {"is_active": "x"}, {},
        {"unknown": 1}, {"weight": 2, "reason": LONG},
    )  # fmt: skip
    for most in (None, 2.0):
        settings.KANT_QUOTA_APPROVAL_GPUS = most
        for who in PEOPLE:
            for body in changes if who == "ops" and not most else some(some(changes)):
                act(who, "patch", "tenants/vision", body)
    for who in PEOPLE:
        act(who, "patch", "tenants/nobody", {"title": "x"})
        for tenant in ("ml", "vision", "vision-lab", "law", "nobody"):
            act(who, "delete", f"tenants/{tenant}")
        for body in NEW if who in ("ops", "ada") else some(NEW):
            act(who, "post", "tenants", body)
    runs(tree, ["h000"], tenant="vision-lab")
    act("ops", "delete", "tenants/vision-lab")
    Job.objects.update(state="SUCCEEDED")
    act("ops", "delete", "tenants/vision-lab")
    assert {200, 201, 204, 403, 404, 409, 422} <= act.found.keys()


# --- policies -------------------------------------------------------------------------------------
POLICIES = (
    {},
    {"queueing": "backfill"},
    {"queueing": "odd"},
    {"fair_users": True},
    {"fair_users": True, "fair_share": True},
    *({"blame_s": v} for v in (60, -1, 10**12, "x", None, True)),
    *({"max_attempts": v} for v in (3, -1, 2.5, 10**9, "x")),
    *({"defrag_loss": v} for v in (0.5, 2, -1, "x")),
    {"spare_nodes": {"H100": 1}}, {"spare_nodes": {"X1": 1}}, {"spare_nodes": {"H100": -1}},
    {"strategies": {"training": "odd"}}, {"strategies": {"odd": "binpack"}},
    {"preemption": ["odd"]}, {"preemption": "priority"},
    {"shards": [{"name": "a", "gpu_models": ["H100"]}, {"name": "b"}]},
    {"shards": [{"name": "a"}, {"name": "b"}]}, {"shards": [{"name": "No!"}]},
    {"unknown": 1},
    [], None, "x",
)  # fmt: skip


def test_policies(fleet, act):  # noqa: F811
    path = "clusters/demo/policy"
    for stored in (0, 1):
        if stored:
            ClusterPolicy.objects.create(cluster=fleet.cluster, document={"fair_share": True})
        tag = {"If-Match": f'"{stored}"'}
        for policy in POLICIES if stored else some(POLICIES):
            act("ops", "put", path, {"policy": policy}, **tag)
        for who in PEOPLE:
            act(who, "put", path, {"policy": {"blame_s": 60}}, **tag)
            act(who, "put", "clusters/gone/policy", {"policy": {}}, **tag)
        for body in ({}, {"policy": {}, "reason": LONG}, {"policy": {}, "x": 1}, []):
            act("ops", "put", path, body, **tag)
        for headers in VERSIONS:
            act("ops", "put", path, {"policy": {"blame_s": 60}}, **headers)
    fleet.cluster.is_active = False
    fleet.cluster.save()
    act("ops", "put", path, {"policy": {"blame_s": 60}}, **MATCHES)
    assert {200, 400, 403, 404, 412, 422, 428} <= act.found.keys()


# --- reverts --------------------------------------------------------------------------------------
def test_reverts(tree, act):
    ops = tree.client("ops")

    def put(path, body, version):
        tag = {"If-Match": f'"{version}"'}
        answer = ops.put(f"/api/v1/{path}", body, format="json", headers=tag)
        assert answer.status_code == 200, answer.json()

    put("quotas/vision-lab/H100", {"guaranteed": 4} | WHY, 1)
    put("clusters/demo/policy", {"policy": {"blame_s": 60}}, 0)
    ops.patch("/api/v1/tenants/vision", {"weight": 2.0}, format="json")
    queue = "/api/v1/queues/vision/default"
    ops.patch(queue, {"rank": 3}, format="json", headers=MATCHES)
    last = {one.action: one.pk for one in AuditRecord.objects.order_by("at")}
    paths = {
        f"audit/{last['quota.changed']}/revert": 2,
        f"clusters/demo/policy/changes/{last['policy.changed']}/revert": 1,
        f"tenants/vision/changes/{last['tenant.changed']}/revert": 0,
        f"queues/vision/default/changes/{last['queue.changed']}/revert": 2,
    }

    def all_alike():
        for path, version in paths.items():
            for who in ("ops", "root", "ada", *some(("eve", "joe", "vic", "lex"))):
                act(who, "post", path, WHY, **{"If-Match": f'"{version}"'})
            for body in ({}, {"reason": ""}, {"reason": LONG}, {"x": 1}):
                act("ops", "post", path, body, **{"If-Match": f'"{version}"'})
            for headers in some(VERSIONS):
                act("ops", "post", path, WHY, **headers)
            act("ops", "post", path.replace("/revert", "x/revert"), WHY)

    all_alike()
    assert act.found[200]
    put("quotas/vision-lab/H100", {"guaranteed": 6} | WHY, 2)  # another person has changed it since
    put("clusters/demo/policy", {"policy": {"blame_s": 90}}, 1)
    ops.patch("/api/v1/tenants/vision", {"weight": 3.0}, format="json")
    ops.patch(queue, {"rank": 4}, format="json", headers={"If-Match": '"2"'})
    paths = {path: version + 1 for path, version in paths.items()}
    act.found.clear()
    all_alike()
    assert act.found[409]
    assert not act.found[200]


# --- queues ---------------------------------------------------------------------------------------
SETTINGS = (
    {"title": "T"}, {"title": "x" * 201}, {"rank": 3}, {"rank": 10**7}, {"rank": "x"},
    *({"weight": w} for w in (2, 0, -1, 1e9, "x", None)),
    *({n: v} for n in ("max_running", "max_waiting") for v in (0, 5, -1, 10**7, "x", None)),
    {"max_gpus": {"H100": 8}}, {"max_gpus": {"X1": 8}}, {"max_gpus": {"H100": -1}},
    {"max_gpus": {"H100": 0.0001}}, {"max_gpus": []},
    {"default_priority": 5, "max_priority": 3}, {"default_priority": 10**7},
    {"default_run_limit_s": 60, "max_run_limit_s": 30}, {"max_run_limit_s": 0},
    {"kinds": ["training"]}, {"kinds": ["odd"]}, {"roles": ["viewer"]}, {"roles": ["engineer"]},
    {"users": ["eve"]}, {"users": ["nobody"]}, {"groups": ["g"]}, {"order": "odd"},
    {"default_preemptible": "x"}, {"unknown": 1}, {}, {"rank": 1, "reason": LONG},
)  # fmt: skip
VERBS = ("hold", "release", "drain", "close", "open", "explode")


def test_queues(tree, act):
    night = Queue.objects.create(tenant=tree.tenants["vision"], name="night")
    path = "queues/vision/night"
    for number, settings in enumerate(SETTINGS):  # by day each in one of the two ways
        if NIGHTLY or number % 2:
            act("ada", "patch", path, settings, **MATCHES)
        if NIGHTLY or not number % 2:
            act("ada", "post", "queues", {"tenant": "vision", "name": "new"} | settings)
    for who in PEOPLE:
        act(who, "patch", path, {"rank": 2}, **MATCHES)
        act(who, "patch", "queues/vision/nope", {"rank": 2}, **MATCHES)
        act(who, "delete", f"{path}?reason=r", **MATCHES)
        made = itertools.product(("vision", "law", "nobody"), ("new", "night", "No!", ""))
        for tenant, name in some(made):
            act(who, "post", "queues", {"tenant": tenant, "name": name})
    for verb, who in some(itertools.product(VERBS, PEOPLE)):
        act(who, "post", f"{path}/{verb}", WHY)
    for state in ("open", "held", "draining", "closed"):
        Queue.objects.filter(pk=night.pk).update(state=state)
        for verb in VERBS:
            act("ada", "post", f"{path}/{verb}", WHY)
        said = ({}, {"reason": " "}, {"reason": LONG}, {"reason": "r", "x": 1})
        for verb, body in some(itertools.product(VERBS, said)):
            act("ada", "post", f"{path}/{verb}", body)
    for headers in VERSIONS:
        act("ada", "patch", path, {"rank": 2}, **headers)
        act("ada", "delete", f"{path}?reason=r", **headers)
    for reason in ("", "?reason=", f"?reason={LONG}"):
        act("ada", "delete", f"{path}{reason}", **MATCHES)
    act("ada", "delete", "queues/vision/default?reason=r", **MATCHES)
    job = runs(tree, ["h000"], tenant="vision")
    Job.objects.filter(pk=job.pk).update(queue="night")
    act("ada", "delete", f"{path}?reason=r", **MATCHES)
    act("ada", "patch", path, {"max_running": 0}, **MATCHES)
    night.delete()
    act("ada", "patch", path, {"rank": 2}, **MATCHES)
    act("ada", "post", f"{path}/hold", WHY)
    assert {200, 201, 204, 403, 404, 409, 412, 422, 428} <= act.found.keys()


# --- jobs -----------------------------------------------------------------------------------------
CHANGES = (
    *({"priority": v} for v in (5, -5, 50, 10**7, "x", None)),
    *({n: v} for n in ("declared_s", "run_limit_s") for v in (60, 0, -1, 1e12, "x", None)),
    {"queue": "night"}, {"queue": "nope"}, {"queue": 1}, {"max_restarts": 2},
    {"max_restarts": -1}, {"after": ["x"]}, {"after": []}, {"unknown": 1}, {},
    *({"pod_sets": [{"name": "w", "count": n}]} for n in (2, 4, 0, -1, 10**6, "x")),
    {"pod_sets": [{"name": "odd", "count": 2}]}, {"pod_sets": []}, {"pod_sets": [{"name": "w"}]},
)  # fmt: skip
JOB_STATES = ("PENDING", "ADMITTED", "SUCCEEDED", "RUNNING", "QUOTA_RESERVED", "CANCELLED")


@pytest.fixture
def jobs(tree):
    """A job and an array of eve's; the queue night takes priorities up to 10."""
    vision, now = tree.tenants["vision"], timezone.now()
    Tenant.objects.filter(pk=vision.pk).update(max_priority=20)
    Queue.objects.create(tenant=vision, name="night", max_priority=10)
    eve = tree.client("eve")
    asked = {"tenant": "vision", "gpu_type": "H100", "gpus": 1}
    array = eve.post("/api/v1/jobs", asked | {"name": "a", "array": {"count": 3}}, format="json")
    job = Job.objects.create(
        name="one", tenant=vision, cluster=tree.cluster, submitted_at=now, user=tree.users["eve"],
        state="PENDING", gpu_milli=2000,
    )  # fmt: skip
    PodSet.objects.create(job=job, index=0, name="w", count=2, gpus=1, gpu_models=["H100"])
    return job.pk, array.json()["id"]


@pytest.mark.parametrize("state", some(JOB_STATES))
def test_jobs(jobs, act, state):
    key, array = jobs
    for held in (False, True):
        over = {"ended_at": timezone.now()} if state in ("SUCCEEDED", "CANCELLED") else {}
        Job.objects.update(state=state, held=held, admitted_at=timezone.now(), **over)
        for path in (f"jobs/{key}", f"job-arrays/{array}"):
            all_of_it = held and (NIGHTLY or path.startswith("jobs"))
            for body in CHANGES if all_of_it else some(some(CHANGES)):
                act("eve", "patch", path, body)
            for who in PEOPLE if all_of_it else ("eve", "joe"):
                act(who, "patch", path, {"priority": 5})
                for verb in ("hold", "release", "cancel"):
                    act(who, "post", f"{path}/{verb}")
    gone = f"jobs/{key}".replace(str(key)[:4], "0000")
    for verb in ("hold", "release", "cancel"):
        act("eve", "post", f"{gone}/{verb}")
    act("eve", "patch", gone, {"priority": 5})
    assert {403, 404, 409, 422} <= act.found.keys()
    assert act.found[200] or state in ("SUCCEEDED", "CANCELLED")


@pytest.mark.parametrize("state", some(JOB_STATES))
def test_several_jobs_are_refused_one_by_one_as_each_alone(jobs, tree, state):
    key, _ = jobs
    Job.objects.update(state=state)
    for who in ("eve", "joe", "lex"):
        client = tree.client(who)
        for verb, body in (("hold", {}), ("release", {}), ("cancel", {}),
                           *(("change", one) for one in some(CHANGES))):  # fmt: skip
            asked = {"act": verb, "ids": [str(key)], **({"changes": body} if body else {})}
            done, refused = rehearsed_and_done(
                f"{who} {asked}", client, "post", "/api/v1/jobs:act", asked
            )
            if refused:
                continue
            one = done.json()["answers"][0]
            with taken_back():
                alone = (
                    client.patch(f"/api/v1/jobs/{key}", body, format="json")
                    if verb == "change"
                    else client.post(f"/api/v1/jobs/{key}/{verb}")
                )
            assert one["status"] == alone.status_code, f"{who} {asked}"
            if one["problem"]:
                assert one["problem"]["detail"] == alone.json()["detail"]


def test_what_looks_ahead_changes_nothing_either(jobs, act):
    Cluster.objects.update(connected=True)
    act("ops", "put", "quotas/vision/H100", {"guaranteed": 12} | WHY, **MATCHES)
    act("ops", "put", "clusters/demo/policy", {"policy": {"blame_s": 60}}, **{"If-Match": '"0"'})
    act("ops", "patch", "queues/vision/night", {"max_running": 0}, **MATCHES)
    act("ops", "patch", "tenants/vision", {"weight": 2})
    act("eve", "post", f"jobs/{jobs[0]}/hold")
    assert act.found == {200: 5}


# --- what is asked of a request -------------------------------------------------------------------
def test_a_key_that_is_none_is_refused_of_a_rehearsal_too(fleet, act):  # noqa: F811
    for key in ("good", "", "x" * 129, "a\tb"):
        body, headers = {"name": "new"}, {"Idempotency-Key": key}
        assert act("ops", "post", "tenants", body, **headers).status_code in (201, 400)
        job = {"name": "j", "tenant": "vision", "gpu_type": "H100", "gpus": 1}
        act("eve", "post", "jobs", job, **headers)
    assert act.found == {201: 2, 400: 6}


def test_previews_of_clients_without_rights_are_refused_as_the_acts(tree):
    for who in PEOPLE:
        client = tree.client(who)
        quotas = [{"tenant": "vision", "gpu_type": "H100", "guaranteed": 12}]
        previewed = client.post("/api/v1/quotas:preview", {"quotas": quotas}, format="json")
        body = {"guaranteed": 12} | WHY
        with taken_back():
            done = client.put("/api/v1/quotas/vision/H100", body, format="json", headers=MATCHES)
        if done.status_code in (200, 403):
            assert refused_alike(who, previewed, done) == (done.status_code == 403)
