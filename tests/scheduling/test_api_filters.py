"""Every list refuses a filter value that the reader may not know of, and names the valid ones."""

from datetime import UTC, datetime

import pytest
from django_filters import CharFilter

from scheduling.models import Job, Placement
from tenants.api.filters import FilterSet, MomentField, Named
from tests.scheduling.test_api_jobs_list import job

NODES = "clusters/demo/nodes"
NOBODYS = "00000000-0000-4000-8000-000000000000"


def every(of):
    for one in of.__subclasses__():
        yield one
        yield from every(one)


def test_each_filter_by_a_text_searches_or_knows_the_names_that_there_are():
    sets = list(every(FilterSet))
    assert {"JobFilter", "TenantFilter", "WebhookFilter", "ReplayFilter"} <= {
        one.__name__ for one in sets
    }
    # The view asks the cluster for its shards; names are looked up as a whole.
    known = {("GlobalQueueFilter", "scope")}
    assert [
        (one.__name__, name)
        for one in sets
        for name, its in one.base_filters.items()
        if isinstance(its, CharFilter)
        and not isinstance(its, Named)
        and name not in ("q", "name")
        and (one.__name__, name) not in known
    ] == []


def told(org, who, path, query):
    answer = org.client(who).get(f"/api/v1/{path}?{query}")
    assert answer.status_code == 400, answer.json()
    (error,) = answer.json()["errors"]
    assert answer.json()["detail"].endswith(error["detail"])
    return error["parameter"], error["detail"]


def listed(org, who, path, query):
    answer = org.client(who).get(f"/api/v1/{path}?{query}")
    assert answer.status_code == 200, answer.json()
    return len(answer.json()["items"])


@pytest.mark.parametrize(
    ("path", "query", "known", "text"),
    [
        ("jobs", "tenant=vison", "tenant=law", "tenant “vison” that you may see, but “vision”"),
        ("jobs", "user=eva", "user=lex", "user “eva” that you may see, but “eve”"),
        ("jobs", "cluster=demos", "cluster=demo&user=lex", "cluster “demos”, but “demo”"),
        ("jobs", "gpu_type=h1000", "gpu_type=T4", "GPU type “h1000”, but “H100”"),
        ("jobs", "queue=defalt", "queue=default", "queue “defalt” that you may see, but “default”"),
        ("jobs", "reason=OOMKiled", "reason=OOMKilled", "reason “OOMKiled”, but “OOMKilled”"),
        ("jobs", "reason=onhold", "reason=OnHold", "reason “onhold”, but “OnHold”"),
        ("jobs", f"array={NOBODYS}", None, f"array {NOBODYS} that you may see"),
        ("events", f"job={NOBODYS}", None, f"job {NOBODYS} that you may see"),
        (NODES, "gpu_type=B300", "gpu_type=T4", "GPU type “B300”"),
        (NODES, "leaf=leaf1", "leaf=leaf-0&q=z", "leaf “leaf1”, but “leaf-1”"),
        (NODES, "spine=s", None, "spine “s”"),
        (NODES, "zone=z", None, "zone “z”"),
        (NODES, "scope=shard-0", None, "scope “shard-0”"),
        ("tenants", "parent=vison", "parent=law", "tenant “vison” that you may see, but “vision”"),
        ("quotas", "tenant=la", "tenant=law", "tenant “la” that you may see, but “law”"),
        ("quotas", "gpu_type=100", "gpu_type=T4", "GPU type “100”, but “H100”"),
        ("audit", "tenant=nobody", "tenant=law", "tenant “nobody” that you may see"),
        ("audit", "actor=nobody", "actor=lex", "user “nobody” that you may see"),
        ("audit", "action=quota.set", "action=quota", "action “quota.set”, but “quota.deleted”"),
        ("replays", "cluster=demon", "cluster=demo", "cluster “demon”, but “demo”"),
    ],
)
def test_a_name_that_there_is_not_is_refused_with_the_one_that_is_near(
    org, path, query, known, text
):
    parameter, detail = told(org, "ops", path, query)
    assert parameter == query.partition("=")[0]
    assert detail.startswith(f"There is no {text.replace('but ', 'but there is ')}")
    if known:
        assert listed(org, "ops", path, known) == 0


def test_all_wrong_names_are_told_at_once(org):
    answer = org.client("ops").get("/api/v1/jobs?cluster=x&user=y&gpu_type=z&state=PENDING")
    assert {e["parameter"] for e in answer.json()["errors"]} == {"cluster", "user", "gpu_type"}


def test_who_is_not_of_ones_tenants_is_refused_as_who_does_not_exist(org):
    job(org, tenant="law", user="lex")
    said = {told(org, "eve", "jobs", f"user={n}")[1].replace(n, "N") for n in ("lex", "ops", "who")}
    assert said == {"There is no user “N” that you may see."}
    # Similar to a name that she may not see.
    assert told(org, "eve", "jobs", "user=lexx")[1] == ("There is no user “lexx” that you may see.")
    assert listed(org, "eve", "jobs", "user=joe") == 0  # a member of her tenant
    job(org, tenant="vision", user="root", i=1)  # from a tenant above it
    assert listed(org, "eve", "jobs", "user=root") == 1
    assert told(org, "ada", "audit", "actor=lex")[0] == "actor"


def test_a_gpu_type_that_is_withdrawn_is_known_as_long_as_pods_had_it(org):
    made = job(org, model="A100")
    org.gpu_types["T4"].delete()
    assert told(org, "ops", "jobs", "gpu_type=T4")[0] == "gpu_type"
    pod = Placement.objects.create(
        job=made,
        attempt=1,
        pod_set=0,
        ordinal=0,
        namespace="kant-jobs",
        pod_name="p",
        node="gone-node",
        gpu_model="T4",
        intended_at=datetime(2030, 1, 1, tzinfo=UTC),
    )
    assert listed(org, "ops", "jobs", "gpu_type=T4") == 0
    path = f"jobs/{Job.objects.get().pk}/pods"
    assert listed(org, "eve", path, f"node={pod.node}") == 1
    assert listed(org, "eve", path, "node=h000") == 0
    assert told(org, "eve", path, "node=h0000") == (
        "node",
        "There is no node “h0000”, but there is “h000”.",
    )


@pytest.mark.parametrize("offset", ["-23:59", "-16:00", "+16:00", "+23:59", "+05:30", ""])
@pytest.mark.parametrize(
    ("path", "after"),
    [("jobs", "submitted_after"), ("audit", "after"), ("jobs", "submitted_before")],
)
def test_a_time_may_have_any_offset(org, path, after, offset):
    job(org, tenant="vision", user="eve")
    text = f"3102-01-11T22:25:21{offset}".replace("+", "%2B")
    assert listed(org, "ops", path, f"{after}={text}") == (after == "submitted_before")
    assert MomentField().clean(text.replace("%2B", "+")).tzinfo is UTC
