"""All trace formats by name, and the choice of a format by the first line of a file."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from scheduling.simulator.traces import openb, own, published
from scheduling.simulator.traces.jobs import TraceJob
from scheduling.simulator.traces.table import BadRows, TraceFormatError

Reader = Callable[[Iterable[str], BadRows], Iterator[TraceJob]]

FORMATS: dict[str, Reader] = {
    **{name: layout.jobs for name, layout in published.LAYOUTS.items()},
    "openb": openb.jobs,
    "swf": published.swf,
    "kant-csv": own.own_csv,
    "kant-jsonl": own.own_jsonl,
}
_COLUMNS = {
    **{name: layout.required for name, layout in published.LAYOUTS.items()},
    "openb": openb.JOB_COLUMNS,
    "kant-csv": own.REQUIRED,
}


def jobs_of(lines: Iterable[str], bad: BadRows, format_name: str = "") -> Iterator[TraceJob]:
    """Yield the jobs of a trace; the first line tells the format unless `format_name` does.

    Raises TraceFormatError for an empty trace, an unknown format, or a wrong row that `bad` does
    not skip (lazily, when the row is reached).
    """
    rest = iter(lines)
    begin: list[str] = []
    for line in rest:
        begin.append(line)
        if line.strip():
            break
    else:
        raise TraceFormatError("line 1: the trace is empty")
    name = format_name or _recognised(begin[-1], len(begin))
    if name not in FORMATS:
        raise TraceFormatError(f"{name!r} is no trace format; known are {', '.join(FORMATS)}")
    return FORMATS[name](chain(begin, rest), bad)


def _recognised(first: str, line: int) -> str:
    if first.lstrip().startswith("{"):
        return "kant-jsonl"
    header = {c.strip(' \t\r\n"') for c in first.split(",")}
    for name, columns in _COLUMNS.items():
        if header.issuperset(columns):
            return name
    if first.startswith(";") or len(first.split()) == len(published.SWF_FIELDS):
        return "swf"
    lacks = {name: [c for c in columns if c not in header] for name, columns in _COLUMNS.items()}
    nearest = min(lacks, key=lambda name: len(lacks[name]) / len(_COLUMNS[name]))
    if 2 * len(lacks[nearest]) <= len(_COLUMNS[nearest]):
        raise TraceFormatError(
            f"line {line}: the header lacks {', '.join(lacks[nearest])} of the format {nearest}; "
            "add what is missing, or name another format by --format"
        )
    raise TraceFormatError(
        f"line {line}: no known trace begins like this ({first.strip()[:80]!r}); known formats are "
        f"{', '.join(FORMATS)}"
    )
