"""Every error is a problem document that names the fault; none is a 500."""

import base64
import json
from uuid import UUID

import pytest
from django.test import Client

from tenants.models import AuditRecord

TYPE = "application/problem+json"
FIELDS = {"type", "title", "status", "detail", "instance", "code", "errors", "request_id"}


@pytest.fixture
def eve(org):
    return org.client("eve")


def check(answer, status, code):
    body = answer.json()
    assert answer.status_code == status, body
    assert answer["Content-Type"] == TYPE
    assert body.keys() >= FIELDS
    assert (body["status"], body["code"]) == (status, code)
    assert body["type"] == f"/api/v1/problems/{code}"
    assert body["detail"]
    return body


BODIES = {
    "not JSON": b"hello",
    "cut off": b'{"name": ',
    "NaN": b'{"name": NaN}',
    "infinity": b'{"name": -Infinity}',
    "overflow": b'{"gpus": 1e999}',
    "twice": b'{"name": "a", "name": "b"}',
    "deep": b"[" * 200_000,
    "NUL": b'{"name": "a\\u0000b"}',
    "NUL in a name": b'{"a\\u0000b": 1}',
    "lone surrogate": b'{"name": "\\ud800"}',
    "not UTF-8": b'{"name": "\xff"}',
    "UTF-16": '{"name": "x"}'.encode("utf-16"),
    "endless number": b'{"gpus": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_cannot_be_read(eve, name):
    body = BODIES[name]
    answer = eve.post("/api/v1/jobs", body, content_type="application/json")
    check(answer, 400, "not-json")


def test_a_number_of_too_many_digits_is_told_in_words(eve):
    answer = eve.post("/api/v1/jobs", BODIES["endless number"], content_type="application/json")
    told = check(answer, 400, "not-json")["detail"]
    assert told.startswith(f"The body is not valid JSON: the number {'9' * 40} is too large.")


@pytest.mark.parametrize("body", [b"", b"[]", b"3", b'"x"', b"null", b"true"])
def test_bodies_that_are_no_object(eve, body):
    answer = eve.post("/api/v1/jobs", body, content_type="application/json")
    check(answer, 422, "invalid")


def test_a_valid_surrogate_pair_is_text(org):
    body = '{"name": "caf\\u00e9 \\ud83d\\ude00"}'
    answer = org.client("eve").post("/api/v1/tokens", body, content_type="application/json")
    assert answer.status_code == 201
    assert answer.json()["name"] == "café 😀"


def test_media_types(eve):
    check(
        eve.post("/api/v1/jobs", b"name=x", content_type="application/x-www-form-urlencoded"),
        415,
        "unsupported-media-type",
    )
    check(eve.get("/api/v1/jobs", headers={"Accept": "text/html"}), 406, "not-acceptable")


def test_addresses_and_methods(eve, client):
    check(eve.get("/api/v1/nothing"), 404, "not-found")
    check(eve.get("/api/v1/jobs/"), 404, "not-found")
    check(eve.get("/api/v1/jobs/not-a-uuid"), 404, "not-found")
    check(client.post("/api/v1/nothing"), 404, "not-found")
    answer = eve.put("/api/v1/jobs", {}, format="json")
    check(answer, 405, "method-not-allowed")
    assert answer["Allow"]


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v2/jobs", "/api/v1"])
def test_nothing_below_api_is_a_page(client, path):
    check(client.get(path), 404, "not-found")
    check(client.post(path), 404, "not-found")


@pytest.mark.parametrize("method", ["post", "put", "options"])
def test_the_page_of_the_documentation_is_only_read(method):
    answer = getattr(Client(enforce_csrf_checks=True), method)("/api/v1/docs")
    check(answer, 405, "method-not-allowed")
    assert answer["Allow"] == "GET, HEAD"


def test_head_takes_the_parameters_of_get(org):
    ops = org.client("ops")
    for url in ("/api/v1/metrics?window=24h", "/api/v1/jobs?limit=1&state=RUNNING"):
        assert (ops.get(url).status_code, ops.head(url).status_code) == (200, 200)
    assert ops.head("/api/v1/metrics?windo=24h").status_code == 400


def test_requests_refused_before_any_view(client, db, monkeypatch):
    check(client.get("/api/v1/jobs", headers={"Host": "evil.example"}), 400, "bad-request")
    page = client.get("/jobs/", headers={"Host": "evil.example"})
    assert (page.status_code, page["Content-Type"]) == (400, "text/html; charset=utf-8")

    def broken(*_):
        raise RuntimeError("no database")

    monkeypatch.setattr("django.middleware.common.CommonMiddleware.process_request", broken)
    client.raise_request_exception = False
    check(client.get("/api/v1/jobs"), 500, "server-error")


def test_a_body_beyond_the_limit(eve, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    body = json.dumps({"name": "x" * 2000})
    check(eve.post("/api/v1/jobs", body, content_type="application/json"), 413, "too-large")
    keyed = eve.post(
        "/api/v1/jobs", body, content_type="application/json", headers={"Idempotency-Key": "a"}
    )
    check(keyed, 413, "too-large")


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("state=DANCING", "state"),
        ("submited_after=2030-01-01", "submited_after"),
        ("submitted_after=yesterday", "submitted_after"),
        ("submitted_after=0001-01-01T00:00:00%2B23:59", "submitted_after"),
        ("submitted_after=2030-13-45T00:00:00Z", "submitted_after"),
        ("min_gpus=-1", "min_gpus"),
        ("min_gpus=1e400", "min_gpus"),
        ("min_gpus=NaN", "min_gpus"),
        ("q=%00", "q"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=ten", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("limit=0000501", "limit"),
        ("limit=0000019999999999999999999", "limit"),
        ("limit=٣", "limit"),
        ("cursor=abc", "cursor"),
        ("cursor=W10", "cursor"),
        ("cursor=Ww", "cursor"),
        ("cursor=WyJ4IiwieCJd", "cursor"),
        ("dry_run=true", "dry_run"),
        ("format=csv", "format"),
        ("format=json", "format"),
    ],
)
def test_query_parameters(eve, query, parameter):
    body = check(eve.get(f"/api/v1/jobs?{query}"), 400, "bad-query")
    assert body["errors"][0]["parameter"] == parameter


ID = str(UUID(int=0))


def test_choices_are_named(org):
    ops = org.client("ops")
    for query in ("jobs?state=bogus", "jobs?kind=bogus", "quotas?mode=bogus"):
        body = check(ops.get(f"/api/v1/{query}"), 400, "bad-query")
        assert "Choose" in body["detail"], body
    body = check(ops.get("/api/v1/jobs?kind=bogus"), 400, "bad-query")
    assert body["detail"] == "kind: Choose one of training, inference, development."
    wrong = {"operator": "x", "effect": "y"}
    job = {"name": "x", "tenant": "vision", "gpus": 1, "kind": "z", "tolerations": [wrong]}
    body = check(ops.post("/api/v1/jobs", job, format="json"), 422, "invalid")
    assert {e["pointer"]: e["detail"] for e in body["errors"]} == {
        "/kind": "Choose one of training, inference, development.",
        "/tolerations/0/operator": "Choose one of Equal, Exists.",
        "/tolerations/0/effect": "Choose one of NoSchedule, PreferNoSchedule, NoExecute.",
    }
    member = {"role": "king"}
    body = check(
        ops.put("/api/v1/tenants/vision/members/eve", member, format="json"), 422, "invalid"
    )
    assert body["detail"] == "role: Choose one of tenant-admin, engineer, viewer."
    quota = {"guaranteed": 1, "mode": True, "reason": "x"}
    match = {"If-None-Match": "*"}
    url = "/api/v1/quotas/vision/H100"
    body = check(ops.put(url, quota, format="json", headers=match), 422, "invalid")
    assert body["detail"] == "mode: Choose one of shared, isolated."


def test_the_detail_names_a_field_as_it_was_written(eve):
    job = {"name": "x", "tenant": "vision", "gpus": 1, "extended": {"vendor.com/card": 1.5}}
    body = check(eve.post("/api/v1/jobs", job, format="json"), 422, "invalid")
    assert body["errors"][0]["pointer"] == "/extended/vendor.com~1card"
    assert body["detail"] == "extended.vendor.com/card: Must be a whole number."


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("tenants/vision", {}),
        ("tenants/vision", {"reason": "none"}),
        ("clusters/demo", {}),
        ("gpu-types/H100", {}),
    ],
)
def test_a_change_of_nothing_is_refused(org, url, body):
    problem = check(org.client("ops").patch(f"/api/v1/{url}", body, format="json"), 422, "invalid")
    assert "There is nothing to change. Give at least one of title" in problem["detail"]
    assert "reason" not in problem["detail"]
    assert not AuditRecord.objects.exists()


