"""Why a job waits: one dominant reason with its numbers (docs/queueing/reasons.md)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """Reason codes, shared by REST, pages, Kubernetes conditions and metrics."""

    # The job can never run as it is.
    MISCONFIGURED = "Misconfigured"
    NO_MATCHING_GPU_TYPE = "NoMatchingGpuType"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    EXCEEDS_CAPACITY = "ExceedsCapacity"
    # The job can run later.
    ON_HOLD = "OnHold"
    QUEUE_HELD = "QueueHeld"
    WAITING_FOR_VOLUME = "WaitingForVolume"
    WAITING_FOR_DEVICES = "WaitingForDevices"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    BORROW_LIMIT_REACHED = "BorrowLimitReached"
    QUEUE_LIMIT_REACHED = "QueueLimitReached"
    BEHIND_IN_QUEUE = "BehindInQueue"
    INSUFFICIENT_GPUS = "InsufficientGpus"
    FRAGMENTED_CAPACITY = "FragmentedCapacity"
    INSUFFICIENT_CPU_OR_MEMORY = "InsufficientCpuOrMemory"
    WAITING_FOR_NODES = "WaitingForNodes"
    WAITING_FOR_PREEMPTION = "WaitingForPreemption"
    RESERVED_FOR_HEAD = "ReservedForHead"
    BACKING_OFF = "BackingOff"
    PENDING_EVALUATION = "PendingEvaluation"


def gpus(milli: int, model: str) -> str:
    """Format GPU-milli for people: "8 H100 GPUs", "0.5 H100 GPU"."""
    return f"{milli / 1000:g} {model} GPU{'' if 0 < milli <= 1000 else 's'}"


def counted(number: float, one: str, many: str) -> str:
    """Format a number with its singular or plural: "1 pod fits", "2 pods fit", "0.5 GPUs are"."""
    return f"{number:.12g} {one if number == 1 else many}"


# Resources that every node has besides its GPUs, in words for people.
AMOUNT_WORDS = {"cpu_milli": "milli-CPU", "memory_mib": "MiB of memory"}

NEVER = frozenset(
    {
        Reason.MISCONFIGURED,
        Reason.NO_MATCHING_GPU_TYPE,
        Reason.EXCEEDS_MAX_QUOTA,
        Reason.EXCEEDS_CAPACITY,
    }
)
# Reasons of jobs that quota admits and no job ahead holds back: they only lack room.
NO_ROOM = frozenset(
    {Reason.INSUFFICIENT_GPUS, Reason.FRAGMENTED_CAPACITY, Reason.INSUFFICIENT_CPU_OR_MEMORY}
)


# Evidence that comes and goes with every start; a change in it alone is not worth reporting.
PROTECTED_UNTIL = "protected_until"
PREEMPTS_FROM = "preempts_from"
KEPT_NODES = "kept_nodes"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One reason, one sentence for people, the numbers behind it, and possible remedies."""

    reason: Reason
    summary: str
    evidence: Mapping[str, int | float | str] = field(default_factory=dict, hash=False)
    remedies: tuple[str, ...] = ()

    @property
    def will_never_run(self) -> bool:
        return self.reason in NEVER
