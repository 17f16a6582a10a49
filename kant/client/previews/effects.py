"""What a change would do to jobs, as the server predicts it."""

import argparse
from typing import Any

from kant.client import output

Row = dict[str, Any]


def say(args: argparse.Namespace, effects: Row) -> None:
    if args.output == "json":
        output.document(effects)
        return
    for trouble in effects["troubles"]:
        output.note(f"No preview for {trouble}")
    rows = [("stops", *_job(one["job"]), _stop(one)) for one in effects["stops"]]
    rows += [("never", *_job(one["job"]), one["why"]) for one in effects["impossible"]]
    rows += [("resized", *_job(one["job"]), _resize(one)) for one in effects["resizes"]]
    rows += [("starts", *_job(one), "at once") for one in effects["starts"]]
    rows += [("delayed", *_job(one), "no longer at once") for one in effects["delayed"]]
    rows += [(_way(one), *_job(one["job"]), _shift(one)) for one in effects["shifts"]]
    rows += [
        ("loan", f"{one['borrower']} of {one['lender'] or '(others)'}", one["gpu_type"], "", "",
         f"{output.number(one['before'])} → {output.number(one['after'])} GPUs")
        for one in effects["loans"]
    ]  # fmt: skip
    heads = ("EFFECT", "JOB", "TENANT", "USER", "GPUS", "WHAT")
    if rows or effects["until"]:
        output.table(heads, rows, "No waiting or running job changes.")
    counts = effects["counts"]
    told = {"starts": len(effects["starts"]), "stops": len(effects["stops"])}
    told |= {"impossible": len(effects["impossible"])}
    more = [f"{counts[name] - shown} more {name}" for name, shown in told.items()
            if counts[name] > shown]  # fmt: skip
    if counts["sooner"] + counts["later"] > len(effects["shifts"]):
        more.append(f"{counts['sooner']} sooner and {counts['later']} later")
    if more:
        output.note(f"And {', '.join(more)}.")
    if effects["until"]:
        output.note(f"Looked ahead until {output.when(effects['until'])}. Nothing was changed.")


def _job(job: Row) -> tuple[object, ...]:
    named = (job["name"], job["tenant"], job["user"] or "-")
    return *(named if job["job"] else ("(another tenant)", "-", "-")), output.number(job["gpus"])


def _stop(one: Row) -> str:
    hours = output.number(round(one["lost_gpu_s"] / 3600, 2))
    what = "all pods" if one["whole"] else f"{one['pods']} pods"
    by = one["by"]
    why = (
        f"for {by['name'] or 'a job of another tenant'}"
        if by
        else "its node is taken out of service"
    )
    again = output.when(one["again"]) if one["again"] else "later than the preview looks"
    then = f"; runs again {again}" if one["whole"] else ""
    saves = f" unless the job saves its work within {output.duration(one['notice_s'])}" * bool(
        one["notice_s"]
    )
    return f"{what}, {why}; {hours} GPU-hours lost{saves}{then}"


def _resize(one: Row) -> str:
    parts = []
    if one["leave"]:
        leave = "leaves" if one["leave"] == 1 else "leave"
        warned = one.get("notice_s")
        when = f"within {output.duration(warned)}, once work is saved" if warned else "at once"
        parts.append(f"{_pods(one['leave'])} {leave} {when}")
    if one["more"] and one["at_once"] == one["more"]:
        parts.append(f"{_pods(one['more'])} more at once")
    elif one["why"]:
        parts.append(f"{_pods(one['more'])} more, which get no places: {one['why']}")
    elif one["more"]:
        at = output.when(one["all_at"]) if one["all_at"] else "later than the preview looks"
        parts.append(f"{_pods(one['more'])} more: {one['at_once']} at once, all of them {at}")
    return "; ".join(parts)


def _pods(count: int) -> str:
    return f"{count} pod{'s' * (count != 1)}"


def _way(one: Row) -> str:
    is_sooner = one["before"] is None or (one["by_s"] is not None and one["by_s"] < 0)
    return "sooner" if is_sooner else "later"


def _shift(one: Row) -> str:
    before, after = (
        output.when(one[name]) if one[name] else "later than the preview looks"
        for name in ("before", "after")
    )
    return f"{before} → {after}"
