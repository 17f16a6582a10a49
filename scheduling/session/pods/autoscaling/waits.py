"""Why a job waits, as its pods say it: by `Unschedulable` only where more nodes would help."""

from scheduling.engine.verdict import NO_ROOM, Reason

# What autoscalers act upon is `Unschedulable` alone.
MORE_NODES = NO_ROOM | {Reason.RESERVED_FOR_HEAD, Reason.WAITING_FOR_NODES}


def would_help(reason: str) -> bool:
    """Whether more nodes would help a job that waits for this reason."""
    return reason in MORE_NODES


def shown(text: str) -> str:
    """The reason in a condition, of a text that begins with that of the job."""
    reason = text.partition(":")[0]
    return "Unschedulable" if would_help(reason) else reason
