"""Operators' pages, the overview and accounts without a browser."""

import html
import json
import re
from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from metrics.pages.operations.views import FIGURES
from scheduling.engine.shards.division import WIDE
from scheduling.models import Cluster, ClusterPolicy, Job, NodeRecord, Placement
from scheduling.pages.jobs.filters import STATE_CHOICES, STATE_GROUPS
from scheduling.queries.quota_use import quota_uses
from tenants.models import Tenant, User
from tests.cases import paired
from tests.e2e import scene

OPERATORS_ONLY = ["/ops/", "/ops/charts/waits.json", "/api/v1/metrics", "/api/v1/metrics/samples"]


@pytest.mark.parametrize("path", OPERATORS_ONLY)
def test_only_operators_see_all_tenants_together(as_user, path):
    assert as_user("operator").get(path).status_code == 200
    answer = as_user("vera").get(path)
    assert answer.status_code == 403
    assert "all tenants together; only operators" in answer.content.decode()


def test_nodes_are_for_everybody_but_name_only_the_jobs_the_reader_may_see(as_user):
    mine = Placement.objects.filter(job__tenant__name="vision", state="RUNNING").first()
    other = Placement.objects.filter(job__tenant__name="ads", state="RUNNING").first()
    Placement.objects.filter(pk=other.pk).update(node=mine.node)
    for reader, hidden in (("operator", False), ("erin", True)):
        client = as_user(reader)
        found = client.get(f"/ops/nodes/?q={mine.node}").content.decode()
        assert f"/ops/nodes/demo/{mine.node}/" in found
        job_page = client.get(f"/jobs/{mine.job_id}/").content.decode()
        assert f"/ops/nodes/demo/{mine.node}/" in job_page
        page = client.get(f"/ops/nodes/demo/{mine.node}/").content.decode()
        assert f"/jobs/{mine.job_id}/" in page
        assert ("a job of another tenant" in page) == hidden
        for told in (f"/jobs/{other.job_id}/", other.job.name, other.pod_name):
            assert (told in page) != hidden
        assert client.get("/api/v1/clusters/demo/nodes").status_code == 200


def test_a_cluster_that_is_not_connected_is_told_with_the_reason(as_user):
    client = as_user("operator")
    assert "Scheduling has stopped on" not in client.get("/ops/").content.decode()
    why = 'services is forbidden: User "kant" cannot list resource "services"'
    Cluster.objects.update(connected=False, status_message=why)
    told = html.unescape(client.get("/ops/").content.decode())
    assert "Scheduling has stopped on Demo cluster." in told
    assert f"The scheduler cannot work on cluster demo: {why}" in told


def test_a_scheduler_that_is_silent_is_told_where_it_was_waited_for(as_user):
    Cluster.objects.update(last_cycle_at="2026-01-01T00:00:00Z")
    silent = "The scheduler of cluster demo was last heard from at 2026-01-01 00:00:00 UTC."
    client = as_user("operator")
    assert silent in client.get("/ops/").content.decode()
    for state, told in (
        ("PENDING", "It keeps its place in the queue."),
        ("RUNNING", "Its pods keep running;"),
        ("SUCCEEDED", ""),
    ):
        job = Job.objects.filter(state=state).first()
        page = client.get(f"/jobs/{job.pk}/").content.decode()
        assert (silent in page, told in page) == (bool(told), True)


def test_overview_leads_each_role_to_its_own(as_user):
    assert as_user("operator").get("/")["Location"] == "/ops/"
    engineer = as_user("erin").get("/").content.decode()
    assert "Your newest jobs" in engineer
    assert "Newest jobs of your tenants" in as_user("vera").get("/").content.decode()
    viewer = as_user("vik").get("/").content.decode()
    assert "Can start" not in viewer


def test_overview_counts_the_gpus_that_are_held_not_those_asked_for(as_user):
    running = Job.objects.filter(state="RUNNING", tenant__parent__name="research")
    held = sum(u.used for u in quota_uses() if u.tenant == "research")
    job = running.order_by("-gpu_milli").first()
    Job.objects.filter(pk=job.pk).update(gpu_milli=job.gpu_milli + 40_000, gang=False)
    text = as_user("vera").get("/").content.decode()
    assert f'<dd class="sub">{held // 1000} GPUs</dd>' in text
    Placement.objects.update(held_milli=0)
    assert '<dd class="sub">no GPU</dd>' in as_user("vera").get("/").content.decode()


