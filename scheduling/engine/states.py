"""Job states and the only table of legal transitions. No other code decides legality."""

from enum import StrEnum

# Characters of the longest reason of a job's state; kubelets give ones of 36, others any.
REASON_LENGTH = 64


class JobState(StrEnum):
    PENDING = "PENDING"  # in its tenant's queue
    QUOTA_RESERVED = "QUOTA_RESERVED"  # passed static quota admission, in the global queue
    ADMITTED = "ADMITTED"  # placed; pods are being created and bound
    RUNNING = "RUNNING"  # every pod of the gang (or the first pod otherwise) runs
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class JobEventKind(StrEnum):
    """What happened to a job; each leads along `TRANSITIONS`, or leaves the state as it is."""

    SUBMITTED = "SUBMITTED"
    QUOTA_RESERVED = "QUOTA_RESERVED"
    QUOTA_LOST = "QUOTA_LOST"
    ADMITTED = "ADMITTED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REQUEUED = "REQUEUED"
    PREEMPTED = "PREEMPTED"
    REASON = "REASON"
    HELD = "HELD"
    RELEASED = "RELEASED"
    CHANGED = "CHANGED"  # what it asks for, while it waits
    ROUTED = "ROUTED"  # to the scheduler of another scope, while it waits


S, K = JobState, JobEventKind

TRANSITIONS: dict[tuple[JobState, JobEventKind], JobState] = {
    (S.PENDING, K.QUOTA_RESERVED): S.QUOTA_RESERVED,
    (S.PENDING, K.ADMITTED): S.ADMITTED,
    (S.PENDING, K.FAILED): S.FAILED,
    (S.PENDING, K.CANCELLED): S.CANCELLED,
    (S.QUOTA_RESERVED, K.QUOTA_LOST): S.PENDING,
    (S.QUOTA_RESERVED, K.ADMITTED): S.ADMITTED,
    (S.QUOTA_RESERVED, K.FAILED): S.FAILED,
    (S.QUOTA_RESERVED, K.CANCELLED): S.CANCELLED,
    (S.ADMITTED, K.RUNNING): S.RUNNING,
    (S.ADMITTED, K.SUCCEEDED): S.SUCCEEDED,
    (S.ADMITTED, K.FAILED): S.FAILED,
    (S.ADMITTED, K.CANCELLED): S.CANCELLED,
    (S.ADMITTED, K.REQUEUED): S.PENDING,
    (S.ADMITTED, K.PREEMPTED): S.PENDING,
    (S.RUNNING, K.SUCCEEDED): S.SUCCEEDED,
    (S.RUNNING, K.FAILED): S.FAILED,
    (S.RUNNING, K.CANCELLED): S.CANCELLED,
    (S.RUNNING, K.REQUEUED): S.PENDING,
    (S.RUNNING, K.PREEMPTED): S.PENDING,
}

WAITING = frozenset({S.PENDING, S.QUOTA_RESERVED})
HOLDING = frozenset({S.ADMITTED, S.RUNNING})
OPEN = WAITING | HOLDING
TERMINAL = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})


class IllegalTransition(ValueError):
    """An event that the table does not allow in this state."""


def after(state: JobState, kind: JobEventKind) -> JobState:
    """The state after `kind` happened in `state`; raises IllegalTransition."""
    try:
        return TRANSITIONS[state, kind]
    except KeyError:
        raise IllegalTransition(f"{kind} cannot happen to a job that is {state}") from None
