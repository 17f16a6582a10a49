"""The recorder's integrals against sums worked out by hand."""

import re
from datetime import timedelta

import pytest

from metrics import selectors, services
from metrics.models import MetricSample
from metrics.selectors import Scope, Waiting
from scheduling.models import Job, Placement, PodSet
from tests.metrics.rows import at, cluster, job
from tests.plans import plan, query

pytestmark = pytest.mark.django_db


def scope(where, start, end, model=""):
    return Scope(cluster=where, gpu_model=model, since=at(start), until=at(end))


def test_sor_over_a_window_is_exact_whatever_the_sampling():
    c = cluster(2)
    job(c, "a", bound=5, ended=25, nodes=("n000",))  # inside two windows
    job(c, "b", bound=0, nodes=("n001",))  # throughout
    for second in (0, 10, 20, 40):
        services.record_sample(c, at(second))
    # Held GPU-seconds in [0, 40): a 8 x 20, b 8 x 40; available 16 x 40.
    value, recorded = selectors.sor(scope(c, 0, 40))
    assert value == pytest.approx((160 + 320) / 640)
    assert recorded == timedelta(seconds=40)
    value, _ = selectors.sor(scope(c, 20, 40))
    assert value == pytest.approx((8 * 5 + 8 * 20) / 320)


def test_a_sample_costs_the_same_however_long_the_history_is():
    c = cluster(2)
    job(c, "a", bound=5, ended=25, nodes=("n000",))
    services.record_sample(c, at(0))
    last = query(lambda: services.record_sample(c, at(40)), "metrics_metricsample", "LIMIT 1")
    # By one of two indexes, both of which have the newest at their end.
    assert re.search(r"\(cluster_id\b", plan(last)), plan(last)
    assert not re.search("sort|temp b-tree", plan(last), re.IGNORECASE), plan(last)
    held = query(lambda: services.record_sample(c, at(80)), "scheduling_placement", "SUM")
    assert "scheduling__ended_a" in plan(held), plan(held)


def test_a_sample_of_each_model_and_one_of_all():
    c = cluster(2)
    cluster(1, gpus=4, model="A10")
    rows = services.record_sample(c, at(0))
    assert {(r.gpu_model, r.available_milli) for r in rows} == {
        ("", 20_000),
        ("A10", 4_000),
        ("H100", 16_000),
    }


def test_the_same_instant_is_recorded_once_and_a_late_clock_not_at_all():
    c = cluster(1)
    assert services.record_sample(c, at(10))
    assert services.record_sample(c, at(10)) == []
    assert services.record_sample(c, at(5)) == []
    assert MetricSample.objects.count() == 2


def test_a_cluster_without_gpu_nodes_records_nothing():
    assert services.record_sample(cluster(0), at(0)) == []


def test_a_pool_that_vanished_still_closes_its_integral():
    c = cluster(1)
    cluster(1, gpus=4, model="A10")
    job(c, "a", bound=0, ended=4, nodes=("n001",), gpus=4, model="A10")
    services.record_sample(c, at(0))
    c.nodes.filter(gpu_model="A10").delete()
    services.record_sample(c, at(10))
    value, _ = selectors.sor(scope(c, 0, 10, "A10"))
    assert value == pytest.approx(16 / 40)


def test_pending_jobs_are_counted_by_the_model_they_prefer():
    c = cluster(1)
    cluster(1, gpus=4, model="A10")
    job(c, "a")
    job(c, "b", gpus=4, model="A10")
    rows = {r.gpu_model: r for r in services.record_sample(c, at(0))}
    assert (rows[""].pending_jobs, rows["A10"].pending_jobs) == (2, 1)
    assert rows["A10"].pending_milli == 4_000


def test_what_waits_is_read_once_and_stands_at_every_model_that_it_would_take_first(
    django_assert_num_queries,
):
    c = cluster(1)
    job(c, "a", submitted=5)
    both = job(c, "b", submitted=3, gpus=4, model="A10")
    for index, models in ((1, ["H100", "A10"]), (2, ["A10"]), (3, [])):
        PodSet.objects.create(
            job=both, index=index, name=f"s{index}", count=1, gpus=0, gpu_models=models
        )
    job(c, "over", bound=0, ended=1)
    with django_assert_num_queries(1):
        found = selectors.waiting_by_model(None)
    assert found == {
        "": Waiting(2, 12_000, at(3)),
        "H100": Waiting(2, 12_000, at(3)),
        "A10": Waiting(1, 4_000, at(3)),
    }


def test_thinning_keeps_one_in_ten_minutes_and_the_integrals():
    c = cluster(1)
    job(c, "a", bound=0, nodes=("n000",))
    for second in range(0, 3600, 60):
        services.record_sample(c, at(second))
    before, _ = selectors.sor(scope(c, 0, 3000))
    deleted = services.thin_samples(at(3 * 86400))
    assert deleted == 2 * (60 - 6)
    assert MetricSample.objects.count() == 2 * 6
    after, _ = selectors.sor(scope(c, 0, 3000))
    assert after == pytest.approx(before)


