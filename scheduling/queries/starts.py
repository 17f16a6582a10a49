"""When a waiting job is expected to start, by the forecaster's last estimate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.utils import timezone

from scheduling.engine.states import WAITING
from scheduling.engine.verdict import Reason
from scheduling.models import Job, StartEstimate
from scheduling.queries.kept import kept
from scheduling.simulator.forecast.likeness import size_of

NOT_YET = "Kant is still working it out; that takes a few seconds."
OLD = timedelta(minutes=2)  # an older estimate is shown with its time
PAST = timedelta(days=30)  # over which estimates are compared with starts
BASES: Mapping[str, str] = {
    "declared": "declared run times",
    "share": "declared run times, adjusted by how much of theirs similar jobs used",
    "runs": "earlier runs",
    "prior": "no history",
}


@dataclass(frozen=True, slots=True)
class ToldStart:
    """When a waiting job is expected to start.

    - `p10`, `p50`, `p90`: it starts before these in 10, 50 and 90 % of cases; None if that is
      unknown, for `reason`.
    - `earliest`: may be known in that case; it starts before this in 10 % of cases.
    - `basis`: how most run times that matter were estimated; `text`: how the job's own was.
    - `as_of`: when it was estimated; None = not yet.
    - `overdue`: `p90` has passed.
    """

    p10: datetime | None
    p50: datetime | None
    p90: datetime | None
    basis: str
    text: str
    reason: str
    as_of: datetime | None
    overdue: bool
    old: bool
    earliest: datetime | None = None

    @property
    def is_known(self) -> bool:
        """Whether it says anything about the start."""
        return self.p50 is not None or self.earliest is not None

    def from_now(self, now: datetime) -> "ToldStart":
        """Return it for readers of times: a waiting job does not start before `now`.

        An overdue one keeps its times, which say when it was expected.
        """
        if self.p10 is None or self.p50 is None or self.overdue:
            return self
        return replace(self, p10=max(self.p10, now), p50=max(self.p50, now))


def told_start(job: Job, now: datetime | None = None) -> ToldStart | None:
    """Return the expected start of a job; None = it does not wait.

    Takes no query if `estimate` was selected.
    """
    if job.state not in WAITING:
        return None
    # Until a scheduler has looked at it there is no estimate: submitting takes no query.
    row: StartEstimate | None = (
        getattr(job, "estimate", None) if job.reason != Reason.PENDING_EVALUATION else None
    )
    if row is None:
        return ToldStart(None, None, None, "", "", NOT_YET, None, False, False)
    now = now or timezone.now()
    overdue = row.p90 is not None and row.p90 < now
    old = row.as_of < now - OLD
    known = row.earliest if row.earliest is not None and row.earliest > now else None
    return ToldStart(
        row.p10, row.p50, row.p90, row.basis, row.text, row.none, row.as_of, overdue, old, known
    )


@dataclass(frozen=True, slots=True)
class HitRate:
    """How often estimates held for jobs of a size class and a basis.

    `starts` jobs of the size (`likeness.size_of`) had an estimate by this basis; `held` of them
    started within their first band.
    """

    size: int
    basis: str
    starts: int
    held: int

    @property
    def share(self) -> float:
        return self.held / self.starts

    @property
    def by(self) -> str:
        """The basis in words."""
        return BASES[self.basis]

    @property
    def sizes(self) -> str:
        """ "no GPU", "1 GPU", "5–8 GPUs"."""
        return words_of_size(self.size)


def words_of_size(size: int) -> str:
    """Return the GPUs of jobs of a size class in words."""
    most = 2 ** max(0, size - 1)
    if size < 2:
        return f"{'up to 1' if size else 'no'} GPU"
    least = most // 2 + 1
    return f"{most} GPUs" if least == most else f"{least}–{most} GPUs"


def hit_rates() -> list[HitRate]:
    """Return the rates of jobs that started in the last 30 days; reused while fresh."""
    return kept("start-hit-rates", _hit_rates)


def hit_rate_of(job: Job, told: ToldStart) -> HitRate | None:
    """Return the rate for the job's size and the basis of its own estimate."""
    size = size_of(job.gpu_milli)
    return next((r for r in hit_rates() if (r.size, r.basis) == (size, told.basis)), None)


def _hit_rates() -> list[HitRate]:
    rows = StartEstimate.objects.filter(
        started_at__gte=timezone.now() - PAST, first_as_of__isnull=False
    )
    found: dict[tuple[int, str], list[int]] = {}
    for basis, milli, started, low, high in (
        rows.order_by()
        .values_list("first_basis", "job__gpu_milli", "started_at", "first_p10", "first_p90")
        .iterator(chunk_size=2000)
    ):
        assert started is not None  # started_at >= …
        assert low is not None  # set with first_as_of
        assert high is not None
        counts = found.setdefault((size_of(milli), basis), [0, 0])
        counts[0] += 1
        counts[1] += low <= started <= high
    return [HitRate(*of, *counts) for of, counts in sorted(found.items())]
