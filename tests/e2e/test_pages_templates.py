"""Template pages: save from a job or the form, use in the form, list, change, delete."""

import pytest

from scheduling.models import Job, JobTemplate
from tests.e2e.test_pages_submit_again import Sent
from tests.organisation import build

pytestmark = [pytest.mark.django_db, pytest.mark.stored]

JOB = {"gpu_type": "H100", "gpus": 4, "replicas": 3, "env": {"LR": "1"}}


@pytest.fixture
def org(db):
    return build()


def page(client, url, status=200):
    answer = client.get(url)
    assert answer.status_code == status, answer.content
    return answer.content.decode()


def signed_in(client, org, who):
    client.force_login(org.users[who])
    return client


def template(org, tenant="vision", name="big"):
    return JobTemplate.objects.create(
        tenant=org.tenants[tenant], name=name, document=JOB, author_name="ada", description="Old"
    )


def test_the_form_begins_with_a_template(client, org):
    eve = signed_in(client, org, "eve")
    assert "Start from a template" not in page(eve, "/jobs/new/")
    one, foreign = template(org), template(org, "law")
    text = page(eve, "/jobs/new/")
    assert "Start from a template" in text
    assert str(foreign.pk) not in text
    assert "Save as template" not in text
    filled = page(eve, f"/jobs/new/?template={one.pk}")
    assert "Filled in from template" in filled
    fields = {n: v for n, v in Sent(filled).fields.items() if n != "template"}
    sent = eve.post("/jobs/new/", {**fields, "name": "mine"})
    assert sent.status_code == 302
    pods = Job.objects.get(name="mine").pod_sets.get()
    assert (pods.gpus, pods.count, pods.env) == (4, 3, {"LR": "1"})
    for wrong in (foreign.pk, "x", ""):
        page(eve, f"/jobs/new/?template={wrong}", 404)


def test_a_job_is_saved_from_its_page_and_from_the_form(client, org):
    ada = signed_in(client, org, "ada")
    body = {**JOB, "name": "first", "tenant": "vision"}
    made = org.client("ada").post("/api/v1/jobs", body, format="json").json()
    assert "Save as template" in page(ada, f"/jobs/{made['id']}/")
    fields = Sent(page(ada, f"/jobs/templates/new/?like={made['id']}")).fields
    assert (fields["called"], fields["tenant"]) == ("first", "vision")
    again = {**fields, "called": "Not a name"}
    assert ada.post("/jobs/templates/new/", again).status_code == 422
    saved = ada.post("/jobs/templates/new/", {**fields, "description": "Twelve"})
    assert saved.status_code == 302
    kept = JobTemplate.objects.get()
    assert kept.document == {**JOB, "cluster": "demo"}
    twice = ada.post("/jobs/templates/new/", fields)
    assert (twice.status_code, "already" in twice.content.decode()) == (422, True)
    typed = Sent(page(ada, f"/jobs/new/?like={made['id']}")).fields
    typed.pop("template", None)
    shown = ada.post("/jobs/templates/new/", {**typed, "sets-0-gpus": "2"})
    assert shown.status_code == 200
    fields = Sent(shown.content.decode()).fields
    assert ada.post("/jobs/templates/new/", {**fields, "called": "less"}).status_code == 302
    assert JobTemplate.objects.get(name="less").document["pod_sets"][0]["gpus"] == 2
    for wrong in ("[]", "{", '{"gpuz": 1}'):
        assert ada.post("/jobs/templates/new/", {"document": wrong}).status_code == 404


def test_the_list_changes_and_deletes_for_tenant_admins(client, org):
    one = template(org)
    eve = signed_in(client, org, "eve")
    text = page(eve, "/jobs/templates/")
    assert "big" in text
    assert f"{one.pk}/delete/" not in text
    for verb in ("change", "delete"):
        eve.post(f"/jobs/templates/{one.pk}/{verb}/", {"description": "New"})
    page(eve, "/jobs/templates/new/", 404)
    one.refresh_from_db()
    assert one.description == "Old"
    lex = signed_in(client, org, "lex")
    assert "No templates yet" in page(lex, "/jobs/templates/")
    ada = signed_in(client, org, "ada")
    ada.post(f"/jobs/templates/{one.pk}/change/", {"description": "New"})
    one.refresh_from_db()
    assert (one.description, one.author_name) == ("New", "ada")
    ada.post(f"/jobs/templates/{one.pk}/delete/")
    assert not JobTemplate.objects.exists()
