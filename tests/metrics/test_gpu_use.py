"""How busy GPUs are: Prometheus samples are added up by tenant and job, exactly once."""

import csv
import io

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from metrics.gpu_use import fold
from metrics.gpu_use.prometheus import PrometheusError, activities, wrong_address
from metrics.models import GpuUseDay, GpuUseLedger
from scheduling.models import Cluster, Job, JobGpuUse, NodeRecord, Placement
from tenants.models import Tenant, User
from tests.metrics import rows
from tests.metrics.prometheus import StandIn, gpu
from tests.metrics.rows import at

ENGINE, UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
NO_SAMPLE = b'{"status":"success","data":{"resultType":"vector","result":[{"value":[]}]}}'
SLOT_S = fold.SLOT.total_seconds()
HOUR = 1000 * 3_600_000  # milli-GPU x milliseconds


@pytest.fixture
def prometheus(settings):
    stand_in = StandIn()
    settings.KANT_PROMETHEUS = stand_in.url
    yield stand_in
    stand_in.end()


@pytest.fixture
def ran(db):
    """A job holds two GPUs of n000 for the first five minutes, another all eight of n001
    throughout."""
    cluster = rows.cluster(2)
    short = rows.job(cluster, "short", bound=0, ended=SLOT_S, gpus=2, nodes=("n000",))
    long = rows.job(cluster, "long", bound=-3600, nodes=("n001",))
    return cluster, short, long


def begin(seconds=0):
    GpuUseLedger.objects.create(pk=1, since=at(seconds), until=at(seconds), asked_at=at(seconds))


def read(seconds):
    fold.read_gpu_use(at(seconds))


def hours(row):
    return row.measured / HOUR, row.idle / HOUR


def busy(hostname, gpus, value, **labels):
    return [gpu(hostname, index, value, **labels) for index in range(gpus)]


def test_the_time_of_gpus_that_ran_nothing_is_idle(prometheus, ran):
    _, short, long = ran
    begin()
    prometheus.told = {ENGINE: busy("n000", 2, 0.25) + busy("n001", 8, 0.9)}
    read(2 * SLOT_S + 60)
    assert GpuUseLedger.objects.get().until == at(2 * SLOT_S)
    assert hours(JobGpuUse.objects.get(job=short)) == pytest.approx((1 / 6, 0.125))
    assert hours(JobGpuUse.objects.get(job=long)) == pytest.approx((8 / 6, 0.8 / 6))
    day = GpuUseDay.objects.get()
    assert (day.tenant_name, day.cluster_name, day.gpu_model) == ("vision", "c1", "H100")
    assert hours(day) == pytest.approx((9 / 6, 0.125 + 0.8 / 6))
    read(2 * SLOT_S + 100)  # no slot has ended since
    read(3 * SLOT_S + 60)
    assert hours(JobGpuUse.objects.get(job=short)) == pytest.approx((1 / 6, 0.125))
    assert hours(JobGpuUse.objects.get(job=long)) == pytest.approx((2, 0.2))
    assert [path for path, _ in prometheus.asked] == ["/api/v1/query"] * 6
    assert f"avg_over_time({ENGINE}[300s])" in prometheus.asked[0][1]["query"]
    assert float(prometheus.asked[0][1]["time"]) == at(SLOT_S).timestamp()


def test_a_gpu_that_does_not_tell_of_its_engine_is_judged_by_its_use(prometheus, ran):
    _, short, long = ran
    begin()
    prometheus.told = {
        ENGINE: busy("n000", 2, 1.0),
        UTIL: busy("n000", 2, 10) + busy("n001", 8, 50),
    }
    read(SLOT_S + 60)
    assert hours(JobGpuUse.objects.get(job=short)) == pytest.approx((1 / 6, 0))
    assert hours(JobGpuUse.objects.get(job=long)) == pytest.approx((8 / 12, 4 / 12))


def test_a_gpu_of_which_nothing_is_told_is_not_measured(prometheus, ran):
    begin()
    prometheus.told = {
        ENGINE: [gpu("n001", 3, 0.5), gpu("elsewhere", 0, 0.5), gpu("n000", 0, "NaN")]
    }
    read(SLOT_S + 60)
    assert hours(GpuUseDay.objects.get()) == pytest.approx((1 / 12, 1 / 24))
    assert list(JobGpuUse.objects.values_list("job__name", flat=True)) == ["long"]


