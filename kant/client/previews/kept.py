"""What a preview said before a change, and what happened in the hour after, in words."""

from typing import Any

from kant.client import output

Row = dict[str, Any]
NOT_YET = "an hour after the change"


def told(change: Row) -> str:
    """Return "3 start, 1 stops (2.5 GPU-h lost), 4 sooner"; "" if there was no preview."""
    if change["preview"] is None:
        return ""
    counts = change["preview"]["told"]["counts"]
    said = []
    if starts := round(counts["starts"]):
        said.append(f"{starts} {'starts' if starts == 1 else 'start'} at once")
    if stops := round(counts["stops"]):
        verb = "stops" if stops == 1 else "stop"
        said.append(f"{stops} {verb} ({_lost(counts['lost_gpu_s'])} lost)")
    for name in ("sooner", "later"):
        if count := round(counts[name]):
            said.append(f"{count} {name}")
    if never := round(counts["impossible"]):
        said.append(f"{never} can never start")
    return ", ".join(said) or "no effect on jobs"


def happened(change: Row) -> str:
    """Return what happened in the hour after a change; "" if there was no preview.

    E.g. "2 started (1 of 3 told), 1 preempted (1 reclaimed, 0.4 GPU-h lost), law borrows 8 H100 (4
    before)".
    """
    if change["preview"] is None:
        return ""
    found = change["preview"]["happened"]
    if found is None:
        return NOT_YET
    said = [f"reverted by {found['reverted']['by']}"] if found["reverted"] else []
    of_told = f"{found['told_and_started']} of {found['told_to_start']} told"
    said.append(f"{found['started']} started" + f" ({of_told})" * bool(found["told_to_start"]))
    if stopped := found["stopped"]:
        lost = f"{found['reclaimed']} reclaimed, {_lost(found['lost_gpu_s'])} lost"
        said.append(f"{stopped} preempted ({lost})")
    for one in found["borrowed"]:
        before = f"{output.number(one['before'])} before"
        now = output.number(one["after"])
        said.append(f"{one['tenant']} borrows {now} {one['gpu_type']} ({before})")
    return ", ".join(said)


def _lost(gpu_s: float) -> str:
    return f"{output.number(round(gpu_s / 3600, 2))} GPU-h"
