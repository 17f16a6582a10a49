"""REST says whether a scheduler is at work on a cluster, for the cluster and for its jobs."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from scheduling.models import Cluster, Job
from scheduling.queries.standstill import SILENT_S
from tenants.models import User
from tests.organisation import build

pytestmark = pytest.mark.usefixtures("now")
REMEDY = "An operator must check that the scheduler processes run."


@pytest.fixture
def org(db):
    return build()


def test_at_work(org):
    assert told(org, connected=True, last_cycle_at=timezone.now()) == ""


def test_not_heard_of_yet(org):
    assert told(org) == f"The scheduler of cluster demo has not been heard from yet. {REMEDY}"


def test_silent(org):
    heard = timezone.now() - timedelta(seconds=SILENT_S + 1)
    why = told(org, connected=True, last_cycle_at=heard)
    when = f"{heard:%Y-%m-%d %H:%M:%S} UTC"
    assert why == f"The scheduler of cluster demo was last heard from at {when}. {REMEDY}"


def test_without_its_cluster(org):
    now = timezone.now()
    assert told(org, last_cycle_at=now) == "The scheduler has no connection to cluster demo."
    why = told(org, last_cycle_at=now, status_message="The API server does not answer.")
    assert why == "The scheduler cannot work on cluster demo: The API server does not answer."


def test_what_operators_should_know_of_a_cluster_that_is_scheduled(org):
    now, text = timezone.now(), "No node has the label ex/rack."
    Cluster.objects.update(connected=True, last_cycle_at=now, status_message=text)
    cluster = org.client("vic").get("/api/v1/clusters/demo").json()
    assert (cluster["status_message"], cluster["remarks"]) == ("", text)
    page = org.client("vic")
    page.force_login(User.objects.get(username="vic"))
    assert text in page.get(reverse("nodes")).content.decode()
    Cluster.objects.update(connected=False)
    cluster = org.client("vic").get("/api/v1/clusters/demo").json()
    assert text in cluster["status_message"]
    assert cluster["remarks"] == ""


def test_not_active(org):
    now = timezone.now()
    why = told(org, is_active=False, connected=True, last_cycle_at=now)
    assert why == "Cluster demo is not active."


def told(org, **row):
    """Return what REST says about the cluster, and about an unfinished job on it."""
    Cluster.objects.update(**row)
    client = org.client("vic")
    cluster = client.get("/api/v1/clusters/demo").json()
    job = Job.objects.create(
        name="job", tenant=org.tenants["vision"], cluster=org.cluster, submitted_at=timezone.now()
    )
    explain = f"/api/v1/jobs/{job.pk}/explain"
    told = client.get(explain).json()["standstill"]
    assert (cluster["connected"], cluster["status_message"]) == (not told, told)
    Job.objects.update(state="CANCELLED")
    assert client.get(explain).json()["standstill"] == ""
    return told
