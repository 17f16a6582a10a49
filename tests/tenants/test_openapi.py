"""The API keeps the promises of its own description, whatever is sent to it."""

import hashlib
import json
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from django.utils import timezone
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation.meta import TestPhase
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tenants.models import AuditRecord, User
from tests import organisation
from tests.cases import NIGHTLY, examples
from tests.scheduling.alike import taken_back

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
# Fewest rights first: the roles in vision, then the operator, who sees everything.
ROLES = {"viewer": "vic", "engineer": "eve", "tenant admin": "ada", "operator": "ops"}
JOB = {"tenant": "vision", "gpu_type": "H100", "gpus": 1}


# Its body describes the whole organisation, and each field would be tried in each way. Other bodies
# try the same fields.
NO_COVERAGE = {"include-path": "/api/v1/organisation", "phases": {"coverage": {"enabled": False}}}
schema = schemathesis.openapi.from_wsgi(
    "/api/v1/openapi.json",
    get_wsgi_application(),
    headers={"Host": "localhost"},
    config=schemathesis.Config.from_dict({"operations": [NO_COVERAGE]}),
)


@contextmanager
def one_connection():
    """Keep requests from closing the connection with the test's transaction. Wraps each request,
    since Django's test client reconnects these signals after each one."""
    request_started.disconnect(close_old_connections)
    request_finished.disconnect(close_old_connections)
    try:
        yield
    finally:
        request_started.connect(close_old_connections)
        request_finished.connect(close_old_connections)


@pytest.fixture(scope="module")
def ground(django_db_setup, django_db_blocker):
    """An organisation with an object of each kind, and path parameters that name these. Made
    once, as each test undoes its changes."""
    with django_db_blocker.unblock(), taken_back():
        org = organisation.build()
        yield org, real(org)


def real(org):
    """Return {path parameter: value of an object that exists and that a member of vision may
    see}."""
    eve = org.client("eve")
    job = eve.post("/api/v1/jobs", {"name": "job", **JOB}, format="json")
    array = eve.post("/api/v1/jobs", {"name": "jobs", **JOB, "array": {"count": 2}}, format="json")
    change = {"guaranteed": 8, "mode": "shared", "reason": "test"}
    ops = org.client("ops", **{"If-None-Match": "*"})
    quota = ops.put("/api/v1/quotas/vision/H100", change, format="json")
    held = ops.post("/api/v1/queues/vision/default/hold", {"reason": "test"}, format="json")
    drafts = org.client("ops", **{"If-Match": '"2"'})
    cell = {"tenant": "vision", "gpu_type": "H100", "guaranteed": 9}
    draft = drafts.patch("/api/v1/quota-drafts/ops", {"cells": [cell]}, format="json")
    # By another operator: nobody approves their own order.
    org.users["second"] = User.objects.create_user("second", is_operator=True)
    second = org.client("second", **{"If-Match": '"2"'})
    copy = second.patch("/api/v1/quota-drafts/second", {"cells": [cell]}, format="json")
    assert copy.status_code == 200, copy.json()
    later = {"reason": "test", "starts_at": (timezone.now() + timedelta(hours=1)).isoformat()}
    order = second.post("/api/v1/quota-drafts/second/apply", later, format="json")
    made = [one.status_code for one in (job, array, quota, held, draft, order)]
    assert made == [201, 201, 201, 200, 200, 200]
    return {
        "tenant": "vision",
        "gpu_type": "H100",
        "username": "eve",
        "node": "h000",
        "code": "invalid",
        "job_id": job.json()["id"],
        "order_id": order.json()["order"]["id"],
        "array_id": array.json()["id"],
        "record_id": str(AuditRecord.objects.get(action="quota.changed").pk),
        "queue_record_id": str(AuditRecord.objects.get(action="queue.changed").pk),
    }


@schema.hook
def filter_case(context, case):
    """Filter before the case becomes an example, as Hypothesis would process it only to drop it."""
    return tried(case)


