"""What placements hold: GPU-milli in SQL, and the columns of a row."""

from typing import Any

from django.db.models import ExpressionWrapper, F, FloatField

from scheduling.engine.types import BEYOND, PodPlacement

# GPU-milli; shares by memory are exact to a billionth of one.
HELD = ExpressionWrapper(
    F("held_milli") + F("held_beyond") / float(BEYOND), output_field=FloatField()
)


def columns_of(place: PodPlacement) -> dict[str, Any]:
    """Return the columns of `Placement` that say where a pod is and what it holds there."""
    return {
        "pod_set": place.pod_set,
        "ordinal": place.ordinal,
        "node": place.node,
        "devices": list(place.devices),
        "milli": place.milli,
        "held_milli": place.milli * len(place.devices),
        "held_beyond": place.beyond,
        "nics": list(place.nics),
    }
