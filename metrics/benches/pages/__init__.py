"""`manage.py bench pages`: what a page costs with 200,000 jobs on 12,500 nodes.

DATABASE_URL names an empty PostgreSQL database, which is filled once and used again by later runs;
without it, a temporary SQLite database is created. Each answer is measured by itself: CPU seconds
of this process, statements, blocks that PostgreSQL read, and bytes; and the cost of asking again
when nothing has changed. A dry run is measured with a process that keeps the cluster's state and,
as `dry_run_by_rows`, without one; there the wall-clock time counts.
"""

import tempfile
from argparse import ArgumentParser
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connection

from metrics.benches import stage
from metrics.benches.pages.ask import KEPT, QUESTIONS, measured
from metrics.benches.pages.fill import Size, filled
from metrics.benches.preview import keeper


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="rows, as a part of the whole")
    parser.add_argument("--only", choices=QUESTIONS, help="one of the questions")


def run(scale: float = 1.0, only: str | None = None) -> dict[str, Any]:
    """Return {question: its figures}; see `ask.Figures`."""
    if scale <= 0:
        raise RuntimeError(f"--scale {scale:g}: give a number above 0, e.g. 0.01")
    names = [only] if only else list(QUESTIONS)
    size = Size().times(scale)
    if connection.vendor == "postgresql":
        call_command("migrate", verbosity=0, interactive=False)
        filled(size)
        return {name: _measured(name) for name in names}
    with (
        tempfile.TemporaryDirectory(prefix="kant-bench-") as folder,
        stage.own_database(Path(folder)),
    ):
        filled(size)
        return {name: _measured(name) for name in names}


def _measured(name: str) -> dict[str, Any]:
    with keeper() if name in KEPT else nullcontext():
        return measured(name)