def test_jobs_that_wait_without_gpus_are_told_so(as_user):
    Job.objects.update(gpu_milli=0)
    text = " ".join(as_user("operator").get("/ops/").content.decode().split())
    assert '<dd class="sub">no GPU; oldest' in text


def test_overview_names_a_number_like_the_filter_that_lists_it(as_user):
    client = as_user("vera")
    starting = Job.objects.filter(state="RUNNING", tenant__parent__name="research").first()
    Job.objects.filter(pk=starting.pk).update(state="ADMITTED")
    title = dict(STATE_CHOICES)["active"]
    count = Job.objects.filter(
        state__in=STATE_GROUPS["active"], tenant__parent__name="research"
    ).count()
    text = client.get("/").content.decode()
    assert f'<dt>{title}</dt><dd class="big">{count} ' in text


def test_overview_tells_what_a_new_job_could_start_with_and_why_no_more(as_user):
    client = as_user("erin")
    first = client.get("/").content.decode()
    assert first.count("being worked out…") == 3
    part = client.get("/can-start/").content.decode()
    shown = dict(re.findall(r"Can start, (\w+)</dt><dd class=\"big\">(\d+)", part))
    assert shown.keys() == {"H200", "H100", "L40S"}
    # vision holds 6 of its 8 L40S and may borrow; no more than 68 whole GPUs are free.
    assert 0 < int(shown["L40S"]) <= 64
    for gpu_type, gpus in shown.items():
        per_node = 4 if gpu_type == "L40S" else 8
        document = {"name": "new", "tenant": "vision", "gpu_type": gpu_type, "preempts": False}
        for size, starts in ((int(gpus), True), (max(1, 2 * int(gpus)), False)):
            pods = {"gpus": min(size, per_node), "replicas": max(1, size // per_node)}
            if size:
                answer = client.post(
                    "/api/v1/jobs?dry_run=true", document | pods, content_type="application/json"
                ).json()
                assert (answer["rehearsal"]["outlook"] == "starts") == starts, (gpu_type, size)
    # From now on the page has it from its beginning and asks only for news.
    assert "being worked out…" not in client.get("/").content.decode()
    live = client.get("/", headers={"HX-Request": "true"}).content.decode()
    assert "GPUs now" in live


def test_overview_says_where_nobody_can_tell_what_could_start(as_user):
    client = as_user("erin")
    Cluster.objects.update(connected=False, status_message="")
    part = client.get("/can-start/").content.decode()
    assert "The scheduler has no connection to cluster demo." in part
    assert client.get("/can-start/").status_code == 200
    assert as_user("vik").get("/can-start/").content.decode().strip() == ""


def test_someone_without_a_tenant_is_told_what_to_do(client, db):
    client.force_login(User.objects.create_user("new", password=scene.PASSWORD))
    for path in ("/", "/quotas/", "/tenants/"):
        assert "You belong to no tenant yet" in client.get(path).content.decode()


def test_an_empty_kant_says_what_comes_first(client, db):
    client.force_login(User.objects.create_user("operator", password="x", is_operator=True))
    assert "No cluster is connected" in client.get("/ops/").content.decode()
    assert "No nodes yet" in client.get("/ops/nodes/").content.decode()
    assert "No jobs yet" in client.get("/jobs/").content.decode()
    for name in FIGURES:
        assert client.get(f"/ops/charts/{name}.json").status_code == 200


def test_the_policy_in_force_is_shown(as_user):
    def policy() -> str:
        page = as_user("operator").get("/ops/").content.decode().partition('id="policy-demo"')[2]
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))

    assert "the defaults; nothing was changed" in policy()
    assert "Queueing best-effort-fifo" in policy()
    document = {"queueing": "backfill", "preemption": ["reclaim"], "fair_share": True}
    row = ClusterPolicy.objects.create(cluster=Cluster.objects.get(), document=document, version=4)
    told = policy()
    fields = ("Queueing backfill", "Preemption reclaim", "Fair share yes", "Shards none")
    for part in (
        "version 4, set",
        "Backfill after 10 min",
        "Strategies training e-binpack",
        *fields,
    ):
        assert part in told
    row.document = {"queueing": "of-a-newer-version"}
    row.save()
    assert "this version cannot read it" in policy()


def test_ticks_of_beat_that_stay_away_are_told(as_user):
    client = as_user("operator")
    lease = Cluster.objects.get(name="demo").leases.create()
    lease.expires_at = timezone.now() + timedelta(minutes=1)
    lease.save()
    assert "Celery beat sends no ticks." not in client.get("/ops/").content.decode()
    lease.pace |= {"own_clock": True}
    lease.save()
    page = client.get("/ops/").content.decode()
    assert "Celery beat sends no ticks." in page
    assert "The scheduler of demo uses its own clock meanwhile" in page


