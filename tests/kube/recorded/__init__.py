"""What real controllers made on a real API server, one file a workload: its owners and its pods.

Their programs take minutes to build and some modules are not served everywhere, so that tests read
what was recorded once. `python -m tests.kube.recorded` records anew.
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
    """All of them, by name."""
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        found.append(Recorded(path.stem, **document))
    return found