def at_cursor(org, path, values):
    cursor = base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
    return org.client("ops").get(f"/api/v1/{path}?cursor={cursor}")


@pytest.mark.parametrize("path", ["jobs", "tenants", "quotas", "audit", "tenants/vision/members"])
@pytest.mark.parametrize(
    "values",
    [
        *([5], [5, "x"], [True], [True, "x"], [["x"]], [["x"], "x"], [1.5], [None, None]),
        *(["\ud800"], ["\ud800", "x"], ["a\0b"], ["a\0b", "x"]),
    ],
)
def test_cursors_that_were_never_given_out(org, path, values):
    if path.endswith("members") and values == [5]:
        values = ["5"]
    body = check(at_cursor(org, path, values), 400, "bad-query")
    assert body["errors"][0]["parameter"] == "cursor"


@pytest.mark.parametrize("path", ["jobs", "audit"])
@pytest.mark.parametrize(
    "moment",
    ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2030-01-01T00:00:00", "2030-01-01"],
)
def test_cursors_at_impossible_times(org, path, moment):
    check(at_cursor(org, path, [moment, ID]), 400, "bad-query")


def test_a_cursor_behind_everything(org):
    page = at_cursor(org, "tenants/vision/members", [10**30])
    assert page.json() == {"items": [], "next": None}


