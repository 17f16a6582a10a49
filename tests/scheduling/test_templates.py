"""Job templates over REST: what is stored, who reads and who writes them."""

import pytest

from scheduling.models import JobTemplate
from scheduling.services.jobs.templates import MOST_TEMPLATES
from tenants.models import AuditRecord
from tests.organisation import build

URL = "/api/v1/templates"
JOB = {"gpu_type": "H100", "gpus": 8, "declared_s": 3600, "command": ["python", "train.py"]}

pytestmark = [pytest.mark.django_db, pytest.mark.stored]


@pytest.fixture
def org(db):
    return build()


def save(org, who="ada", status=201, **more):
    body = {"tenant": "vision", "name": "big", "description": "Eight GPUs", "document": JOB, **more}
    answer = org.client(who).post(URL, body, format="json")
    assert answer.status_code == status, answer.json()
    return answer.json()


def test_what_is_kept_of_a_job_becomes_a_job(org):
    eve, env = org.client("eve"), {"LR": "1", "HF_TOKEN": "hf_abcdefghijklmnopqrstuv"}
    body = {**JOB, "name": "first", "tenant": "vision", "held": True, "env": env}
    first = eve.post("/api/v1/jobs", body, format="json").json()["id"]
    waits = {"name": "second", "tenant": "vision", "after": [first]}
    second = eve.post("/api/v1/jobs", {**body, **waits}, format="json").json()["id"]
    document = org.client("ada").get(f"/api/v1/jobs/{second}/document").json()
    told = save(org, document=document)
    assert told["document"] == {**JOB, "env": {"LR": "1"}, "cluster": "demo"}
    assert (told["tenant"], told["author"], told["description"]) == ("vision", "ada", "Eight GPUs")
    found = eve.get(f"{URL}?name=big").json()["items"]
    assert found == [told]
    job = {**found[0]["document"], "name": "again", "tenant": "vision"}
    assert eve.post("/api/v1/jobs", job, format="json").status_code == 201


def test_those_below_read_it_and_foreigners_do_not(org):
    told = save(org, who="root", tenant="ml")
    url = f"{URL}/{told['id']}"
    for who in ("ada", "eve", "vic"):
        seen = org.client(who).get(url).json()
        assert (seen["name"], seen["tenant"], seen["author"]) == ("big", None, None)
        assert len(org.client(who).get(URL).json()["items"]) == 1
    lex = org.client("lex")
    assert lex.get(URL).json()["items"] == []
    for answer in (
        lex.get(url),
        lex.delete(url),
        lex.patch(url, {"description": ""}, format="json"),
    ):
        assert answer.status_code == 404
    save(org, who="lex", status=404)
    own = save(org)
    assert org.client("root").get(f"{URL}/{own['id']}").json()["tenant"] == "vision"


@pytest.mark.parametrize("who", ["ada", "root", "ops"])
def test_tenant_admins_write_it(org, who):
    told = save(org, who=who)
    client, url = org.client(who), f"{URL}/{told['id']}"
    changed = client.patch(url, {"description": "Other"}, format="json").json()
    assert (changed["description"], changed["document"]) == ("Other", JOB)
    less = client.patch(url, {"document": {**JOB, "gpus": 4}}, format="json").json()
    assert (less["description"], less["document"]["gpus"]) == ("Other", 4)
    assert client.delete(f"{url}?dry_run=true").json()["would"] == "delete"
    assert client.delete(url).status_code == 204
    assert client.get(url).status_code == 404
    actions = AuditRecord.objects.order_by("at", "id").values_list("action", flat=True)
    assert sorted(actions) == [
        "template.changed", "template.changed", "template.created", "template.deleted",
    ]  # fmt: skip


@pytest.mark.parametrize("who", ["eve", "vic"])
def test_members_only_use_it(org, who):
    told = save(org)
    save(org, who=who, status=403, name="other")
    url = f"{URL}/{told['id']}"
    assert org.client(who).delete(url).status_code == 403
    assert org.client(who).patch(url, {"description": ""}, format="json").status_code == 403
    above = save(org, who="root", tenant="ml")
    assert org.client("ada").delete(f"{URL}/{above['id']}").status_code == 403


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "Not a name"}, "/name"),
        ({"description": "two\nlines"}, "/description"),
        ({"document": {"gpus": -1, "gpu_type": "H100"}}, "/document/gpus"),
        ({"document": {**JOB, "command": ["x", "--password", "hunter2"]}}, "/document/command"),
        (
            {"document": {"pod_sets": [{"gpus": 1, "image": "https://a:secret1@b/c"}]}},
            "/document/pod_sets/0/image",
        ),
        ({"document": {**JOB, "gpuz": 1}}, "/document/gpuz"),
    ],
)
def test_what_is_wrong_is_named(org, given, field):
    answer = save(org, status=422, **given)
    assert field in [error["pointer"] for error in answer["errors"]], answer
    assert not JobTemplate.objects.exists()


def test_a_name_is_taken_once_and_there_are_so_many(org):
    save(org)
    assert "already" in save(org, status=409)["detail"]
    save(org, tenant="vision-lab")
    tenant = org.tenants["vision"]
    JobTemplate.objects.bulk_create(
        JobTemplate(tenant=tenant, name=f"t{i}", document=JOB) for i in range(MOST_TEMPLATES - 1)
    )
    assert f"{MOST_TEMPLATES} templates" in save(org, status=409, name="more")["detail"]