def test_who_leads_the_shards_of_a_divided_cluster(as_user):
    cluster = Cluster.objects.get(name="demo")
    client = as_user("operator")
    assert "Schedulers of" not in client.get("/ops/").content.decode()
    for scope, holder in (("north", "host-a:1:x"), (WIDE, "")):
        until = timezone.now() + timedelta(minutes=1) if holder else None
        cluster.leases.create(scope=scope, holder=holder, expires_at=until)
    NodeRecord.objects.filter(name="node-005").update(scope=WIDE)
    NodeRecord.objects.filter(name="node-006").update(scope="north")
    text = " ".join(client.get("/ops/").content.decode().split())
    assert re.search(
        r"north</th><td class=\"num\"[^>]*>1</td> <td[^>]*><span[^>]*>host-a:1:x", text
    )
    assert re.search(
        r"wide .*?</th><td class=\"num\"[^>]*>1</td> <td[^>]*><span class=\"chip bad\"", text
    )
    page = client.get("/ops/nodes/demo/node-005/").content.decode()
    assert "lent to jobs that fit in no single shard" in page
    assert "shard north" in client.get("/ops/nodes/demo/node-006/").content.decode()


def test_quotas_are_a_tree_of_bars_on_one_scale(as_user):
    def rows(query: str) -> list[tuple[str, int, float]]:
        """Return tenant, depth, and how much of the width each bar takes up."""
        page = as_user("operator").get(f"/ops/{query}").content.decode()
        tree = page.partition("quota-tree")[2].partition("</table>")[0]
        found = []
        for row in tree.split("<tr>")[2:]:
            name, depth = re.search(r"/tenants/(\w+)/", row)[1], re.search(r"depth-(\d)", row)[1]
            track, borrowed = (
                float(re.search(rf'class="{part}"[^>]* width="([\d.]+)"', row)[1])
                for part in ("track", "borrowed")
            )
            found.append((name, int(depth), track + borrowed))
        return found

    tree = rows("")
    assert {name: depth for name, depth, _ in tree} == {
        name: int(parent is not None) for name, (parent, _) in scene.TREE.items()
    }
    names = [name for name, _, _ in tree]
    assert names.index("research") < names.index("vision") < names.index("products")
    width = {name: width for name, _, width in tree}
    assert max(width.values()) == pytest.approx(100, abs=0.1)
    gpus = {name: sum(amounts) for name, amounts in scene.QUOTAS.items()}
    assert width["ads"] / width["products"] == pytest.approx(gpus["ads"] / gpus["products"], 0.01)
    held: Counter[str] = Counter()
    for use in quota_uses():
        held[use.tenant] += use.borrowed
    borrowed = [
        held[name] for name, depth, _ in tree if depth and name in ("vision", "nlp", "speech")
    ]
    assert borrowed == sorted(borrowed, reverse=True)
    assert [name for name, *_ in rows("?gpu=L40S")] != names


@pytest.mark.parametrize(
    ("name", "query"),
    paired(FIGURES, ["", "?gpu=H200&window=1h", "?cluster=demo&gpu=L40S&window=7d"]),
)
def test_charts_are_figures_with_a_finding_and_a_table(as_user, name, query):
    figure = json.loads(as_user("operator").get(f"/ops/charts/{name}.json{query}").content)
    assert figure["data"]
    meta = figure["layout"]["meta"]
    assert meta["summary"].endswith(".")
    assert all(len(row) == len(meta["table"]["columns"]) for row in meta["table"]["rows"])


def test_every_colour_of_a_chart_has_a_name_in_the_style_sheet(as_user):
    from tests.e2e.test_palette import CSS

    client = as_user("operator")
    for name in FIGURES:
        used = set(
            re.findall(r'"(--[\w-]+)"', client.get(f"/ops/charts/{name}.json").content.decode())
        )
        missing = {c for c in used if f"{c}:" not in CSS}
        assert missing == set(), name


def test_an_unchanged_chart_is_not_sent_again(as_user):
    client = as_user("operator")
    first = client.get("/ops/charts/leaf-map.json")
    again = client.get("/ops/charts/leaf-map.json", headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/ops/?cluster=nowhere",
        "/ops/?gpu=B200",
        "/ops/?window=2y",
        "/ops/charts/pie.json",
        "/ops/nodes/demo/none/",
    ],
)
def test_what_does_not_exist_is_not_found(as_user, path):
    assert as_user("operator").get(path).status_code == 404