def test_an_error_nobody_expected_is_reported_and_hidden(eve, monkeypatch, caplog):
    def broken(_user):
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("scheduling.queries.selectors.visible_jobs", broken)
    answer = eve.get("/api/v1/jobs")
    body = check(answer, 500, "server-error")
    assert "hunter2" not in answer.content.decode()
    assert body["request_id"] in caplog.text
    assert "hunter2" in caplog.text


def test_each_type_leads_to_its_meaning(client, db):
    from tenants.api.problems import KINDS

    for code, kind in KINDS.items():
        found = client.get(f"/api/v1/problems/{code}").json()
        assert found == {"code": code, **kind._asdict()}
    check(client.get("/api/v1/problems/none"), 404, "not-found")


PART = {"name": "a", "tenant": "vision", "pod_sets": [{"coun": 2}]}
CLUSTER = "/api/v1/clusters/demo"
MISSPELT = {
    "a job": ("post", "/api/v1/jobs", {"declared_run_s": 60}, "Did you mean declared_s? Known"),
    "a part of a job": ("post", "/api/v1/jobs", PART, "Did you mean count? Known here: "),
    "a parameter": ("get", "/api/v1/jobs?tenat=vision", None, "Did you mean tenant? Known here: "),
    "a policy": ("put", f"{CLUSTER}/policy", {"policy": {"qeueing": "backfill"}}, "mean queueing?"),
    "rules": ("patch", CLUSTER, {"job_rules": {"alowed_priorities": []}}, "Did you mean "),
    "nothing close": ("post", "/api/v1/jobs", {"zzz": 1}, "Unknown field. Known here: after, "),
}


@pytest.mark.parametrize(("method", "path", "body", "words"), MISSPELT.values(), ids=MISSPELT)
def test_who_misspells_a_name_is_told_the_closest(org, method, path, body, words):
    ask = getattr(org.client("ops"), method)
    answer = ask(path, body, format="json", headers={"If-None-Match": "*"})
    assert any(words in error["detail"] for error in answer.json()["errors"]), answer.json()
