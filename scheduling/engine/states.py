"""Job states and the only table of legal transitions; no other code decides what is legal."""

from enum import StrEnum

# The most characters of the reason for a job's state; kubelets use up to 36, others any number.
REASON_LENGTH = 64


class JobState(StrEnum):
    PENDING = "PENDING"  # in its tenant's queue
    QUOTA_RESERVED = "QUOTA_RESERVED"  # passed static quota admission, in the global queue
    ADMITTED = "ADMITTED"  # placed; pods are being created and bound
    RUNNING = "RUNNING"  # every pod of the gang runs, or the first pod of another job
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class JobEventKind(StrEnum):
    """What happened to a job; each event follows `TRANSITIONS` or leaves the state unchanged."""

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
    CHANGED = "CHANGED"  # a waiting job changed its request
    ROUTED = "ROUTED"  # a waiting job went to the scheduler of another scope


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
    """The table does not allow this event in this state."""


def after(state: JobState, kind: JobEventKind) -> JobState:
    """Return the state after event `kind` in `state`; raise IllegalTransition if not allowed."""
    try:
        return TRANSITIONS[state, kind]
    except KeyError:
        raise IllegalTransition(f"{kind} cannot happen to a job that is {state}") from None
