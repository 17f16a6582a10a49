"""The generated workload has the published shape, whatever the seed."""

from itertools import islice
from statistics import mean

import pytest

from scheduling.engine.states import JobState
from scheduling.simulator import workload as w
from tests.cases import seeds

CALIBRATED = w.Variant()


def month(variant=CALIBRATED, *, seed=1, gpus=8000, hours=720):
    shares = w.StreamShares()
    jobs = list(
        shares.watch(w.generate(variant, gpus=gpus, gpu_model="H100", seed=seed, hours=hours))
    )
    return jobs, shares.figures(gpus, hours)


def test_published_shares_over_several_months():
    figures = [month(seed=11 + n)[1] for n in seeds(4)]
    errors = 3 / len(figures) ** 0.5  # three standard errors of a mean of this many windows
    for name, (published, deviation) in w.StreamShares.PUBLISHED.items():
        seen = mean(f[name] for f in figures)
        assert seen == pytest.approx(published, abs=errors * deviation), name
    assert mean(f["load"] for f in figures) == pytest.approx(0.92, abs=0.06 * errors)
    assert mean(f["jobs"] for f in figures) == pytest.approx(132_000, rel=0.034 * errors)


def test_the_table_is_calibrated():
    weight = sum(r.weight for r in w.TABLE)
    offered = sum(r.weight / weight * r.gpus * r.mean_s() for r in w.TABLE) * 4400
    assert offered / (8000 * 86400) == pytest.approx(0.92, abs=0.005)


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others():
    def first(seed):
        stream = w.generate(w.Variant(), gpus=8000, gpu_model="H100", seed=seed, hours=24)
        return list(islice(stream, 500))

    assert first(3) == first(3)
    assert first(3) != first(4)


def test_time_never_goes_backwards_and_ids_are_unique():
    jobs, _ = month(hours=100)
    times = [a.submitted_at for a in jobs]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 100 * 3600
    assert len({a.job.id for a in jobs}) == len(jobs)


def test_ends_owners_and_priorities():
    jobs, _ = month(hours=400)
    ends = [a.ends for a in jobs]
    assert ends.count(JobState.SUCCEEDED) / len(ends) == pytest.approx(0.5, abs=0.01)
    assert ends.count(JobState.FAILED) / len(ends) == pytest.approx(0.43, abs=0.01)
    large = [a for a in jobs if a.job.gpu_milli >= 256_000]
    assert {a.job.tenant for a in large} <= {"tenant-01", "tenant-02", "tenant-03"}
    assert {a.job.priority for a in large} == {w.HIGH}
    again = [a for a in large if a.resubmit_after_s is not None]
    assert all(a.ends is JobState.FAILED and 60 <= a.resubmit_after_s <= 600 for a in again)
    assert again


def test_declared_times_are_usual_limits_used_as_published():
    jobs, _ = month(hours=300)
    assert {a.job.declared_s / 3600 for a in jobs} <= set(map(float, w.DECLARED_HOURS))
    undeclared, _ = month(w.Variant(declared=False), hours=10)
    assert {a.job.declared_s for a in undeclared} == {None}


def test_loads_scale_the_number_of_jobs():
    base = w.jobs_a_day(w.Variant(), 8000)
    assert base == pytest.approx(4400)
    assert w.jobs_a_day(w.Variant(load=1.05), 8000) == pytest.approx(base * 1.05 / 0.92)
    assert w.jobs_a_day(w.Variant(), 16_000) == pytest.approx(2 * base)
    assert w.jobs_a_day(w.Variant(jobs_a_day=100), 8000) == 100


def test_variants():
    eights = w.Variant(eights=True).table(8000)
    assert sum(r.weight for r in eights) == pytest.approx(100, abs=0.1)
    assert next(r.weight for r in eights if r.gpus == 8) == 28
    odd = {r.gpus for r in w.Variant(odd_sizes=True).table(8000)}
    assert {96, 296, 320, 496, 504, 1016} <= odd
    assert max(r.gpus for r in w.Variant().table(1000)) == 512
    assert {r.sigma for r in w.Variant(heavy_tail=True).table(8000) if r.gpus >= 256} == {2.7}


def test_quotas_share_out_the_fleet():
    tenants, quotas = w.tenants_of(8000, "H100")
    assert len(tenants) == 15
    assert sum(q.guaranteed for q in quotas) == 8_000_000
    assert [round(q.guaranteed * 135 / 8_000_000) for q in quotas] == list(w.TENANT_SHARES)


@pytest.mark.parametrize(
    ("gpus", "pods"), [(1, [(1, 1)]), (8, [(1, 8)]), (96, [(12, 8)]), (1020, [(127, 8), (1, 4)])]
)
def test_pods_of_a_size(gpus, pods):
    assert [(s.count, s.gpus) for s in w.pod_sets_of(gpus, "H100", 8)] == pods
