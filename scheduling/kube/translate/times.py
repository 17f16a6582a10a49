"""Times as the Kubernetes API writes them."""

from datetime import datetime


def seconds_of(moment: str | None) -> float | None:
    """RFC 3339 to seconds since the epoch; None where it is absent or unreadable."""
    if not moment:
        return None
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None
