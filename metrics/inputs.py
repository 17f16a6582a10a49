"""Files and names of a simulated run: traces, fleets, inventories; each error in one line."""

import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from scheduling.simulator import nodes
from scheduling.simulator.fleet import Fleet, FleetError, parse_inventory, parse_openb

SHIPPED = ("demo", "paper", "large")
FLEETS = Path(__file__).resolve().parent.parent / "scheduling" / "simcluster" / "fleets"


class InputError(ValueError):
    """A file or name that cannot be used; the message says what would do."""


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file, plain, .gz or .xz; raises InputError."""
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as lines:
            yield from lines
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None


def fleet_of(text: str) -> Fleet:
    """A shipped fleet, an inventory (.yaml), a list of machines or hosts (.csv), or a size."""
    path = FLEETS / f"{text}.yaml" if text in SHIPPED else Path(text)
    if not path.suffix:
        try:
            return nodes.sized(text)
        except FleetError as error:
            raise InputError(
                f"--fleet {error}; or one of {', '.join(SHIPPED)}, or a file"
            ) from None
    body = "".join(lines_of(path))
    try:
        if path.suffix == ".csv":
            return parse_openb(body) if body.startswith("sn,") else nodes.recorded_network(body)
        return parse_inventory(yaml.safe_load(body))
    except (FleetError, yaml.YAMLError) as error:
        raise InputError(f"{path}: {error}") from None