@schema.parametrize()
@settings(
    max_examples=examples(3),
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_api_never_fails_and_answers_as_described(case, ground, db, caplog):
    org, real = ground
    met_by = roles_of(case)  # by the drawn values, not by those put into the path
    known = {**real, "name": real_name(case.operation.path)}
    if case.operation.path.startswith("/api/v1/queues/"):
        known["record_id"] = real["queue_record_id"]
    if case.operation.path.startswith("/api/v1/quota-drafts/"):
        known["username"] = "ops"
    for name, value in list(case.path_parameters.items()):
        # Half of the examples address existing objects.
        if hashlib.sha256(str(value).encode()).digest()[0] % 2:
            case.path_parameters[name] = known.get(name) or value
    for role, who in met_by.items():
        # Each role meets the same state, and no request removes the token or role of a later one.
        with taken_back(), one_connection():
            token = org.client(who)._credentials["HTTP_AUTHORIZATION"]
            response = case.call(headers={"Authorization": token})
        case.validate_response(response, checks=CHECKS)
        assert response.status_code != 401, role
        # The operator may do everything, so each operation gets past the check of rights once.
        assert role != "operator" or response.status_code != 403
        # Look at the message without its arguments: these quote the path, which may be any text.
        assert [r.msg for r in caplog.records if "failed" in str(r.msg)] == []


def number_of(case):
    """Return a number derived from what the case sends."""
    sent = repr((case.path_parameters, case.query, case.body, case.headers)).encode()
    return int.from_bytes(hashlib.sha256(sent).digest()[:4])


def tried(case):
    """Return whether to try the case now: by day one in twelve of the dozens of edge cases of an
    operation, and all drawn cases."""
    is_edge_case = case.meta.phase.name is TestPhase.COVERAGE
    return NIGHTLY or not is_edge_case or number_of(case) % 12 == 0


def roles_of(case):
    """Return the roles to try: at night all; by day the operator and one other, chosen by the
    case."""
    if NIGHTLY:
        return ROLES
    number = number_of(case)
    others = [role for role in ROLES if role != "operator"]
    other = others[number // 12 % len(others)]
    return {role: who for role, who in ROLES.items() if role in (other, "operator")}


def real_name(path):
    kinds = {"tenants": "vision", "clusters": "demo", "gpu-types": "H100", "queues": "default"}
    return kinds.get(path.split("/")[3])


@pytest.fixture
def document(client):
    answer = client.get("/api/v1/openapi.json")
    assert answer["Content-Type"].startswith("application/json")
    return answer.json()


def test_the_document_is_openapi_3_1(document):
    assert document["openapi"].startswith("3.1")
    for name, part in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(part), name
    problem = document["components"]["schemas"]["Problem"]
    jsonschema.validate(problem["examples"][0], problem)


def test_every_write_offers_a_dry_run_and_every_post_a_key(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            names = {p["name"] for p in operation.get("parameters", [])}
            if method != "get":
                assert "dry_run" in names, (method, path)
            if method == "post":
                assert "Idempotency-Key" in names, path
            assert "application/problem+json" in operation["responses"]["4XX"]["content"]


def test_a_password_does_for_the_first_token_only(document):
    schemes = document["components"]["securitySchemes"]
    assert schemes["password"] == {"type": "http", "scheme": "basic"}
    allowed = {
        (path, method)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if {"password": []} in operation["security"]
    }
    assert allowed == {("/api/v1/tokens", "post")}


def test_every_post_really_is_idempotent():
    from django.urls import get_resolver

    posts = 0
    for views in get_resolver("kant.api_urls").reverse_dict.values():
        assert views
    for pattern in _patterns(get_resolver("kant.api_urls")):
        view = getattr(pattern.callback, "view_class", None)
        if view is not None and hasattr(view, "post"):
            assert getattr(view.post, "idempotent", False), pattern
            posts += 1
    assert posts >= 6


def _patterns(resolver):
    for part in resolver.url_patterns:
        if hasattr(part, "url_patterns"):
            yield from _patterns(part)
        else:
            yield part


@pytest.mark.django_db
def test_the_page_needs_nothing_but_vendored_files(client):
    page = client.get("/api/v1/docs")
    text = page.content.decode()
    assert page.status_code == 200
    assert "<script>" not in text
    assert "http" not in text.replace("https://www.w3.org", "")
    assert "script-src 'self'" in page["Content-Security-Policy"]


def test_vendored_files_have_the_recorded_hashes(settings):
    folder = Path(settings.BASE_DIR) / "static" / "vendor"
    recorded = {e["file"]: e for e in json.loads((folder / "VENDOR.json").read_text())}
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        content = (folder / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == recorded[name]["sha256"]
