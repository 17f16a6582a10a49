"""The result of a replay as tables: what was recorded, and both runs side by side."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kant.client import output

HEADS = ("RECORDED", "AS IT WAS", "WITH THE CHANGE")
RUNS = ("recorded", "baseline", "changed")
TRUST = {
    "close": "The simulated baseline comes close to what was recorded.",
    "rough": "The simulated baseline is some way from what was recorded: trust large differences.",
    "far": "The simulated baseline is far from what was recorded: find out why before you build on "
    "this.",
    "unknown": "Too little was recorded to say how close the simulated baseline is.",
}

Row = Mapping[str, Any]
Write = Callable[[float], str]


def changes_of(replay: Row) -> Iterator[tuple[str, str, str]]:
    """Yield (what, old value, new value) for everything that a replay changes."""
    before, after = (dict(_flat(replay[name])) for name in ("policy_before", "policy"))
    for name, value in after.items():
        if before.get(name) != value:
            yield name, _text(before.get(name)), _text(value)
    for one in replay["nodes"]:
        yield f"nodes of {one['gpu_type']}/{one['gpus']}", "as now", f"{one['change']:+d}"
    was = {(one["tenant"], one["gpu_type"]): one for one in replay["quotas_before"]}
    for one in replay["quotas"]:
        key = one["tenant"], one["gpu_type"]
        yield f"quota of {key[0]}/{key[1]}", _quota(was.get(key)), _quota(one)


def _flat(policy: Row) -> Iterator[tuple[str, Any]]:
    for name, value in policy.items():
        if name == "strategies":
            yield from ((f"{name}.{kind}", strategy) for kind, strategy in value.items())
        else:
            yield name, value


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "-" if value is None else str(output.value(value))


def _quota(quota: Row | None) -> str:
    if quota is None:
        return "none"
    parts = [output.number(quota["guaranteed"])]
    if quota["mode"] == "isolated":
        parts.append("isolated")
    for name, verb in (("borrow_limit", "borrows"), ("lend_limit", "lends")):
        if quota[name] is not None:
            parts.append(f"{verb} {output.number(quota[name])} at most")
    return ", ".join(parts)


def comparison(replay: Row) -> None:
    """Print the result of a replay."""
    result = replay["result"]
    output.pairs((
        ("replay", replay["id"]), ("cluster", replay["cluster"]),
        ("from", output.when(replay["since"])), ("to", output.when(replay["until"])),
        *((name, f"{before} → {after}") for name, before, after in changes_of(replay)),
    ))  # fmt: skip
    print()
    output.table(("", *HEADS, "DIFFERENCE"), _totals(result), "")
    print()
    print(_starts(result["starts"]))
    print()
    _waits(result, "GPUS", "jwtd", "size")
    print()
    _waits(result, "TENANT", "tenants", "tenant")
    output.note(TRUST[result["trust"]["grade"]])
    for doubt in result["trust"]["doubts"]:
        output.note(doubt)


# --- formatting values ----------------------------------------------------------------------------
def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _points(value: float) -> str:
    return f"{100 * value:.1f} points"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _hours(value: float) -> str:
    return f"{value:,.1f}"


def _size_range(label: str) -> str:
    """Return "16–31" for the size class "16"; other labels stay."""
    return f"{label}–{2 * int(label) - 1}" if label.isdigit() and int(label) > 1 else label


def _or_dash(value: float | None, write: Write) -> str:
    return "-" if value is None else write(value)


def _apart(before: float | None, after: float | None, write: Write, apart: Write) -> str:
    if before is None or after is None or write(before) == write(after):
        return ""
    return f"{'+' if after > before else '-'}{apart(abs(after - before))}"


# --- tables ---------------------------------------------------------------------------------------
def _totals(result: Row) -> Iterator[Sequence[str]]:
    wholes = [result[run] for run in RUNS]
    waits = [_of(result[run]["jwtd"], "size", "all") for run in RUNS]
    first_starts = [row.get("first_start", {}) for row in waits]
    shares = (("GAR, median", "gar"), ("SOR", "sor"), ("GFR, mean", "gfr"))
    rows: list[tuple[str, str, Iterable[Row], Write, Write]] = [
        *((name, key, wholes, _percent, _points) for name, key in shares),
        ("mean wait", "mean_s", waits, output.duration, output.duration),
        ("first start, mean", "mean_s", first_starts, output.duration, output.duration),
        ("median wait", "p50_s", waits, output.duration, output.duration),
        ("90 % wait", "p90_s", waits, output.duration, output.duration),
        ("waiting at the end", "waiting", waits, _count, _count),
        ("preempted jobs", "preempted_jobs", wholes, _count, _count),
        ("lost GPU-hours", "lost_gpu_hours", wholes, _hours, _hours),
        ("replicas moved", "moves", wholes, _count, _count),
        ("can never run", "never_runnable", wholes, _count, _count),
        ("GPU-hours", "gpu_hours", wholes, _hours, _hours),
        ("of unknown length", "unknown_gpu_hours", wholes, _hours, _hours),
        ("GPUs", "gpus", wholes, _count, _count),
    ]
    for name, key, of, write, apart in rows:
        real, before, after = (one.get(key) for one in of)
        texts = (_or_dash(value, write) for value in (real, before, after))
        yield name, *texts, _apart(before, after, write, apart)


def _starts(starts: Row) -> str:
    text = (
        f"Jobs that start earlier with the change: {starts['earlier']}, later: {starts['later']}, "
        f"at the same time: {starts['same']}"
    )
    for name, words in (("gained", "only with the change"), ("lost", "only without it")):
        if starts[name]:
            text += f", {words}: {starts[name]}"
    return f"{text}."


def _waits(result: Row, head: str, table: str, key: str) -> None:
    """Print mean waits per row of a table of the runs, and GPU-hours if it has them."""
    hours = table == "tenants"

    def row(before: Row) -> Sequence[object]:
        others = [_of(result[run][table], key, before[key]) for run in ("recorded", "changed")]
        runs = (others[0], before, others[1])
        means = [one.get("mean_s") for one in runs]
        texts = [_or_dash(mean, output.duration) for mean in means]
        difference = _apart(means[1], means[2], output.duration, output.duration)
        held = [_or_dash(one.get("gpu_hours"), _hours) for one in runs[1:]] if hours else []
        name = before[key] if hours else _size_range(before[key])
        return (name, before["jobs"], *texts, difference, *held)

    heads = (head, "JOBS", *(f"WAIT {name}" for name in HEADS), "DIFFERENCE")
    more = ("GPU-HOURS AS IT WAS", "WITH THE CHANGE") if hours else ()
    output.table((*heads, *more), map(row, result["baseline"][table]), "No job counts in waits.")


def _of(rows: Iterable[Row], key: str, value: str) -> Row:
    return next((row for row in rows if row[key] == value), {})
