"""Writes of replays: request, take, report, end. Each write checks the state it expects, so a late
writer changes nothing."""

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery import current_app
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from metrics.models import Replay, ReplayState
from metrics.replays import quotas as quota_changes
from metrics.replays.scenario import MOST_NODES, NodeShape, shapes_of
from scheduling.models import Cluster, Job
from scheduling.policy.document import effective
from scheduling.queries.selectors import what_is_gone
from scheduling.services.policies.changes import document_faults, policy_of
from tenants.errors import Conflict, FieldError, Invalid, NotAllowed, NotFound
from tenants.models import User
from tenants.outage import REDIS_ERRORS, Outage
from tenants.services.transactions import unit_of_work

MOST = timedelta(days=31)  # of a period
USUAL = timedelta(days=7)
MOST_QUEUED = 20
# After this long without a sign of life its process counts as dead.
SILENT = timedelta(seconds=60)
TASK = "metrics.tasks.carry_out_replays"
OPEN = (ReplayState.QUEUED, ReplayState.RUNNING)
LOST = (
    "It was interrupted: the process that computed it ended, because its worker was restarted or "
    "the machine ran out of memory. Start it again."
)

_outage = Outage(logging.getLogger(__name__), "Redis", "replays wait until it takes messages")


# --- people ---------------------------------------------------------------------------------------
def replays() -> QuerySet[Replay]:
    """Return all replays without their results, newest first."""
    return Replay.objects.select_related("cluster", "user").defer("result")


def replay_by_id(replay_id: uuid.UUID) -> Replay:
    """Return the replay; raise NotFound."""
    found = Replay.objects.select_related("cluster", "user").filter(pk=replay_id).first()
    if found is None:
        raise NotFound(f"There is no replay {replay_id}.")
    return found


def create_replay(
    actor: User,
    cluster: Cluster,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    policy: Mapping[str, Any] | None = None,
    nodes: Sequence[Mapping[str, Any]] = (),
    quotas: Sequence[Mapping[str, Any]] = (),
    dry_run: bool = False,
) -> Replay:
    """Request a replay of the seven days before `until`, or from `since` on.

    `policy`: fields that differ from the cluster's current policy; `strategies` may name some kinds
    only. `nodes`: [{"gpu_type", "gpus", "change"}], one entry per shape. `quotas`: documents
    (`metrics.replays.quotas`) of changed quotas, for the whole period. Raises NotAllowed, Invalid
    naming each field, and Conflict while too many replays wait.
    """
    _operators_only(actor)
    now = timezone.now()
    until = until or now
    since = since or until - USUAL
    before = _effective(cluster)
    faults = [*_period_faults(since, until, now), *_node_faults(cluster, nodes)]
    wrong = document_faults(policy or {}, before)
    faults += [FieldError(("policy", *f.path), f.detail) for f in wrong]
    changed = [quota_changes.whole(one) for one in quotas]
    faults += quota_changes.faults_of(changed, _added(nodes))
    if faults:
        raise Invalid.fields(faults)
    _check_there_is_history(cluster, since, until)
    with unit_of_work(dry_run):
        if Replay.objects.filter(state=ReplayState.QUEUED).count() >= MOST_QUEUED:
            raise Conflict(
                f"{MOST_QUEUED} replays are already waiting. Cancel one, or wait until one is done."
            )
        replay = Replay.objects.create(
            cluster=cluster,
            user=actor,
            since=since,
            until=until,
            policy_before=before,
            policy=_merged(before, policy or {}),
            nodes=[dict(one) for one in nodes if one["change"]],
            quotas_before=quota_changes.of_now(changed),
            quotas=changed,
            created_at=now,
        )
        transaction.on_commit(ring, robust=True)
    return replay


def cancel_replay(actor: User, replay: Replay, *, dry_run: bool = False) -> Replay:
    """End a replay that waits or runs; raise NotAllowed, and Conflict when it is over."""
    _operators_only(actor)
    with unit_of_work(dry_run):
        open_ones = Replay.objects.filter(pk=replay.pk, state__in=OPEN)
        message = f"Cancelled by {actor.get_username()}."
        if not open_ones.update(**_over(ReplayState.CANCELLED, message)):
            replay.refresh_from_db()
            raise Conflict(f"The replay is over already: it is {replay.get_state_display()}.")
        replay.refresh_from_db()
    return replay


def _operators_only(actor: User) -> None:
    if not actor.is_operator:
        raise NotAllowed("A replay shows all tenants together; only operators can start one.")


def _effective(cluster: Cluster) -> dict[str, Any]:
    try:
        return effective(policy_of(cluster).document)
    except (TypeError, ValueError):
        detail = (
            "A newer version of Kant has set the policy of this cluster, and this version cannot "
            "read it."
        )
        raise Invalid.field("cluster", detail) from None


def _merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    strategies = {**before["strategies"], **changes.get("strategies", {})}
    return effective({**before, **changes, "strategies": strategies})


