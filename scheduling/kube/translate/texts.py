"""Texts and times of the Kubernetes API.

Anybody in the cluster may have written a text, so it is made storable in the database.
"""

import re
from datetime import datetime

from scheduling.engine.states import REASON_LENGTH

# PostgreSQL cannot store NUL, and no encoding has lone surrogates.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def storable(text: str) -> str:
    """Return the text with U+FFFD in place of characters that a database column cannot hold."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def storable_reason(text: str) -> str:
    """Return a pod's reason, cut to the length that a job's reason may have."""
    return storable(text)[:REASON_LENGTH]


def seconds_of(moment: str | None) -> float | None:
    """Return RFC 3339 as seconds since the epoch; None if absent or unreadable."""
    if not moment:
        return None
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None
