"""What real controllers made on a real API server, one file per workload: its owners and its pods.

The controllers take minutes to build, and some of their modules are not served everywhere, so tests
read recordings. `python -m tests.kube.recorded` records again.
"""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

FOLDER = Path(__file__).parent


class Recorded(NamedTuple):
    name: str
    controller: str  # with its version
    owners: list[
        dict[str, Any]
    ]  # what was submitted first, and what stands between it and the pods
    pods: list[dict[str, Any]]


def recorded() -> list[Recorded]:
    """Return all recordings, sorted by name."""
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        found.append(Recorded(path.stem, **document))
    return found