def _added(nodes: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return the GPUs added or removed, by GPU type."""
    added: Counter[str] = Counter()
    for one in nodes:
        added[one["gpu_type"]] += one["gpus"] * one["change"]
    return added


def _period_faults(since: datetime, until: datetime, now: datetime) -> list[FieldError]:
    if until > now:
        detail = f"Lies in the future; it is {now:%Y-%m-%d %H:%M} UTC."
        return [FieldError(("until",), detail)]
    if since >= until:
        return [FieldError(("since",), "Must be before the end of the period.")]
    if until - since > MOST:
        detail = f"The period has more than {MOST.days} days; choose a later start."
        return [FieldError(("since",), detail)]
    return []


def _node_faults(cluster: Cluster, nodes: Sequence[Mapping[str, Any]]) -> list[FieldError]:
    there = shapes_of(cluster)
    left, faults, seen = sum(there.values()), [], set[NodeShape]()
    for index, one in enumerate(nodes):
        shape, change = NodeShape(one["gpu_type"], one["gpus"]), one["change"]
        count = there.get(shape)
        if count is None:
            known = ", ".join(str(s) for s in there) or "none at all"
            detail = f"The cluster has no nodes of {shape}; it has {known}."
            faults.append(FieldError(("nodes", index, "gpu_type"), detail))
            continue
        if shape in seen:
            detail = f"{shape} is given twice. Give it once."
            faults.append(FieldError(("nodes", index, "gpu_type"), detail))
        if not -count <= change <= MOST_NODES:
            detail = f"Must be from −{count} (all nodes there are) to {MOST_NODES}."
            faults.append(FieldError(("nodes", index, "change"), detail))
        seen.add(shape)
        left += change
    if not faults and left < 1:
        detail = (
            "No node would be left. Keep one." if there else "The cluster has no nodes with GPUs."
        )
        faults.append(FieldError(("nodes",) if there else ("cluster",), detail))
    return faults


def _check_there_is_history(cluster: Cluster, since: datetime, until: datetime) -> None:
    jobs = Job.objects.filter(cluster=cluster)
    of_period = jobs.filter(Q(ended_at=None) | Q(ended_at__gt=since), submitted_at__lt=until)
    if not of_period.exists():
        last = jobs.order_by("-submitted_at").first()
        told = f"The last one is of {last.submitted_at:%Y-%m-%d %H:%M} UTC." if last else ""
        raise Invalid.field(
            "since",
            f"No job waited or ran on {cluster.name} from {since:%Y-%m-%d %H:%M} to "
            f"{until:%Y-%m-%d %H:%M} UTC. Choose another period. {told}".strip()
            + what_is_gone(),
        )


# --- the process that computes --------------------------------------------------------------------
def ring() -> None:
    """Make the worker check now; it checks every ten seconds anyway."""
    try:
        current_app.send_task(TASK, expires=SILENT.total_seconds(), retry=False)
        _outage.over()
    except REDIS_ERRORS as error:
        _outage.began(error)


def is_wanted(now: datetime) -> bool:
    """Return whether a replay waits and none runs, after failing one whose process has died."""
    silent = Q(alive_at__lt=now - SILENT) | Q(alive_at=None)
    running = Replay.objects.filter(state=ReplayState.RUNNING)
    running.filter(silent).update(**_over(ReplayState.FAILED, LOST))
    return not running.exists() and Replay.objects.filter(state=ReplayState.QUEUED).exists()


def take_next() -> Replay | None:
    """Take the replay that has waited longest and mark it running; None if none waits or one
    runs."""
    while True:
        waiting = Replay.objects.filter(state=ReplayState.QUEUED)
        first = waiting.order_by("created_at", "id").first()
        if first is None:
            return None
        now = timezone.now()
        try:
            with transaction.atomic():
                taken = waiting.filter(pk=first.pk).update(
                    state=ReplayState.RUNNING, started_at=now, alive_at=now
                )
        except IntegrityError:
            return None  # one at a time, over all workers
        if taken:
            return replay_by_id(first.pk)


def is_alive(replay: Replay, progress: float) -> bool:
    """Report that it is running, and its progress; return False if it should stop."""
    running = Replay.objects.filter(pk=replay.pk, state=ReplayState.RUNNING)
    return bool(running.update(alive_at=timezone.now(), progress=progress))


def finish(replay: Replay, result: Mapping[str, Any]) -> None:
    _end(replay, **_over(ReplayState.DONE, ""), progress=1.0, result=result)


def fail(replay: Replay, message: str) -> None:
    _end(replay, **_over(ReplayState.FAILED, message))


def _end(replay: Replay, **values: Any) -> None:
    Replay.objects.filter(pk=replay.pk, state=ReplayState.RUNNING).update(**values)


def _over(state: ReplayState, message: str) -> dict[str, Any]:
    return {"state": state, "message": message, "ended_at": timezone.now()}
