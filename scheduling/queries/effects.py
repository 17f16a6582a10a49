"""What a change would do: run the engine ahead without it and with it.

The process that keeps a cluster's state does this; without one, rows are used. Time is bounded: the
runs ahead go as far as it lasts.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from django.utils import timezone

from scheduling.engine.deltas import Delta, PastUse, PolicyChanged, TenantsChanged
from scheduling.engine.types import Policy, QuotaSpec, TenantSpec
from scheduling.models import Cluster, Job, NodeRecord
from scheduling.queries.explain import policy_in_use
from scheduling.queries.known import CannotTell, Known, scene_at, scopes_of
from scheduling.queries.quota_use import QuotaKey, quota_book, quota_uses, terms_of
from scheduling.queries.standstill import standstill
from scheduling.queries.whatif.by_rows import asked_or
from scheduling.queries.whatif.line import LONGEST_S
from scheduling.queries.whatif.questions import ChangeTold, Preview, base_within
from scheduling.session.memory.ended_runs import LEARNED_FROM, learn_runs
from scheduling.session.memory.past import half_life_of, past_use
from scheduling.simulator.forecast.effects import Change as RunChange
from scheduling.simulator.forecast.effects import Holder, JobStop, ResizeEffect, RunEffects, Shift
from scheduling.simulator.forecast.ground import ground_of
from scheduling.simulator.forecast.run_times import RunTimes
from tenants.database.chunks import chunks
from tenants.effects import (
    NO_TENANTS,
    AffectedJob,
    EffectCounts,
    Effects,
    ImpossibleJob,
    LoanShift,
    PlannedTenant,
    ResizedJob,
    ShiftingJob,
    StoppingJob,
)
from tenants.models import Quota, Tenant, User
from tenants.permissions import Access, access_of
from tenants.selectors import visible_names

WITHIN_S = 2.0  # wall-clock time, for all clusters together
SHOWN = 20  # jobs in each list
LEAST_SHIFT_S = 60.0


def quota_effects(
    viewer: User,
    after: Mapping[QuotaKey, Quota | None],
    planned: Mapping[str, PlannedTenant] = NO_TENANTS,
) -> Effects:
    """Return the effects of storing these quotas, as the viewer may see them.

    A quota of None = there would be none. `planned`: these tenants would be as planned.
    """
    nodes = NodeRecord.objects.all()
    if not planned:  # a tenant may use any cluster
        nodes = nodes.filter(gpu_model__in={model for _, model in after})
    clusters = Cluster.objects.filter(is_active=True, pk__in=nodes.values("cluster"))
    terms = {key: None if quota is None else terms_of(quota) for key, quota in after.items()}
    looked = _looked(clusters.order_by("name"), QuotasChange(terms, planned))
    return _told(viewer, looked, after, planned)


@dataclass(frozen=True, slots=True)
class QuotasChange:
    """These quotas change (None = removed), and these tenants are as planned."""

    after: Mapping[QuotaKey, QuotaSpec | None]
    planned: Mapping[str, PlannedTenant] = field(default_factory=dict)

    def __call__(self, facts: Sequence[Delta]) -> Sequence[TenantsChanged]:
        told = next(fact for fact in facts if isinstance(fact, TenantsChanged))
        quotas = {(q.tenant, q.gpu_model): q for q in told.quotas}
        for key, quota in self.after.items():
            quotas.pop(key, None)
            if quota is not None:
                quotas[key] = quota
        return [replace(told, tenants=self._tenants(told), quotas=tuple(quotas.values()))]

    def _tenants(self, told: TenantsChanged) -> tuple[TenantSpec, ...]:
        return tuple(
            replace(
                one,
                parent=then.parent,
                weight=then.weight,
                max_running=then.max_running,
                min_runtime_s=then.min_runtime_s,
            )
            if (then := self.planned.get(one.id))
            else one
            for one in told.tenants
        )


def change_effects(viewer: User, clusters: Iterable[Cluster], change: ChangeTold) -> Effects:
    """Return the effects of a change of these clusters, as the viewer may see them."""
    return _told(viewer, _looked(clusters, change), {}, {})


def policy_effects(viewer: User, cluster: Cluster, policy: Policy) -> Effects:
    """Return the effects from now on of scheduling a cluster by this policy."""
    before = policy_in_use(cluster.pk)
    if before.shards != policy.shards:
        why = (
            f"{cluster.name}: the change divides it into different shards, which cannot be "
            "previewed."
        )
        return Effects(timezone.now(), troubles=[why])
    half_life_s, used = half_life_of(policy), None
    if half_life_s and half_life_s != half_life_of(before):
        used = past_use(cluster.pk, half_life_s, timezone.now())
    return change_effects(viewer, [cluster], PolicyChange(policy, used))


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A policy, and `used`: past use, if it counts differently now; None = it does not."""

    policy: Policy
    used: PastUse | None

    def __call__(self, _: Sequence[Delta]) -> Sequence[RunChange]:
        told = PolicyChanged(self.policy)
        return [told] if self.used is None else [told, self.used]


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was found for each scope, and the clusters for which nothing can be said."""

    found: Sequence[RunEffects]
    troubles: Sequence[str]


def _looked(clusters: Iterable[Cluster], change: ChangeTold) -> _Looked:
    deadline = time.monotonic() + WITHIN_S
    found: list[RunEffects] = []
    troubles: list[str] = []
    all_of_them = list(clusters)
    for at, cluster in enumerate(all_of_them):
        left = max(0.0, deadline - time.monotonic()) / (len(all_of_them) - at)
        question = Preview(change, left, time.time())
        try:
            if why := standstill(cluster):
                raise CannotTell(why)
            by_rows = partial(_by_rows, cluster, question)
            found += asked_or(cluster.pk, question, by_rows, patience_s=LONGEST_S)
        except CannotTell as error:
            troubles.append(f"{cluster.name}: {error}")
    return _Looked(found, troubles)


def _by_rows(cluster: Cluster, question: Preview) -> list[RunEffects]:
    """Return the effects in each scope. Raises CannotTell."""
    until = question.until
    known, run_times = Known(cluster), RunTimes()
    learn_runs(run_times, cluster.pk, timezone.now() - LEARNED_FROM)
    found, scopes = [], scopes_of(known.policy)
    for at, scope in enumerate(scopes):
        began = time.monotonic()
        share = max(0.0, until - began) / (len(scopes) - at)
        facts = known.facts(scope)
        ground = ground_of(scene_at(facts, time.time()))
        base = base_within(ground, run_times, began + share)
        found.append(question.on(ground, facts, base, began + share))
    return found


# --- what people see ------------------------------------------------------------------------------
def _told(
    viewer: User,
    looked: _Looked,
    after: Mapping[QuotaKey, Quota | None],
    planned: Mapping[str, PlannedTenant],
) -> Effects:
    """Return the effects in terms of pages and REST; of each list the most important entries."""
    found = looked.found
    stops = {job: stop for one in found for job, stop in one.stops.items()}
    shifts = {job: shift for one in found for job, shift in _shifts(one)}
    impossible = {job: why for one in found for job, why in one.impossible.items()}
    starts = [job for one in found for job in one.starts]
    delayed = [job for one in found for job in one.delayed if job not in impossible]
    possible = [job for one in found for job in one.possible]
    resizes = {job: resize for one in found for job, resize in one.resizes.items()}
    resized = sorted(resizes, key=lambda job: (-resizes[job].more, -resizes[job].leave, job))
    resized = resized[:SHOWN]
    most_lost = sorted(stops, key=lambda job: (-stops[job].lost_gpu_s, job))[:SHOWN]
    moved = sorted(shifts, key=lambda job: (-_size(shifts[job]), job))[:SHOWN]
    first = {name: of[:SHOWN] for name, of in
             (("starts", starts), ("delayed", delayed), ("possible", possible))}  # fmt: skip
    never = list(impossible)[:SHOWN]
    by = [stops[job].by for job in most_lost if stops[job].by]
    jobs = JobsTold(
        viewer,
        [*most_lost, *moved, *never, *by, *resized, *(j for of in first.values() for j in of)],
    )
    until = min((one.until for one in found), default=None)
    as_of = _instant(min((one.now for one in found), default=None))
    return Effects(
        as_of=as_of or timezone.now(),
        until=_instant(until),
        counts=EffectCounts(
            starts=len(starts),
            delayed=len(delayed),
            stops=len(stops),
            sooner=sum(_is_sooner(shift) for shift in shifts.values()),
            later=sum(not _is_sooner(shift) for shift in shifts.values()),
            impossible=len(impossible),
            possible=len(possible),
            lost_gpu_s=sum(stop.lost_gpu_s for stop in stops.values()),
        ),
        starts=jobs.of(first["starts"]),
        delayed=jobs.of(first["delayed"]),
        stops=[_stopping(jobs, job, stops[job]) for job in most_lost],
        shifts=[_shifting(jobs, job, shifts[job]) for job in moved],
        impossible=[ImpossibleJob(jobs.one(job), impossible[job]) for job in never],
        possible=jobs.of(first["possible"]),
        loans=_loans(viewer, found, after, planned),
        resizes=[_resized(jobs, job, resizes[job]) for job in resized],
        troubles=looked.troubles,
    )


def _shifts(one: RunEffects) -> Iterator[tuple[str, Shift]]:
    """Yield shifts that are worth a mention and appear in no other list."""
    told = {*one.starts, *one.delayed, *one.impossible, *one.possible}
    for job, shift in one.shifts.items():
        if job not in told and shift.before != shift.after and _size(shift) >= LEAST_SHIFT_S:
            yield job, shift


def _size(shift: Shift) -> float:
    """Return the shift in seconds; infinite if one of the starts is too late to be known."""
    if shift.before is None or shift.after is None:
        return float("inf")
    return abs(shift.after - shift.before)


def _is_sooner(shift: Shift) -> bool:
    return shift.before is None or (shift.after is not None and shift.after < shift.before)


def _stopping(jobs: "JobsTold", job: str, stop: JobStop) -> StoppingJob:
    by = jobs.one(stop.by) if stop.by else None
    return StoppingJob(
        jobs.one(job),
        stop.pods,
        stop.whole,
        by,
        stop.lost_gpu_s,
        _instant(stop.again),
        jobs.notices.get(job, 0.0),
    )


def _resized(jobs: "JobsTold", job: str, resize: ResizeEffect) -> ResizedJob:
    at = _instant(resize.all_at)
    of = jobs.one(job)
    notice_s = jobs.notices.get(job, 0.0)
    return ResizedJob(of, resize.leave, resize.more, resize.at_once, at, resize.why, notice_s)


def _shifting(jobs: "JobsTold", job: str, shift: Shift) -> ShiftingJob:
    return ShiftingJob(jobs.one(job), _instant(shift.before), _instant(shift.after))


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def seen_with(access: Access, row: Job) -> AffectedJob:
    """Return a job, as a user with these rights may see it."""
    if not access.may_view(row.tenant_id):
        return AffectedJob(None, None, None, None, row.gpu_milli)
    user = row.user.username if row.user else ""
    return AffectedJob(str(row.pk), row.name, row.tenant.name, user, row.gpu_milli)


class JobsTold:
    """Rows of jobs, as the viewer may see them."""

    def __init__(self, viewer: User, ids: Sequence[str]) -> None:
        access = access_of(viewer)
        self._told: dict[str, AffectedJob] = {}
        self.notices: dict[str, float] = {}  # seconds of warning, of jobs that want one
        for some in chunks(list(dict.fromkeys(ids))):
            for row in Job.objects.filter(id__in=some).select_related("tenant", "user"):
                self._told[str(row.pk)] = seen_with(access, row)
                if row.notice_s:
                    self.notices[str(row.pk)] = row.notice_s

    def one(self, job: str) -> AffectedJob:
        """Return a job; one that was deleted meanwhile comes without details."""
        return self._told.get(job) or AffectedJob(None, None, None, None, 0)

    def of(self, ids: Sequence[str]) -> list[AffectedJob]:
        return [self.one(job) for job in ids]


def _loans(
    viewer: User,
    found: Sequence[RunEffects],
    after: Mapping[QuotaKey, Quota | None],
    planned: Mapping[str, PlannedTenant],
) -> list[LoanShift]:
    """Return who borrows what from whom now, and after what is decided at once."""
    more: Counter[Holder] = Counter()
    for one in found:
        more.update(one.held_after)
        more.subtract(one.held_before)
    held = {(one.tenant, one.gpu_model, one.fixed): milli for one, milli in more.items()}
    names = visible_names(viewer)
    amounts: dict[tuple[str, str, str], list[int]] = {}
    parents = dict(Tenant.objects.order_by().values_list("name", "parent__name"))
    then = parents | {name: tenant.parent for name, tenant in planned.items()}
    books = quota_book(parents=parents), quota_book(after, held, parents=then)
    for side, book in enumerate(books):
        for use in quota_uses(book):
            if use.tenant in names:
                for lender, milli in use.seen_by(names).borrowed_from.items():
                    pair = amounts.setdefault((use.gpu_model, use.tenant, lender), [0, 0])
                    pair[side] += milli
    return [
        LoanShift(model, borrower, lender, before, later)
        for (model, borrower, lender), (before, later) in sorted(amounts.items())
        if before != later
    ]