def test_nodes_are_filtered_and_paged(as_user):
    client = as_user("operator")
    assert "1–50 of 120" in client.get("/ops/nodes/").content.decode()
    trouble = client.get("/ops/nodes/?show=trouble").content.decode()
    assert "node-005" in trouble
    assert "node-006" not in trouble
    NodeRecord.objects.filter(name="node-005").update(problems=[])
    NodeRecord.objects.filter(name="node-006").update(
        facts={"unhealthy_nics": {"value": [2], "source": "status.allocatable"}}
    )
    trouble = client.get("/ops/nodes/?show=trouble").content.decode()
    assert "1 bad GPU" in trouble
    assert "1 bad NIC" in trouble
    assert "No node matches" in client.get("/ops/nodes/?q=nothing").content.decode()


@pytest.mark.parametrize(
    ("query", "text", "rest"),
    [
        ("gpu=B200&q=node", "No node has GPUs of model “B200”, but there is “H200”", "?q=node"),
        ("cluster=nowhere", "There is no cluster “nowhere”", "?"),
        ("show=asleep&page=2", "There is no node filter “asleep”", "?"),
    ],
)
def test_a_filter_of_nodes_that_names_nothing_is_told(as_user, query, text, rest):
    page = as_user("operator").get(f"/ops/nodes/?{query}").content.decode()
    assert f"<h2>{text}</h2>" in page
    assert f'<a class="btn btn-plain" href="{rest}">Leave this filter out</a>' in page
    assert " selected>" in page
    assert "(unknown)</option>" in page
    assert "/ops/nodes/demo/" not in page


def without_gpus(name: str = "cpu-000", **values) -> NodeRecord:
    amounts = {"cpu_milli": 64_000, "memory_mib": 262_144, **values}
    return NodeRecord.objects.create(cluster=Cluster.objects.get(), name=name, **amounts)


def test_nodes_without_gpus_are_listed_by_their_cpu(as_user):
    used = {"allocated_cpu_milli": 31_850, "pods": 2}
    without_gpus(), without_gpus("cpu-001", **used)
    client = as_user("operator")

    def found(show=""):
        text = client.get(f"/ops/nodes/?q=cpu&show={show}").content.decode()
        return [name for name in ("cpu-000", "cpu-001") if name in text], text

    names, text = found()
    assert names == ["cpu-000", "cpu-001"]
    for part in ("no GPUs", "31.9 CPU", "In use", "Idle"):
        assert part in text
    assert (found("free")[0], found("part")[0]) == (["cpu-000"], ["cpu-001"])
    assert found("trouble")[0] == []
    assert "No node matches" in client.get("/ops/nodes/?gpu=H200&q=cpu").content.decode()


def test_the_operations_page_sums_nodes_without_gpus_up(as_user):
    client = as_user("operator")
    assert "Nodes without GPUs" not in client.get("/ops/").content.decode()
    parts = {"gpu_parts": {"value": "7 nvidia.com/mig-1g.10gb", "source": "status.capacity"}}
    without_gpus(), without_gpus("cut", facts=parts)
    without_gpus("cpu-001", allocated_cpu_milli=31_850, allocated_memory_mib=65_536)
    text = " ".join(client.get("/ops/").content.decode().split())
    assert '<dd class="big">2 <small>nodes</small></dd>' in text
    assert "31.9 of 128 CPU and 64 of 512 GiB allocated" in text
    assert "Nodes without GPUs" not in client.get("/ops/?gpu=H200").content.decode()


def test_a_node_without_gpus_tells_who_has_its_cpu(as_user):
    row = without_gpus(allocated_cpu_milli=32_000, allocated_memory_mib=65_536, pods=1)
    url = f"/ops/nodes/demo/{row.name}/"
    text = as_user("erin").get(url).content.decode()
    assert "No job is on this node" in text
    for tenant in ("vision", "ads"):
        place = Placement.objects.filter(job__tenant__name=tenant, state="RUNNING").first()
        Placement.objects.filter(pk=place.pk).update(node=row.name, devices=[], held_milli=0)
        place.job.pod_sets.update(gpus=0, cpu_milli=16_000, memory_mib=32_768)
    text = " ".join(as_user("erin").get(url).content.decode().split())
    for part in (
        '<dd class="big">None</dd>',
        '<dd class="big">32 <small>of 64 CPU allocated</small></dd>',
        "64 of 256 GiB of memory",
        "Jobs on this node",
        "a job of another tenant",
        'data-label="CPU">16</td><td class="num" data-label="GiB">32</td>',
        "In use",
    ):
        assert part in text
    assert "wholly free" not in text


