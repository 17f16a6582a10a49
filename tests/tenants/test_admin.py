"""Django's admin manages accounts and changes nothing else."""

import pytest

from tenants.models import User


@pytest.fixture
def staff(org, client):
    client.force_login(User.objects.create_superuser("boss", password="x"))
    return client


@pytest.mark.parametrize(
    "table",
    [
        "tenants/tenant",
        "tenants/membership",
        "tenants/gputype",
        "tenants/quota",
        "tenants/apitoken",
        "tenants/auditrecord",
        "scheduling/cluster",
        "scheduling/clusterpolicy",
        "scheduling/schedulerlease",
        "scheduling/noderecord",
        "scheduling/job",
    ],
)
def test_tables_are_read_only(staff, table):
    assert staff.get(f"/admin/{table}/").status_code == 200
    assert staff.get(f"/admin/{table}/add/").status_code == 403


def test_accounts_are_managed(staff, org):
    eve = org.users["eve"]
    page = staff.get(f"/admin/tenants/user/{eve.pk}/change/")
    assert b"is_operator" in page.content
    secret = org.client("eve")._credentials["HTTP_AUTHORIZATION"]
    token = eve.api_tokens.get()
    shown = staff.get(f"/admin/tenants/apitoken/{token.pk}/change/").content.decode()
    assert token.digest not in shown
    assert secret.split()[1] not in shown
