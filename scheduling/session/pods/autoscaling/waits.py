"""The reason that a job's pods show: `Unschedulable` only where more nodes would help."""

from scheduling.engine.verdict import NO_ROOM, Reason

# Autoscalers act on `Unschedulable` alone.
MORE_NODES = NO_ROOM | {Reason.RESERVED_FOR_HEAD, Reason.WAITING_FOR_NODES}


def would_help(reason: str) -> bool:
    """Whether more nodes would help a job that waits for this reason."""
    return reason in MORE_NODES


def shown(text: str) -> str:
    """Return the condition's reason for a text that begins with the job's reason."""
    reason = text.partition(":")[0]
    return "Unschedulable" if would_help(reason) else reason
