"""What was recorded in the period of a replay, in the terms of its runs, and how far the simulated
baseline is from it. That distance says how much a reader may trust the rest."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from django.db.models import Q
from django.utils import timezone

from metrics import definitions, selectors
from metrics.definitions import JobWaits, Wait, WaitCurve
from metrics.models import MetricSample, Replay
from metrics.replays import quotas
from metrics.selectors import MetricScope
from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent, Placement
from scheduling.models.held import HELD
from scheduling.models.jobs import PREEMPTED
from tenants.models import AuditRecord

# Grades of trust. For each, how far GPU time held (as a share of the available) and the mean wait
# (relative or in seconds, whichever is more) may differ.
CLOSE, ROUGH, FAR, UNKNOWN = "close", "rough", "far", "unknown"
WITHIN = {CLOSE: (0.02, 0.1, 60.0), ROUGH: (0.1, 0.5, 600.0)}
SAMPLED = 0.8  # of the period; with less, the samples do not represent it

MILLI_S_PER_GPU_HOUR = 3.6e6

Figures = dict[str, Any]


def scope_of(replay: Replay) -> MetricScope:
    return MetricScope(replay.cluster, "", replay.since, replay.until)


class Recorded:
    """The period as it was recorded."""

    def __init__(self, scope: MetricScope, left_out: Collection[str]) -> None:
        """`left_out`: jobs that count in no wait."""
        self.scope = scope
        self._samples = list(
            MetricSample.objects.filter(
                cluster=scope.cluster, gpu_model="", at__gte=scope.since, at__lte=scope.until
            )
            .order_by("at")
            .values_list(
                "at",
                "allocated_milli",
                "available_milli",
                "fragmented_nodes",
                "nodes",
            )
        )
        self.waits, self.by_tenant = _waits(scope, left_out)
        self._held = _held(scope)

    def figures(self) -> Figures:
        """Return the recorded figures, with the names of `runs.Run.figures`; ratios are None if too
        little of the period was sampled."""
        hours = self._gpu_hours()
        sor, length = selectors.sor(self.scope)
        sampled = min(1.0, length / (self.scope.until - self.scope.since))
        gar, gfr = self._of_samples()
        return {
            "gar": gar if sampled >= SAMPLED else None,
            "sor": sor if sampled >= SAMPLED else None,
            "gfr": gfr if sampled >= SAMPLED else None,
            "sampled": sampled,
            "gpu_hours": sum(hours.values()),
            "jwtd": [{"size": size, **of_size.row()} for size, of_size in self.waits.items()],
            "tenants": [
                {
                    "tenant": name,
                    "gpu_hours": hours.get(name, 0.0),
                    **of_tenant.row(),
                }
                for name, of_tenant in self.by_tenant.items()
            ],
            "jtted": [
                {
                    "size": row.size,
                    "jobs": row.jobs,
                    "node_deviation": row.node_deviation,
                    "group_deviation": row.group_deviation,
                }
                for row in selectors.jtted(self.scope)
            ],
            "preempted_jobs": _preempted(self.scope),
        }

    def curve(self) -> WaitCurve:
        """Return the total waits of all jobs."""
        return self.waits["all"].in_all if self.waits else definitions.wait_curve([], [])

    def _of_samples(self) -> tuple[float | None, float | None]:
        """Return median GAR and mean GFR. Each sample is weighted by the time until the next,
        because older samples are thinned."""
        if len(self._samples) < 2:
            return None, None
        at, allocated, available, fragmented, nodes = zip(*self._samples, strict=True)
        lasts = np.diff([instant.timestamp() for instant in at])
        offered = np.array(available[:-1], dtype=float)
        gar = np.divide(allocated[:-1], offered, out=np.zeros_like(offered), where=offered > 0)
        order = np.argsort(gar)
        reached = np.cumsum(lasts[order]) / lasts.sum()
        middle = gar[order][min(int(np.searchsorted(reached, 0.5)), len(order) - 1)]
        gfr = definitions.ratio(
            float(np.dot(fragmented[:-1], lasts)), float(np.dot(nodes[:-1], lasts))
        )
        return float(middle), gfr

    def _gpu_hours(self) -> dict[str, float]:
        """Return GPU-hours by tenant."""
        found: dict[str, float] = defaultdict(float)
        for tenant, milli, begin, end in self._held:
            found[tenant] += milli * (end - begin) / MILLI_S_PER_GPU_HOUR
        return found

    def gpus(self, at: Sequence[float]) -> list[float]:
        """Return the mean GPUs that jobs held in the interval before each of these seconds of the
        period."""
        milli, begin, end = np.array([row[1:] for row in self._held]).reshape(-1, 3).T
        until = [
            float(np.dot(milli, np.minimum(end, t) - np.minimum(begin, t))) for t in (0.0, *at)
        ]
        return (np.diff(until) / np.diff([0.0, *at]) / definitions.MILLI).tolist()


def _held(scope: MetricScope) -> list[tuple[str, float, float, float]]:
    """Return for each pod that held GPUs: its tenant, milli-GPU, and the first and last second
    within the period."""
    # Of all clusters: with one cluster in the query, SQLite would walk through all jobs that it
    # ever had.
    rows = Placement.objects.filter(
        Q(ended_at=None) | Q(ended_at__gt=scope.since), held_from__lt=scope.until
    ).order_by()
    found = []
    for cluster_id, tenant, milli, begun, ended in rows.values_list(
        "job__cluster_id", "job__tenant__name", HELD, "held_from", "ended_at"
    ).iterator(chunk_size=2000):
        assert begun is not None  # because held_from < until
        begin, end = max(begun, scope.since), min(ended or scope.until, scope.until)
        if scope.cluster is not None and cluster_id == scope.cluster.pk and end > begin:
            first, last = ((at - scope.since).total_seconds() for at in (begin, end))
            found.append((tenant, milli, first, last))
    return found


def _waits(
    scope: MetricScope, left_out: Collection[str]
) -> tuple[dict[str, JobWaits], dict[str, JobWaits]]:
    """Return JWTD by size class and "all", and by tenant."""
    jobs = Job.objects.filter(
        cluster=scope.cluster, submitted_at__gte=scope.since, submitted_at__lt=scope.until
    )
    tenants = dict(jobs.order_by().values_list("pk", "tenant__name"))
    by_tenant: dict[str, list[Wait]] = {}
    counted = []
    for unit in selectors.unit_waits(jobs, scope.until):
        job_id = UUID(unit.job)
        if job_id in tenants and str(job_id) not in left_out:
            counted.append((unit.milli, unit.wait))
            by_tenant.setdefault(tenants[job_id], []).append(unit.wait)
    of_tenants = {name: definitions.job_waits(found) for name, found in sorted(by_tenant.items())}
    return selectors.by_size(counted), of_tenants


def _preempted(scope: MetricScope) -> int:
    """Return the number of jobs preempted in the period."""
    events = JobEvent.objects.filter(
        reason=PREEMPTED, at__gte=scope.since, at__lte=scope.until, job__cluster=scope.cluster
    )
    return events.order_by().values("job_id").distinct().count()


# --- how far the baseline may be trusted ----------------------------------------------------------
def trust(replay: Replay, real: Figures, baseline: Figures) -> dict[str, Any]:
    """Return the grade, the figures behind it, and sentences on what the runs do not know."""
    hours = (replay.until - replay.since).total_seconds() / 3600
    held = tuple(
        definitions.ratio(run["gpu_hours"], baseline["gpus"] * hours) for run in (real, baseline)
    )
    wait = (_mean_wait(real), _mean_wait(baseline))
    return {
        "grade": grade(held, wait),
        "gpu_hours_recorded": real["gpu_hours"],
        "gpu_hours_simulated": baseline["gpu_hours"],
        "wait_recorded_s": wait[0],
        "wait_simulated_s": wait[1],
        "doubts": doubts(replay),
    }


def _mean_wait(figures: Figures) -> float | None:
    return next((row["mean_s"] for row in figures["jwtd"] if row["size"] == "all"), None)


def grade(held: Sequence[float | None], wait: Sequence[float | None]) -> str:
    """Grade how close the simulated values are to the recorded ones; each pair has the recorded
    value first.

    Returns the worse grade of GPU time held (as a share of the available) and mean wait in seconds;
    unknown values do not count.
    """
    found = []
    for index, (real, simulated) in enumerate((held, wait)):
        if real is None or simulated is None:
            continue
        apart = abs(simulated - real)
        allowed = {
            name: share if index == 0 else max(relative * real, seconds)
            for name, (share, relative, seconds) in WITHIN.items()
        }
        found.append(next((name for name, most in allowed.items() if apart <= most), FAR))
    return max(found, key=[CLOSE, ROUGH, FAR].index, default=UNKNOWN)


def doubts(replay: Replay) -> list[str]:
    """Return what has happened since the period began that one or both runs do not know of."""
    found = []
    policy = ClusterPolicy.objects.filter(cluster=replay.cluster_id).first()
    if policy and replay.since < policy.updated_at <= timezone.now():
        found.append(
            f"The policy was changed on {policy.updated_at:%Y-%m-%d %H:%M} UTC; earlier "
            "decisions were made under another policy."
        )
    times = quotas.changes_in(replay.since, replay.until)
    for one in replay.quotas:
        if count := times[one["tenant"], one["gpu_type"]]:
            found.append(
                f"The quota of {one['tenant']} for {one['gpu_type']} was changed "
                f"{'once' if count == 1 else f'{count} times'} in the period; the run with your "
                "change uses your value the whole time."
            )
    tenants = AuditRecord.objects.filter(at__gt=replay.since, action="tenant.changed")
    if changes := sum(map(_changes_min_runtime, tenants)):
        found.append(
            "Minimum run times of tenants were changed "
            f"{'once' if changes == 1 else f'{changes} times'} since the period began; both "
            "runs use the current values."
        )
    if replay.policy_before.get("shards") or replay.policy.get("shards"):
        found.append("Shards make no difference: the runs decide about the cluster as a whole.")
    if Cluster.objects.exclude(pk=replay.cluster_id).exists():
        found.append("Quota that is held in other clusters is not counted.")
    return found


def _changes_min_runtime(record: AuditRecord) -> bool:
    # Records of older versions lack the field.
    before, after = record.before or {}, record.after or {}
    return bool(before.get("min_runtime_s") != after.get("min_runtime_s"))
