"""RSCH: where the pods of a job go, down to the device (paper 3.3).

`place_job` finds places, `explain` says with numbers why it found none, and `impossible` says
whether there could ever be any.
"""

from scheduling.engine.placement.empty import fits_when_empty, pods_when_empty
from scheduling.engine.placement.explain import explain, impossible
from scheduling.engine.placement.place import PlacementFailure, place_job

__all__ = [
    "PlacementFailure",
    "explain",
    "fits_when_empty",
    "impossible",
    "place_job",
    "pods_when_empty",
]
