"""The result of a replay as one document: what was recorded, and both runs, under the same
names."""

from datetime import datetime, timedelta
from typing import Any

from metrics.definitions import WaitCurve
from metrics.models import Replay
from metrics.replays import quotas
from metrics.replays.recorded import Recorded, scope_of, trust
from metrics.replays.runs import Jobs, Tell, simulated
from scheduling.models import Job
from scheduling.queries.selectors import complete_from

NAMED = 5  # most rows that are named
STEPS = 100  # points of the wait curve

Document = dict[str, Any]


def result_of(replay: Replay, now: datetime, tell: Tell) -> Document:
    """Compute a replay from what is known at `now`; raise ReplayError if that is impossible."""
    runs = simulated(replay, now, tell)
    left_out = runs.left_out
    real = Recorded(scope_of(replay), left_out)
    seconds = runs.baseline.at()
    at = [replay.since + timedelta(seconds=s) for s in seconds]
    baseline, changed = runs.baseline.figures(left_out), runs.changed.figures(left_out)
    before, after = runs.baseline.series(), runs.changed.series()
    found = real.figures()
    return {
        "recorded": found,
        "baseline": baseline,
        "changed": changed,
        "starts": runs.starts(),
        "hardest_hit": _named(runs.hardest_hit(NAMED)),
        "history": _history(replay, runs.jobs),
        "trust": trust(replay, found, baseline),
        "series": {
            "at": [instant.isoformat(timespec="seconds") for instant in at],
            "recorded_gpus": real.gpus(seconds),
            "baseline_gpus": before["gpus"],
            "changed_gpus": after["gpus"],
            "baseline_gfr": before["gfr"],
            "changed_gfr": after["gfr"],
        },
        "started_within_s": {
            "recorded": quantiles(real.curve()),
            "baseline": quantiles(runs.baseline.curve(left_out)),
            "changed": quantiles(runs.changed.curve(left_out)),
        },
    }


def _named(waits: list[tuple[str, float, float]]) -> list[Document]:
    jobs = Job.objects.filter(pk__in=[job_id for job_id, *_ in waits])
    names = {
        str(pk): (name, tenant)
        for pk, name, tenant in jobs.values_list("pk", "name", "tenant__name")
    }
    return [
        {
            "job": job_id,
            "name": names[job_id][0],
            "tenant": names[job_id][1],
            "wait_before_s": before,
            "wait_s": after,
        }
        for job_id, before, after in waits
        if job_id in names
    ]


def quantiles(curve: WaitCurve) -> list[float]:
    """Return the seconds within which 1 %, 2 %, … of the jobs start, as far as they do."""
    found = (curve.quantile(step / STEPS) for step in range(1, STEPS + 1))
    return [value for value in found if value is not None]


def _history(replay: Replay, jobs: Jobs) -> Document:
    kept_from = complete_from()
    return {
        "jobs": len(jobs.arrivals) - jobs.carried_over,
        "carried_over": jobs.carried_over,
        "open_ended": jobs.open_ended,
        "gave_up": jobs.gave_up,
        "declared": jobs.declared,
        "held": jobs.held,
        "unreadable": len(jobs.unreadable),
        "unreadable_first": jobs.unreadable[:NAMED],
        "quota_changes": quotas.changes_in(replay.since, replay.until).total(),
        "complete_from": kept_from.isoformat() if kept_from and kept_from > replay.since else None,
    }
