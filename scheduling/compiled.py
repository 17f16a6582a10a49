"""The decision core as machine code: the same modules, compiled by mypyc (docs/decisions/0041).

`python -m scheduling.compile_core` (a part of `make setup`), and `manage.py serve` while it runs,
compile the modules into the Python environment, in a folder named after a fingerprint of the
sources; a wheel brings such a folder with it. A process uses the folder only if the fingerprint
matches the sources beside it. Otherwise, or with KANT_INTERPRETED=1, Python interprets the modules:
the same decisions at a third of the speed.
"""

import hashlib
import os
import sys
import sysconfig
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(sys.prefix, "kant-core")
SHIPPED = ROOT / "scheduling" / "core"  # in a wheel
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")
LIBRARY = "kant_core"  # shared by all compiled modules; mypyc adds a suffix

# The code that decides, and the code that runs through a month of events.
COMPILED = ("scheduling/engine/**/*.py", "scheduling/simulator/*.py")
# Types that go in and out stay Python classes: they are copied, pickled and inspected.
INTERPRETED = frozenset(
    {"__init__.py", "decisions.py", "deltas.py", "model.py", "native.py", "types.py", "verdict.py"}
)


def sources() -> list[Path]:
    """Return the modules that are compiled."""
    found = (path for pattern in COMPILED for path in ROOT.glob(pattern))
    return sorted(path for path in found if path.name not in INTERPRETED)


def folder() -> Path:
    """Return the folder for the machine code of these sources on this Python, existing or not."""
    fingerprint = hashlib.sha256(SUFFIX.encode())
    for pattern in COMPILED:  # the machine code relies on the interpreted types, too
        for path in sorted(ROOT.glob(pattern)):
            fingerprint.update(b"%b\0%b\0" % (path.name.encode(), path.read_bytes()))
    return HOME / fingerprint.hexdigest()[:16]


class Finder(MetaPathFinder):
    """Finds compiled modules in a folder."""

    def __init__(self, where: Path) -> None:
        self._where = where

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if not name.startswith(("scheduling.", LIBRARY)):
            return None
        file = self._where / (name.replace(".", "/") + SUFFIX)
        return spec_from_file_location(name, file) if file.exists() else None


def use() -> None:
    """Import the core as machine code from now on, if it was made from exactly these sources."""
    homes = [] if unwanted() else [home for home in (SHIPPED, HOME) if home.is_dir()]
    if not homes:
        return
    name = folder().name
    for home in homes:
        if (home / name).is_dir():
            sys.meta_path.insert(0, Finder(home / name))
            return


def unwanted() -> bool:
    """Whether this process was asked to interpret the core."""
    return os.environ.get("KANT_INTERPRETED") == "1"


def in_use() -> bool:
    """Whether this process runs the machine code."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)
