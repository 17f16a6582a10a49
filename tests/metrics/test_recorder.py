"""The recorder's integrals against sums worked out by hand."""

import random
import re
from datetime import timedelta

import pytest

from metrics import selectors, services
from metrics.api.views import summary as api_summary
from metrics.models import MetricSample
from metrics.pages.operations.views import Selection
from metrics.pages.operations.views import summary as page_summary
from metrics.selectors import MetricScope, WaitingNow
from scheduling.models import Cluster, Job, Placement, PodSet
from scheduling.models.jobs import RESIZED, PlacementState
from tests.cases import seeds
from tests.metrics.rows import at, cluster, job
from tests.plans import plan, query

pytestmark = pytest.mark.django_db


def scope(where, start, end, model=""):
    return MetricScope(cluster=where, gpu_model=model, since=at(start), until=at(end))


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
    # Either of two indexes will do: both have the newest row at their end.
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
        "": WaitingNow(2, 12_000, at(3)),
        "H100": WaitingNow(2, 12_000, at(3)),
        "A10": WaitingNow(1, 4_000, at(3)),
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


def test_thinning_goes_on_where_it_ended(settings):
    settings.KANT_KEEP_DAYS = 5
    c = cluster(1)
    day = 86400
    for second in (*range(0, 3600, 90), *range(day - 1800, day + 3600, 90)):
        services.record_sample(c, at(second))
    ticks = {s.at for s in MetricSample.objects.all()}
    first_of_ten = {}
    for tick in sorted(ticks):
        first_of_ten.setdefault((tick - at(0)) // timedelta(minutes=10), tick)
    # No run ends exactly with an hour, a day or a sample's ten minutes.
    for hour in (0, 0.4, 0.5, 23.7, 24.1, 24.3, 30):
        services.thin_samples(at((48 + hour) * 3600))
    for model in ("", "H100"):
        kept = MetricSample.objects.filter(gpu_model=model).values_list("at", flat=True)
        assert sorted(kept) == sorted(first_of_ten.values())
    # What was looked through is not read again, and is deleted when its time comes.
    again = MetricSample.objects.filter(gpu_model="").earliest("at")
    again.pk, again.at = None, again.at + timedelta(seconds=5)
    again.save()
    assert services.thin_samples(at(4 * day)) == 0
    assert services.thin_samples(at(5 * day + 60)) == 3
    assert services.thin_samples(at(60)) == 0  # a clock that was set back


def test_waits_count_a_gang_once_and_other_jobs_pod_by_pod():
    c = cluster(4)
    job(c, "gang", pods=2, submitted=0, bound=30, nodes=("n000", "n001"))
    job(c, "service", pods=3, gang=False, submitted=10, bound=20, nodes=("n002", "n003"))
    job(c, "stuck", submitted=0)
    curves = {size: of.in_all for size, of in selectors.waits(scope(c, 0, 100)).items()}
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
    row.placements.update(ended_at=at(30), state=PlacementState.RELEASED)
    Placement.objects.create(
        job=row, attempt=2, pod_set=0, ordinal=0, pod_name="again-2-0", node="n001",
        gpu_model="H100", held_milli=8000, intended_at=at(40), bound_at=at(40), held_from=at(40),
    )  # fmt: skip
    job(c, "short", pods=3, gang=False, submitted=0, bound=5, ended=60, nodes=("n002",))
    found = selectors.waits(scope(c, 0, 100))["all"]
    assert (found.in_all.jobs, found.in_all.waiting) == (5, 3)
    assert found.in_all.times.tolist() == [5, 20]
    assert found.first_start.times.tolist() == [5, 10]


SPANS = [
    # Held from and to; total wait, whether it has its place, wait until its first start.
    ((), (100, False, 100)),
    (((10, 30), (50, 80), (90, None)), (10 + 20 + 10, True, 10)),
    (((10, 30), (50, 80)), (10 + 20 + 20, False, 10)),
    (((0, 60),), (40, False, 0)),
    (((0, None),), (0, True, 0)),
    (((5, 20), (120, None)), (5 + 80, False, 5)),  # after the window
]


@pytest.mark.parametrize("gang", [True, False])
@pytest.mark.parametrize(("held", "expected"), SPANS)
def test_waits_are_without_the_time_in_which_places_were_held(held, expected, gang):
    c = cluster(2)
    row = job(c, "often", pods=2 if gang else 1, gang=gang, submitted=0)
    for attempt, (begin, end) in enumerate(held, start=1):
        over = PlacementState.RUNNING if end is None else PlacementState.RELEASED
        for ordinal in range(2 if gang else 1):
            # The second pod of a gang ends a little earlier; the gang does not.
            Placement.objects.create(
                job=row, attempt=attempt, pod_set=0, ordinal=ordinal, gpu_model="H100",
                node=f"n00{ordinal}", held_milli=8000, intended_at=at(begin), held_from=at(begin),
                ended_at=None if end is None else at(end - ordinal), state=over,
            )  # fmt: skip
    last = held[-1] if held else None
    bound = at(last[0]) if last and last[1] is None else None
    Job.objects.update(attempt=len(held), bound_at=bound)
    found = selectors.waits(scope(c, 0, 100))["all"]
    waited, placed, first = expected
    assert (found.in_all.jobs, found.in_all.waiting) == (1, not placed)
    assert (found.in_all.mean, found.first_start.mean) == (waited, first)
    assert found.first_start.waiting == (not held)


def test_who_finished_or_had_to_leave_a_smaller_job_waits_no_more():
    c = cluster(2)
    row = job(c, "web", pods=2, gang=False, submitted=0, bound=10, nodes=("n000", "n001"))
    first, second = row.placements.order_by("ordinal")
    row.placements.filter(pk=first.pk).update(ended_at=at(20), state=PlacementState.SUCCEEDED)
    left = {"ended_at": at(30), "state": PlacementState.RELEASED, "reason": RESIZED}
    row.placements.filter(pk=second.pk).update(**left)
    found = selectors.waits(scope(c, 0, 100))["all"]
    assert (found.in_all.waiting, found.in_all.mean) == (0, 10)


def test_pods_that_were_asked_for_later_have_not_waited_since_the_submission():
    c = cluster(4)
    names = ("n000", "n001", "n002")
    job_row = job(c, "web", pods=3, gang=False, submitted=0, bound=5, nodes=names)
    job_row.placements.filter(ordinal=2).update(held_from=at(80))
    Job.objects.update(first_pods=2, first_gpu_milli=16_000)
    assert selectors.waits(scope(c, 0, 100))["16"].in_all.times.tolist() == [5]
    job_row.pod_sets.update(count=1)  # the removed pod had waited too
    curves = {size: of.in_all for size, of in selectors.waits(scope(c, 0, 100)).items()}
    assert (curves["16"].jobs, curves["16"].waiting) == (2, 0)
    grew = job(c, "grew", pods=4, submitted=0, bound=7, nodes=names)
    Job.objects.filter(pk=grew.pk).update(first_pods=1, first_gpu_milli=8000)
    assert selectors.waits(scope(c, 0, 100))["8"].in_all.times.tolist() == [7]


def test_waits_and_jtted_are_read_in_as_many_queries_however_many_jobs(django_assert_num_queries):
    c = cluster(4, leaf_size=2)
    for i in range(5):
        job(c, f"gang-{i}", pods=2, submitted=i, bound=i + 1, nodes=("n000", "n002"))
        job(c, f"alone-{i}", gang=False, submitted=i, bound=i + 2, nodes=("n001",))
    with django_assert_num_queries(5):
        selectors.waits(scope(c, 0, 100))
    with django_assert_num_queries(2):
        (row,) = selectors.jtted(scope(c, 0, 100))
    assert (row.jobs, row.node_deviation, row.group_deviation) == (5, 1.0, 2.0)


def test_sor_does_not_ask_the_samples_for_their_clusters(django_assert_num_queries):
    c = cluster(1)
    for second in (0, 10, 20):
        services.record_sample(c, at(second))
    with django_assert_num_queries(3):
        found, recorded = selectors.sor(MetricScope(None, "", at(0), at(20)))
    assert (found, recorded.total_seconds()) == (0.0, 20.0)


# --- what becomes known late ----------------------------------------------------------------------
def spans(rng, count):
    """Pods: name, node, milli-GPU, and the instants at which they were decided, held and gone."""
    found = []
    for i in range(count):
        decided = rng.uniform(0, 400)
        held = decided + rng.uniform(0, 8)
        gone = held + rng.uniform(1, 200)
        node, milli = rng.choice(range(4)), rng.choice((250, 500, 1000, 2000, 8000))
        found.append((f"p{i}", f"n{node:03}", milli, decided, held, gone))
    return found


def record_with(c, pods, delay):
    """Sample every 10 seconds, while each instant of a pod appears in its row `delay()` later."""
    row = job(c, f"of-{c.name}", pods=1)
    news = []
    for i, (name, node, milli, decided, held, gone) in enumerate(pods):
        key = {"job": row, "attempt": i + 1, "pod_set": 0, "ordinal": 0}
        known = decided
        for at_s, column in ((decided, "intended_at"), (held, "held_from"), (gone, "ended_at")):
            known = max(known, at_s + delay())
            news.append((known, key, {column: at(at_s)}, (name, node, milli)))
    news.sort(key=lambda one: one[0])
    for second in [*range(0, 700, 10), 720]:
        while news and news[0][0] <= second:
            _, key, columns, (name, node, milli) = news.pop(0)
            first = {"node": node, "held_milli": milli, "pod_name": name, "gpu_model": "H100"}
            Placement.objects.update_or_create(
                **key, defaults=columns, create_defaults=first | columns
            )
        services.record_sample(c, at(second))
    columns = ("gpu_model", "at", "allocated_milli", "fragmented_nodes", "allocated_milli_s")
    return list(
        MetricSample.objects.filter(cluster=c).order_by("at", "gpu_model").values_list(*columns)
    )


@pytest.mark.parametrize("seed", seeds(4))
def test_what_becomes_known_late_counts_from_when_it_was(seed):
    rng = random.Random(seed)
    pods = spans(rng, 40)
    late = record_with(cluster(4), pods, lambda: rng.choice((0.0, 3.0, 40.0)))
    told = [s.told_milli_s for s in MetricSample.objects.filter(gpu_model="").order_by("at")]
    assert told == sorted(told)
    Cluster.objects.update(name="late")
    at_once = record_with(cluster(4), pods, lambda: 0.0)
    assert [row[:4] for row in late] == [row[:4] for row in at_once]
    assert [row[4] for row in late] == pytest.approx([row[4] for row in at_once], abs=1)
    # Both match what the pods held.
    held = sum(milli * (gone - held) for *_, milli, _, held, gone in pods)
    assert late[-1][4] == pytest.approx(held, abs=1)


def test_a_sample_counts_what_is_placed_though_no_row_of_a_node_tells_it_yet():
    c = cluster(2)
    job(c, "a", bound=5, nodes=("n000",), gpus=4)
    (sample,) = (s for s in services.record_sample(c, at(6)) if not s.gpu_model)
    assert (sample.allocated_milli, sample.fragmented_nodes) == (4000, 1)
    assert sample.free_by_node == {"4": 1, "8": 1}


def test_the_figures_of_now_are_those_of_a_sample_at_that_instant():
    """This holds whatever the node rows say meanwhile, and whatever just ended or began."""
    c = cluster(4)
    job(c, "a", bound=5, nodes=("n000",), gpus=4)
    job(c, "b", bound=6, ended=9, nodes=("n001",))
    job(c, "c", bound=8, nodes=("n002", "n003"), pods=2)
    c.nodes.filter(name="n001").update(allocated_milli=8000, free_gpus=0)  # the row lags behind
    for second in (7, 8.5, 10):
        services.record_sample(c, at(second))
        sample = MetricSample.objects.get(gpu_model="", at=at(second))
        for where, model in ((None, ""), (c, ""), (c, "H100")):
            seen = scope(where, 0, second, model)
            told = api_summary(seen)
            assert told["gar"] == sample.allocated_milli / sample.available_milli
            assert told["allocated_gpus"] == sample.allocated_milli / 1000
            assert told["available_gpus"] == sample.available_milli / 1000
            assert (told["nodes"], told["fragmented_nodes"]) == (4, sample.fragmented_nodes)
            assert told["largest_gang_any"] == sample.largest_gang_any
            shown = page_summary(Selection(seen, "24h", [c], ["H100"], {}))
            assert shown["use"].gar == told["gar"]
            assert shown["pools"][0].use == shown["use"]
            assert shown["trends"]["gar"][-1] == shown["use"].gar


def test_what_is_only_intended_is_allocated_and_not_yet_held():
    c = cluster(1)
    row = job(c, "a", bound=10, nodes=("n000",))
    row.placements.update(held_from=None)
    for second in (0, 10, 30):
        services.record_sample(c, at(second))
    rows = MetricSample.objects.filter(gpu_model="").order_by("at")
    assert [(s.allocated_milli, s.allocated_milli_s) for s in rows] == [
        (0, 0),
        (8000, 0),
        (8000, 0),
    ]
    row.placements.update(held_from=at(12))
    services.record_sample(c, at(40))
    assert [s.allocated_milli_s for s in rows.all()] == [0, 0, 8000 * 18, 8000 * 28]
