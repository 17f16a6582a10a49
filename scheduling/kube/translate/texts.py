"""Texts of the Kubernetes API: what anybody in the cluster may have written, as the database can
store it, and times."""

import re
from datetime import datetime

from scheduling.engine.states import REASON_LENGTH

# PostgreSQL stores no NUL, and no encoding has a surrogate that stands alone.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def storable(text: str) -> str:
    """The text with U+FFFD in place of what no database column can hold."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def storable_reason(text: str) -> str:
    """A reason of a pod, cut to what the reason of a job may have."""
    return storable(text)[:REASON_LENGTH]


def seconds_of(moment: str | None) -> float | None:
    """RFC 3339 to seconds since the epoch; None where it is absent or unreadable."""
    if not moment:
        return None
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None
