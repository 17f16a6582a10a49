"""Valid values of a tenant's minimum run time over REST."""

import pytest

from tenants.models import MAX_MIN_RUNTIME_S, Tenant

URL = "/api/v1/tenants"


@pytest.fixture
def ops(org):
    return org.client("ops")


def set_to(client, tenant, seconds, **more):
    return client.patch(f"{URL}/{tenant}", {"min_runtime_s": seconds, **more}, format="json")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.001, "at least 0"),
        (MAX_MIN_RUNTIME_S + 1, "at most 2592000"),
        (10**400, "too large"),
        ("60", "a number"),
        (True, "a number"),
        ([], "a number"),
    ],
)
def test_values_that_cannot_be(ops, seconds, text):
    new = {"name": "new", "min_runtime_s": seconds}
    for answer in (set_to(ops, "vision", seconds), ops.post(URL, new, format="json")):
        assert answer.status_code == 422, answer.json()
        [error] = answer.json()["errors"]
        assert error["pointer"] == "/min_runtime_s"
        assert text in error["detail"]
    assert Tenant.objects.get(name="vision").min_runtime_s is None
    assert set_to(ops, "vision", MAX_MIN_RUNTIME_S).status_code == 200


def test_no_number_is_no_value(ops):
    sent = ops.patch(f"{URL}/vision", '{"min_runtime_s": NaN}', content_type="application/json")
    assert sent.status_code == 400
    assert Tenant.objects.get(name="vision").min_runtime_s is None
