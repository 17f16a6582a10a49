"""`manage.py rehearse FILE`: what the scheduler decides from a snapshot, without a cluster."""

import gzip
import json
import zlib
from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.queries.snapshots.decided import decide, decisions_of
from scheduling.queries.snapshots.document import Snapshot, SnapshotError, snapshot_of

MOST = 512 << 20  # bytes of an unpacked snapshot


class Command(BaseCommand):
    help = (
        "Decide once on a snapshot written by `kant snapshot`: which jobs start where, which "
        "wait, and why."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="file from `kant snapshot`; may be .gz")
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, *_: Any, file: Path, json: bool, **__: Any) -> None:
        snapshot = read(file)
        try:
            decided = decisions_of(snapshot, decide(snapshot))
        except Exception as error:
            raise CommandError(
                f"{file}: the decision core fails on this snapshot; this is a bug in Kant: "
                f"{type(error).__name__}: {error}. With --traceback it is shown where."
            ) from error
        if json:
            self._json(decided)
        else:
            self._table(snapshot, decided)

    def _json(self, decided: dict[str, Any]) -> None:
        self.stdout.write(json.dumps(decided, indent=2, ensure_ascii=False))

    def _table(self, snapshot: Snapshot, decided: dict[str, Any]) -> None:
        at = datetime.fromtimestamp(snapshot.at, UTC)
        self.stdout.write(f"{snapshot.cluster}, as of {at:%Y-%m-%d %H:%M:%S} UTC")
        for one in decided["scopes"]:
            if one["scope"]:
                self.stdout.write(f"shard {one['scope']}:")
            for part in one["starts"]:
                nodes = dict.fromkeys(pod["node"] for pod in part["pods"])
                self._line("starts", part, f"{len(part['pods'])} pods on {', '.join(nodes)}")
            for part in one["preempts"]:
                self._line("preempted", part, f"for {part['by']} ({part['kind']})")
            for part in one["moves"]:
                self._line("moves", part, f"from {part['from']} to {part['to']}")
            for part in one["waits"]:
                self._line("waits", part, f"{part['reason']}: {part['summary']}")
            for part in one["stays"]:
                self._line("stays", part, f"{part['reason']}: {part['summary']}")

    def _line(self, what: str, part: dict[str, Any], text: str) -> None:
        self.stdout.write(f"{what:10} {part['name'] or part['job']}  {text}")


def read(file: Path) -> Snapshot:
    """Return the snapshot in a file. Raises CommandError."""
    try:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as opened:
            text = opened.read(MOST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise CommandError(f"{file}: cannot be read ({error})") from None
    if len(text) > MOST:
        raise CommandError(f"{file}: has more than {MOST:,} bytes, unpacked")
    try:
        return snapshot_of(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CommandError(f"{file}: is no UTF-8 text (byte {error.start})") from None
    except SnapshotError as error:
        raise CommandError(f"{file}: {error}") from None
