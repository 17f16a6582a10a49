"""Objects on disk: a snapshot and the changes since, both as framed records.

A record is a header line `<plural> <key> <rv> <length>` and `length` bytes of JSON (0 = the object
was deleted), each ended by a newline. Every change is handed to the kernel before its request is
answered, so objects survive kill -9. A record cut off by the kill is dropped: its request was never
answered.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# The journal is rewritten once it exceeds this and twice the snapshot.
MIN_COMPACTION_BYTES = 64 << 20


class Record(NamedTuple):
    """A record; `body` is empty if the object was deleted at `rv`."""

    plural: str
    key: str
    rv: int
    body: bytes


class Journal:
    """The two files of one state directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._snapshot = directory / "snapshot"
        self._changes = directory / "journal"
        self._size = 0
        self._snapshot_size = 0
        self._fd = -1
        self.last_rv = 0

    def recover(self) -> Iterator[Record]:
        """Yield every record on disk in order; then the journal is open for writing.

        `last_rv` is then the greatest resourceVersion ever given out, also for deletions.
        """
        if self._snapshot.exists():
            data = self._snapshot.read_bytes()
            self._snapshot_size = len(data)
            first, _, rest = data.partition(b"\n")
            self.last_rv = int(first)
            yield from _records(rest)[0]
        base = self.last_rv
        if self._changes.exists():
            records, good = _records(self._changes.read_bytes())
            os.truncate(self._changes, good)
            self._size = good
            for record in records:
                if record.rv > base:
                    self.last_rv = max(self.last_rv, record.rv)
                    yield record
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self._changes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def put(self, plural: str, key: str, rv: int, body: bytes) -> None:
        self._write(b"%b %b %d %d\n%b\n" % (plural.encode(), key.encode(), rv, len(body), body))

    def delete(self, plural: str, key: str, rv: int) -> None:
        self._write(b"%b %b %d 0\n\n" % (plural.encode(), key.encode(), rv))

    def _write(self, record: bytes) -> None:
        written = os.write(self._fd, record)
        if written != len(record):
            # A half record would hide all later ones from recovery.
            os.ftruncate(self._fd, self._size)
            raise OSError(f"{self._changes}: only {written} of {len(record)} bytes written")
        self._size += written

    def wants_compaction(self) -> bool:
        return self._size > MIN_COMPACTION_BYTES and self._size > 2 * self._snapshot_size

    def compact(self, rv: int, records: Iterable[Record]) -> None:
        """Replace both files by a snapshot of `records`, the current state at `rv`.

        A crash between the two steps is harmless: recovery skips changes up to `rv`.
        """
        draft = self._snapshot.with_suffix(".tmp")
        with draft.open("wb") as out:
            out.write(b"%d\n" % rv)
            for r in records:
                out.write(
                    b"%b %b %d %d\n%b\n"
                    % (r.plural.encode(), r.key.encode(), r.rv, len(r.body), r.body)
                )
            out.flush()
            os.fsync(out.fileno())
            self._snapshot_size = out.tell()
        draft.replace(self._snapshot)
        os.close(self._fd)
        self._changes.unlink()
        self._open()
        self._size = 0

    def close(self) -> None:
        os.close(self._fd)


def _records(data: bytes) -> tuple[list[Record], int]:
    """Return the complete records in `data` and the number of bytes that they take."""
    out: list[Record] = []
    at = 0
    while True:
        end = data.find(b"\n", at)
        if end < 0:
            return out, at
        plural, key, rv, length = data[at:end].split(b" ")
        stop = end + 1 + int(length)
        if data[stop : stop + 1] != b"\n":
            return out, at
        out.append(Record(plural.decode(), key.decode(), int(rv), data[end + 1 : stop]))
        at = stop + 1