def test_waits_count_a_gang_once_and_other_jobs_pod_by_pod():
    c = cluster(4)
    job(c, "gang", pods=2, submitted=0, bound=30, nodes=("n000", "n001"))
    job(c, "service", pods=3, gang=False, submitted=10, bound=20, nodes=("n002", "n003"))
    job(c, "stuck", submitted=0)
    curves = selectors.wait_curves(scope(c, 0, 100))
    # The gang and the three pods of a job of 24 GPUs share the class from 16.
    assert (curves["16"].jobs, curves["16"].waiting) == (4, 1)
    assert curves["16"].times.tolist() == [10, 30]
    assert (curves["8"].jobs, curves["8"].waiting) == (1, 1)
    assert curves["all"].waiting == 2


def test_jtted_counts_nodes_and_groups_over_the_fewest():
    c = cluster(4, leaf_size=2)
    job(c, "apart", pods=2, bound=1, nodes=("n000", "n002"))
    job(c, "small", pods=2, gpus=4, bound=1, nodes=("n001", "n003"))
    rows = {r.size: r for r in selectors.jtted(scope(c, 0, 10))}
    assert (rows["16"].node_deviation, rows["16"].group_deviation) == (1.0, 2.0)
    assert (rows["8"].node_deviation, rows["8"].group_deviation) == (2.0, 2.0)


def test_samples_are_thinned_for_drawing_but_end_at_the_newest():
    c = cluster(1)
    for second in range(50):
        services.record_sample(c, at(second))
    rows = selectors.samples(scope(c, 0, 100), most=10)
    assert len(rows) == 10
    assert rows[-1].at == at(49)


def test_pods_of_another_start_and_those_that_never_came_count_once_each():
    c = cluster(4)
    row = job(c, "again", pods=2, gang=False, submitted=10, bound=20, ended=50, nodes=("n000",))
    Placement.objects.create(
        job=row, attempt=2, pod_set=0, ordinal=0, pod_name="again-2-0", node="n001",
        gpu_model="H100", held_milli=8000, intended_at=at(40), bound_at=at(40), held_from=at(40),
    )  # fmt: skip
    job(c, "short", pods=3, gang=False, submitted=0, bound=5, ended=60, nodes=("n002",))
    curve = selectors.wait_curves(scope(c, 0, 100))["all"]
    assert (curve.jobs, curve.waiting) == (5, 2)
    assert curve.times.tolist() == [5, 10, 30]


def test_pods_that_were_asked_for_later_have_not_waited_since_the_submission():
    c = cluster(4)
    names = ("n000", "n001", "n002")
    job_row = job(c, "web", pods=3, gang=False, submitted=0, bound=5, nodes=names)
    job_row.placements.filter(ordinal=2).update(held_from=at(80))
    Job.objects.update(first_pods=2, first_gpu_milli=16_000)
    assert selectors.wait_curves(scope(c, 0, 100))["16"].times.tolist() == [5]
    job_row.pod_sets.update(count=1)  # who left had waited too
    curves = selectors.wait_curves(scope(c, 0, 100))
    assert (curves["16"].jobs, curves["16"].waiting) == (2, 0)
    grew = job(c, "grew", pods=4, submitted=0, bound=7, nodes=names)
    Job.objects.filter(pk=grew.pk).update(first_pods=1, first_gpu_milli=8000)
    assert selectors.wait_curves(scope(c, 0, 100))["8"].times.tolist() == [7]


def test_waits_and_jtted_are_read_in_as_many_queries_however_many_jobs(django_assert_num_queries):
    c = cluster(4, leaf_size=2)
    for i in range(5):
        job(c, f"gang-{i}", pods=2, submitted=i, bound=i + 1, nodes=("n000", "n002"))
        job(c, f"alone-{i}", gang=False, submitted=i, bound=i + 2, nodes=("n001",))
    with django_assert_num_queries(3):
        selectors.wait_curves(scope(c, 0, 100))
    with django_assert_num_queries(2):
        (row,) = selectors.jtted(scope(c, 0, 100))
    assert (row.jobs, row.node_deviation, row.group_deviation) == (5, 1.0, 2.0)


def test_sor_does_not_ask_the_samples_for_their_clusters(django_assert_num_queries):
    c = cluster(1)
    for second in (0, 10, 20):
        services.record_sample(c, at(second))
    with django_assert_num_queries(3):
        found, recorded = selectors.sor(Scope(None, "", at(0), at(20)))
    assert (found, recorded.total_seconds()) == (0.0, 20.0)
