"""The charts of free GPUs link to the leaves and nodes behind them."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.models import NodeRecord, Placement


def linked(client, name, query=""):
    body = client.get(f"/ops/charts/{name}.json{query}").json()
    table = body["layout"]["meta"]["table"]
    return dict(zip((row[0] for row in table["rows"]), table["links"], strict=True))


def test_every_place_of_the_charts_leads_to_a_page(as_user):
    client = as_user("operator")
    for name, query in (
        ("leaf-map", ""),
        ("stranded", ""),
        ("gang-curve", ""),
        ("leaf-map", "?cluster=demo&gpu=H100"),
        ("stranded", "?gpu=H100"),
        ("gang-curve", "?gpu=H100"),
    ):
        links = linked(client, name, query)
        assert links
        for link in set(links.values()):
            page = client.get(link)
            assert page.status_code == 200, link
            assert "so nothing matches" not in page.content.decode()


def test_a_bar_leads_to_the_nodes_that_it_counts(as_user):
    client = as_user("operator")
    body = client.get("/ops/charts/stranded.json?gpu=H100").json()["layout"]["meta"]["table"]
    for (_, nodes, _), link in list(zip(body["rows"], body["links"], strict=True))[:-1]:
        page = client.get(link)
        assert page.context["page"].paginator.count == nodes


def test_a_leaf_names_only_the_jobs_the_reader_may_see(as_user):
    mine = Placement.objects.filter(job__tenant__name="vision", state="RUNNING").first()
    other = Placement.objects.filter(job__tenant__name="ads", state="RUNNING").first()
    Placement.objects.filter(pk=other.pk).update(node=mine.node)
    name = NodeRecord.objects.get(name=mine.node).leaf
    for reader, hidden in (("operator", False), ("erin", True)):
        page = as_user(reader).get(f"/ops/leaves/demo/{name}/").content.decode()
        assert f"/ops/nodes/demo/{mine.node}/" in page
        assert f"/jobs/{mine.job_id}/" in page
        assert (f"/jobs/{other.job_id}/" in page) != hidden
        assert ("jobs of other tenants" in page) == hidden
        assert (f"/ops/nodes/demo/{mine.node}/drain/" in page) != hidden
        assert ("Free whole nodes" in page) != hidden


def test_a_leaf_takes_as_many_statements_with_many_jobs_as_with_few(as_user):
    client = as_user("operator")
    name = NodeRecord.objects.exclude(leaf="").first().leaf

    def statements():
        with CaptureQueriesContext(connection) as captured:
            assert client.get(f"/ops/leaves/demo/{name}/").status_code == 200
        return len(captured)

    before = statements()
    node = NodeRecord.objects.filter(leaf=name).first().name
    running = Placement.objects.filter(state="RUNNING").values_list("pk", flat=True)[:40]
    Placement.objects.filter(pk__in=list(running)).update(node=node)
    assert statements() == before


@pytest.mark.parametrize("path", ["demo/nowhere", "mars/leaf-00"])
def test_what_is_no_leaf_is_not_found(as_user, path):
    assert as_user("erin").get(f"/ops/leaves/{path}/").status_code == 404


@pytest.mark.parametrize("free", ["x", "1-x", "-1", "١"])
def test_a_wrong_number_of_free_gpus_is_told(as_user, free):
    page = as_user("erin").get("/ops/nodes/", {"free": free}).content.decode()
    assert "is no number of free GPUs" in page
