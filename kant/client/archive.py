"""The client as one executable file (PEP 441), as Kant serves it."""

from functools import cache
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

_MAIN = """import sys
if sys.version_info < (3, 10):
    sys.exit("kant needs Python 3.10 or newer.")
from kant.client.__main__ import main
sys.exit(main())
"""


@cache
def archive() -> bytes:
    """Return a zip file that Python can run, starting with a line that names Python.

    Equal sources give equal files.
    """
    here, packed = Path(__file__).parent, BytesIO()
    files = {
        f"kant/client/{path.relative_to(here).as_posix()}": path.read_text()
        for path in sorted(here.rglob("*.py"))
    }
    with ZipFile(packed, "w") as zipped:
        for name, text in {"__main__.py": _MAIN, "kant/__init__.py": "", **files}.items():
            zipped.writestr(ZipInfo(name), text, ZIP_DEFLATED)
    return b"#!/usr/bin/env python3\n" + packed.getvalue()