def test_a_node_is_found_by_the_label_that_names_it(prometheus, ran):
    begin()
    prometheus.told = {ENGINE: [
        gpu("exporter-x7f", 0, 0.5, node="n001"),
        gpu("exporter-x7f", 1, 0.5, instance="n001:9400"),
    ]}  # fmt: skip
    read(SLOT_S + 60)
    assert hours(GpuUseDay.objects.get())[0] == pytest.approx(2 / 12)


def test_nodes_of_one_name_in_two_clusters_are_told_apart_by_a_label(prometheus, ran):
    other = Cluster.objects.create(name="c2")
    NodeRecord.objects.create(cluster=other, name="n001", gpu_model="H100", gpus=8)
    begin()
    prometheus.told = {ENGINE: busy("n001", 8, 0.5)}
    read(SLOT_S + 60)
    assert not GpuUseDay.objects.exists()
    prometheus.told = {
        ENGINE: busy("n001", 8, 0.5, cluster="c1") + busy("n001", 8, 1, cluster="c2")
    }
    read(2 * SLOT_S + 60)
    assert hours(GpuUseDay.objects.get()) == pytest.approx((8 / 12, 4 / 12))


def test_mig_instances_of_a_gpu_are_told_by_their_mean(prometheus, ran):
    begin()
    prometheus.told = {ENGINE: [gpu("n001", 0, 0.2), gpu("n001", 0, 0.6)]}
    read(SLOT_S + 60)
    assert hours(GpuUseDay.objects.get()) == pytest.approx((1 / 12, 0.6 / 12))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"status": 503}, "It answers 503"),
        ({"body": b"<html>"}, "not one of the Prometheus"),
        (
            {"body": b'{"status": "error", "errorType": "bad_data", "error": "x"}'},
            "not one of the Prometheus",
        ),
        (
            {"body": b'{"status": "success", "data": {"resultType": "matrix"}}'},
            "not one of the Prometheus",
        ),
        ({"body": NO_SAMPLE}, "not one of the Prometheus"),
        ({"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}, "redirects"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_and_asked_for_again(prometheus, ran, client, wrong, told):
    begin()
    for name, value in wrong.items():
        setattr(prometheus, name, value)
    read(SLOT_S + 60)
    ledger = GpuUseLedger.objects.get()
    assert told in ledger.trouble
    assert (ledger.until, ledger.asked_at) == (at(0), at(SLOT_S + 60))
    client.force_login(User.objects.create_user("ops", is_operator=True))
    assert told in client.get("/usage/?since=2026-01-01&until=2026-01-01").content.decode()
    prometheus.status, prometheus.body = 200, None
    prometheus.told = {ENGINE: busy("n001", 8, 0.5)}
    read(2 * SLOT_S + 60)
    assert GpuUseLedger.objects.get().trouble == ""
    assert hours(GpuUseDay.objects.get())[0] == pytest.approx(16 / 12)


def test_an_address_at_which_nobody_answers_is_told_without_itself(settings, prometheus):
    prometheus.end()
    address = prometheus.url.replace("//", "//kant:secret@")
    with pytest.raises(PrometheusError, match="cannot connect") as failed:
        activities(address, at(0), 300)
    assert "secret" not in str(failed.value)


def test_an_answer_without_end_is_left(prometheus, monkeypatch):
    monkeypatch.setattr("metrics.gpu_use.prometheus.MOST_BYTES", 1000)
    prometheus.body = b" " * 2000
    with pytest.raises(PrometheusError, match="larger"):
        activities(prometheus.url, at(0), 300)


def test_what_lies_too_far_back_is_left_out(prometheus, ran):
    begin()
    prometheus.told = {ENGINE: busy("n001", 8, 0.5)}
    later = fold.FURTHEST.total_seconds() + 2 * SLOT_S
    read(later + 60)
    assert prometheus.asked == []
    read(later + SLOT_S + 60)
    assert hours(GpuUseDay.objects.get())[0] == pytest.approx(8 / 12)


def test_two_workers_add_a_slot_once(prometheus, ran):
    begin()
    told = activities_of(prometheus, busy("n001", 8, 0.5))
    assert fold._write(at(0), at(SLOT_S), told)
    assert not fold._write(at(0), at(SLOT_S), told)
    assert hours(GpuUseDay.objects.get())[0] == pytest.approx(8 / 12)


def activities_of(prometheus, samples):
    prometheus.told = {ENGINE: samples}
    return activities(prometheus.url, at(SLOT_S), 300)


def test_nobody_is_asked_where_none_is_named(prometheus, ran, settings):
    settings.KANT_PROMETHEUS = ""
    read(SLOT_S + 60)
    assert prometheus.asked == []
    assert not GpuUseLedger.objects.exists()


def test_use_of_many_jobs_is_read_by_as_many_statements_as_of_one(
    prometheus, ran, django_assert_max_num_queries
):
    cluster, *_ = ran
    for number in range(30):
        tenant = Tenant.objects.create(name=f"t{number}")
        made = rows.job(cluster, f"j{number}", bound=0, gpus=1, nodes=("n000",))
        Job.objects.filter(pk=made.pk).update(tenant=tenant)
    begin()
    told = activities_of(prometheus, busy("n000", 8, 0.5) + busy("n001", 8, 0.5))
    for slot in range(2):
        with django_assert_max_num_queries(16):
            fold._write(at(slot * SLOT_S), at((slot + 1) * SLOT_S), told)
    assert GpuUseDay.objects.count() == 31
    assert JobGpuUse.objects.count() == 32


@pytest.fixture
def measured(prometheus, ran):
    begin()
    prometheus.told = {ENGINE: busy("n001", 8, 0.25)}
    read(SLOT_S + 60)
    return ran


def test_pages_rest_and_csv_tell_it(measured, client):
    _, short, long = measured
    client.force_login(User.objects.create_user("ops", is_operator=True))
    query = "since=2026-01-01&until=2026-01-01"
    page = client.get(f"/usage/?{query}").content.decode()
    assert "Allocated, but idle" in page
    assert "75.0 % of those measured" in page
    body = client.get(f"/api/v1/usage?{query}").json()
    row = body["items"][0]
    assert (row["measured_gpu_hours"], row["idle_gpu_hours"]) == (0.666667, 0.5)
    assert body["total"]["idle_gpu_hours"] == 0.5
    of_user = client.get(f"/api/v1/usage?{query}&by=user").json()["items"][0]
    assert of_user["idle_gpu_hours"] is None
    by_day = client.get(f"/api/v1/usage?{query}&by=day,cluster").json()["items"]
    assert [item["idle_gpu_hours"] for item in by_day] == [0.5]
    text = client.get(f"/api/v1/usage?{query}", headers={"Accept": "text/csv"}).content.decode()
    assert next(csv.DictReader(io.StringIO(text)))["idle_gpu_hours"] == "0.5"
    told = client.get(f"/api/v1/jobs/{long.pk}").json()["gpu_use"]
    assert (told["busy"], told["idle_gpu_hours"]) == (0.25, 0.5)
    assert client.get(f"/api/v1/jobs/{short.pk}").json()["gpu_use"] is None
    assert "GPUs busy" in client.get(f"/jobs/{long.pk}/").content.decode()
    assert "GPUs busy" not in client.get(f"/jobs/{short.pk}/").content.decode()


def test_without_a_prometheus_a_line_says_how_to_name_one(ran, client, settings):
    client.force_login(User.objects.create_user("ops", is_operator=True))
    page = client.get("/usage/?since=2026-01-01&until=2026-01-01").content.decode()
    assert "<code>KANT_PROMETHEUS</code>" in page
    assert "Allocated, but idle" not in page
    body = client.get("/api/v1/usage?since=2026-01-01&until=2026-01-01").json()
    assert body["items"][0]["idle_gpu_hours"] is None


def test_the_use_of_a_job_goes_with_it(measured):
    _, _, long = measured
    Placement.objects.filter(job=long).delete()
    long.delete()
    assert not JobGpuUse.objects.exists()
    assert GpuUseDay.objects.exists()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("prometheus:9090", "must begin with http"),
        ("ftp://prometheus", "must begin with http"),
        ("http://", "must begin with http"),
        ("http://a:b", "is not a valid address"),
        ("http://prometheus/?x=1", "must have no"),
        ("http://10.0.0.7:9090/prom", ""),
        ("https://kant:word@prometheus.example", ""),
    ],
)
def test_an_address_that_is_none_is_refused_at_the_start(address, why, settings):
    assert wrong_address(address).startswith(why)
    settings.KANT_PROMETHEUS = address
    if why:
        with pytest.raises(SystemCheckError, match="E016"):
            call_command("check")
    else:
        call_command("check")