def test_a_node_tells_its_facts_with_sources_and_who_is_on_it(as_user):
    text = as_user("operator").get("/ops/nodes/demo/node-005/").content.decode()
    for part in ("nvidia.com/gpu.product", "Xid 79", "1 bad GPU", "/jobs/"):
        assert part in text


def test_a_node_lists_facts_of_several_values(as_user):
    client, record = as_user("operator"), NodeRecord.objects.get(name="node-011")
    values = {"unhealthy_nics": [2, 5], "other_extended": {"rdma/hca_a": 2, "rdma/hca_b": 1}}
    facts = {name: {"value": value, "source": "its pods"} for name, value in values.items()}
    NodeRecord.objects.filter(pk=record.pk).update(facts=facts)
    text = client.get("/ops/nodes/demo/node-011/").content.decode()
    for part in (">2, 5<", ">rdma/hca_a 2, rdma/hca_b 1<"):
        assert part in text


def test_a_node_says_what_is_held_by_others_than_the_jobs_shown(as_user):
    client, record = as_user("operator"), NodeRecord.objects.get(name="node-011")
    url = "/ops/nodes/demo/node-011/"
    assert "held besides" not in client.get(url).content.decode()
    NodeRecord.objects.filter(pk=record.pk).update(allocated_milli=8000)
    assert "8 GPUs are also held by pods that are ending" in client.get(url).content.decode()


def test_a_node_in_count_mode_says_that_its_gpus_are_guesses(as_user):
    client, record = as_user("operator"), NodeRecord.objects.get(name="node-011")
    url = "/ops/nodes/demo/node-011/"
    guess = "Which GPUs they are is a guess here, unless one pod has them all."
    for choice, shown in (("exact", False), ("count", True)):
        fact = {"value": choice, "source": "status.capacity[nvidia.com/gpu]"}
        NodeRecord.objects.filter(pk=record.pk).update(facts={"device_choice": fact})
        assert (guess in client.get(url).content.decode()) == shown
    told = client.get("/api/v1/clusters/demo/nodes/node-011").json()["facts"]["device_choice"]
    assert told == {"value": "count", "source": "status.capacity[nvidia.com/gpu]"}


def test_demo_accounts_are_shown_only_when_embedded(client, db, settings):
    assert "Demo accounts" in client.get("/login/").content.decode()
    settings.EMBEDDED = False
    assert "Demo accounts" not in client.get("/login/").content.decode()


def test_policy_forbids_inline_script_and_foreign_addresses(client, db):
    policy = client.get("/login/")["Content-Security-Policy"]
    scripts = re.search(r"script-src ([^;]*)", policy)[1]
    assert scripts == "'self'"
    assert "default-src 'self'" in policy
    assert "unsafe-eval" not in policy


def test_a_broken_page_apologises_in_its_own_look(client, db, monkeypatch):
    client.raise_request_exception = False
    monkeypatch.setattr("tenants.views.SignIn.get", lambda *_, **__: 1 / 0)
    answer = client.get("/login/")
    assert answer.status_code == 500
    assert "Something broke on our side" in answer.content.decode()


def test_the_part_that_refreshes_reads_nodes_and_queue_once_whatever_the_number_of_pools(
    as_user, django_assert_num_queries
):
    client = as_user("operator")
    refresh = {"headers": {"HX-Request": "true"}}
    client.get("/ops/", **refresh)  # how true estimates were is told again while that is fresh

    def changes():
        """Record a change; otherwise the page would be served unchanged."""
        Tenant.objects.update(version=F("version") + 1)

    changes()
    with CaptureQueriesContext(connection) as before:
        assert client.get("/ops/", **refresh).status_code == 200
    where = Cluster.objects.get()
    for i in range(5):
        NodeRecord.objects.create(cluster=where, name=f"x{i}", gpu_model=f"X{i}", gpus=8)
    changes()
    with django_assert_num_queries(len(before)):
        assert "X4" in client.get("/ops/", **refresh).content.decode()
    sql = " ".join(q["sql"] for q in before)
    assert sql.count('FROM "scheduling_job"') == 1
    assert 'FROM "scheduling_clusterpolicy"' not in sql  # the record of changes joins it
