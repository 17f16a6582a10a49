"""What is kept of a choice, for people and for the next choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduling.engine.cluster_choice.choice import ClusterChosen, ClusterOutlook
from scheduling.models import Cluster


@dataclass(frozen=True, slots=True)
class ChosenForJob:
    """The chosen cluster, why, and what was known of each cluster."""

    cluster: Cluster
    chosen: ClusterChosen
    outlooks: Sequence[ClusterOutlook]


def document_of(
    chosen: ClusterChosen, outlooks: Sequence[ClusterOutlook], now: datetime, moves: int = 0
) -> dict[str, Any]:
    """Return the `cluster_choice` column of a job. `moves`: how often it has moved so far."""
    return {
        "cluster": chosen.name,
        "summary": chosen.summary,
        "at": now.isoformat(),
        "moves": moves,
        "clusters": [_outlook(one) for one in outlooks],
    }


def _outlook(one: ClusterOutlook) -> dict[str, Any]:
    at = one.start_at
    return {
        "cluster": one.name,
        "starts_now": one.starts_now,
        "expected_start": None if at is None else datetime.fromtimestamp(at, UTC).isoformat(),
        "why": one.refused or one.silent or one.why,
    }
