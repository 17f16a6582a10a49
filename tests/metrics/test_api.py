"""Metrics over REST: what clients may ask for, and the answer to a wrong question."""

from datetime import timedelta

import pytest
from django.utils import timezone

from metrics.services import record_sample
from scheduling.models import Cluster
from tests import organisation

URLS = ["/api/v1/metrics", "/api/v1/metrics/samples"]


@pytest.fixture
def org(db):
    return organisation.build()


@pytest.fixture
def ops(org):
    return org.client("ops")


def test_a_summary_of_a_scope(ops):
    answer = ops.get("/api/v1/metrics?cluster=demo&gpu_type=H100&window=1h")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["cluster"], body["gpu_type"]) == ("demo", "H100")
    assert (body["nodes"], body["available_gpus"], body["gar"]) == (4, 32.0, 0.0)
    assert answer["X-Request-ID"]
    assert ops.get("/api/v1/metrics").json()["nodes"] == 6


def test_samples_before_any_was_taken(ops):
    assert ops.get("/api/v1/metrics/samples?window=15m").json() == {"items": []}


def test_all_samples_are_read_at_once(ops, django_assert_max_num_queries):
    cluster, now = Cluster.objects.get(), timezone.now()
    for minutes in range(9, 0, -1):
        record_sample(cluster, now - timedelta(minutes=minutes))
    with django_assert_max_num_queries(6):
        answer = ops.get("/api/v1/metrics/samples?window=15m").json()
    assert [item["cluster"] for item in answer["items"]] == ["demo"] * 9


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("window=soon", "window"),
        ("window=0h", "window"),
        ("window=367d", "window"),
        ("window=" + "9" * 99 + "d", "window"),
        ("cluster=nowhere", "cluster"),
        ("gpu_type=a%00b", "gpu_type"),
        ("gpu_type=H1000", "gpu_type"),
        ("windov=1h", "windov"),
        ("dry_run=true", "dry_run"),
    ],
)
def test_a_wrong_parameter_is_named(ops, url, query, parameter):
    answer = ops.get(f"{url}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-query")
    assert answer.json()["errors"][0]["parameter"] == parameter
    assert answer["X-Request-ID"] == answer.json()["request_id"]


@pytest.mark.parametrize("url", URLS)
def test_nobody_reads_them_without_signing_in(client, db, url):
    assert client.get(url).status_code == 401


@pytest.mark.parametrize("url", URLS)
def test_numbers_of_all_tenants_together_are_for_operators_as_on_pages(org, url):
    for who in ("root", "eve"):
        answer = org.client(who).get(url)
        assert (answer.status_code, answer.json()["code"]) == (403, "not-allowed")
        assert "only operators" in answer.json()["detail"]
