"""Operators take nodes out of service on pages: the effect beforehand, the progress, the way
back."""

import html
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from scheduling.models import Cluster, NodeOrder, NodeRecord, Placement, PlanOrder
from tenants.models import AuditRecord, Tenant
from tests.scheduling.test_rehearsal import runs


@pytest.fixture
def held(played):
    """A place that a job of vision holds."""
    return Placement.objects.filter(job__tenant__name="vision", state="RUNNING").first()


def told(answer):
    return html.unescape(answer.content.decode())


def test_a_node_is_drained_followed_and_taken_back(as_user, held):
    client, page = as_user("operator"), f"/ops/nodes/demo/{held.node}/"
    assert f"{page}drain/" in told(client.get(page))
    form = {"way": "time", "within": "3600", "reason": "new fans"}
    preview = client.post(f"{page}drain/preview/", form)
    assert preview.status_code == 200
    assert f"What this would do to jobs on {held.node} and others" in told(preview)
    assert not NodeOrder.objects.exists()
    done = told(client.post(f"{page}drain/", form, follow=True))
    assert f"{held.node} is being drained." in done
    for text in ("Being drained", "new fans", "Stop the drain", held.job.name, "must leave."):
        assert text in done
    NodeRecord.objects.filter(name=held.node).update(
        schedulable=False, facts={"health": {"value": "draining", "source": "an order of operator"}}
    )
    assert "Draining" in told(client.get(f"/ops/nodes/?q={held.node}"))
    # A person who may not see the job sees that one is left, and cannot act on it.
    other = told(as_user("vik").get(page))
    assert held.job.name not in other
    assert "a job of another tenant" in other
    assert "Stop the drain" not in other
    Placement.objects.filter(node=held.node).update(state="RELEASED")
    client = as_user("operator")
    assert "No pod of a job is left here." in told(client.get(page))
    back = told(client.post(f"{page}uncordon/", {"reason": "they turn"}, follow=True))
    assert f"{held.node} accepts jobs again." in back
    assert [r.action for r in AuditRecord.objects.filter(action__startswith="node.")][::-1] == [
        "node.drained",
        "node.uncordoned",
    ]


def test_what_is_missing_is_said_where_it_is_and_nothing_is_lost(as_user, held):
    client, page = as_user("operator"), f"/ops/nodes/demo/{held.node}/drain/"
    answer = client.post(page, {"way": "time", "within": "900", "reason": ""})
    assert answer.status_code == 422
    assert "Say why; it is kept in the audit trail." in told(answer)
    assert 'value="time" checked' in told(answer)
    assert 'value="900" selected' in told(answer)
    for wrong, text in (
        ({"way": "time", "within": "7"}, "Choose one of the times."),
        ({"way": "burn"}, "Choose what to do."),
    ):
        for path in (page, f"{page}preview/"):
            assert text in told(client.post(path, {"reason": "x"} | wrong))
    assert as_user("erin").get(page).status_code == 404
    assert not NodeOrder.objects.exists()


def test_whole_nodes_are_planned_with_their_price_and_freed_as_they_were_shown(as_user, played):
    client = as_user("operator")
    assert "/ops/free/demo/" in told(client.get("/ops/"))
    page = "/ops/free/demo/"
    assert "Free whole nodes" in told(client.get(page))
    idle = NodeRecord.objects.filter(gpu_model="H100", allocated_milli=0, schedulable=True)
    cheap, other = idle.values_list("name", flat=True)[:2]
    org = SimpleNamespace(
        tenants={"law": Tenant.objects.get(name="vision")}, cluster=Cluster.objects.get()
    )
    runs(org, [cheap], gpus=1, declared_s=7200)
    runs(org, [other], gpus=2, declared_s=7200)
    asked = f"{page}?gpu=H100&count=1"
    plan = client.get(asked)
    nodes = plan.context["plan"].nodes
    assert nodes == (cheap,)
    assert "Who moves" in told(plan)
    refused = client.post(asked, {"node": nodes, "reason": ""})
    assert refused.status_code == 422
    assert "Say why; it is kept in the audit trail." in told(refused)
    done = client.post(asked, {"node": nodes, "reason": "for gangs"}, follow=True)
    assert f"1 node of demo is being emptied: {nodes[0]}." in told(done)
    assert [order.node for order in NodeOrder.objects.all()] == list(nodes)
    NodeOrder.objects.all().delete()
    at = (timezone.now() + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M")
    later = {"later": "yes", "reason": "tonight", "starts_at": at, "hours": "1.5", "moves": "2"}
    for wrong, text in (
        ({"starts_at": ""}, "Give the time to start, in UTC."),
        ({"starts_at": "2020-01-01T00:00"}, "That time has passed"),
        ({"hours": "1,5"}, "Write a number of GPU-hours"),
        ({"moves": "x"}, "Write a whole number of jobs."),
        ({"reason": ""}, "Say why; it is kept in the audit trail."),
    ):
        refused = client.post(asked, later | wrong)
        assert (refused.status_code, text in told(refused)) == (422, True), wrong
    assert not PlanOrder.objects.exists()
    done = client.post(asked, later, follow=True)
    order = PlanOrder.objects.get()
    assert (order.most_lost_gpu_s, order.most_moves, order.count) == (5400, 2, 1)
    assert "1 more whole node of H100" in told(done)
    cancel = f"{page}{order.pk}/cancel/"
    assert "Nothing was changed. Say why" in told(client.post(cancel, {"reason": ""}, follow=True))
    assert "The order is called off" in told(client.post(cancel, {"reason": "no"}, follow=True))
    assert "Nothing was changed." in told(client.post(cancel, {"reason": "no"}, follow=True))
    assert "whole number from 1" in told(client.get(f"{page}?gpu=H100&count=x"))
    assert client.get(f"{page}?job=nothing").status_code == 404
    assert as_user("erin").get(page).status_code == 403
    assert as_user("erin").post(cancel, {"reason": "no"}).status_code == 403


def test_the_numbers_above_the_nodes_lead_to_the_nodes_that_they_count(as_user):
    client = as_user("operator")
    standing = client.get("/ops/nodes/").context["standing"]
    assert standing["nodes"] == NodeRecord.objects.count()
    for show in ("free", "part", "trouble"):
        page = client.get(f"/ops/nodes/?show={show}")
        assert page.context["page"].paginator.count == standing[show] > 0
        assert page.context["standing"] == standing
    assert standing["out"] == NodeRecord.objects.filter(schedulable=False).count() > 0
    assert client.get("/ops/nodes/?show=nonsense").context["standing"] == {}
    live = client.get("/ops/nodes/", headers={"HX-Request": "true"}).content.decode()
    assert 'id="nodes-standing" hx-swap-oob="innerMorph"' in live
