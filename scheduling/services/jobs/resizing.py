"""Change the pod counts of a job.

Any waiting job may change. A running one may if its pods need not start together (no gang), or if
it can do with fewer (an elastic gang).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from scheduling.engine.shards.division import WHOLE
from scheduling.engine.states import HOLDING, TERMINAL, JobState
from scheduling.job_fields.faults import MAX_PODS, Faults
from scheduling.job_fields.nouns import pod_set_of
from scheduling.models import Job, Placement, PodSet
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries.wording import in_state
from scheduling.services.jobs.capacity import Installed, refuse_what_never_fits
from scheduling.services.jobs.pod_set_spec import check_pod_set
from scheduling.services.jobs.validation import MINIMUM_OF_GANGS, TOO_MANY_PODS, JobSpec, job_spec
from tenants.errors import Conflict, Path

SIZES = ("count", "min_count")


class Resize:
    """What `wanted` makes of a job's pods: items of `pod_sets` with name, count and min_count.

    `columns` of the job change with it. Raises Invalid naming each field (also ExceedsCapacity and
    NoMatchingGpuType), Conflict if the job may not have other counts now.
    """

    def __init__(self, job: Job, wanted: Sequence[Mapping[str, Any]]) -> None:
        self._job = job
        self._runs = JobState(job.state) in HOLDING
        if wanted and job.pod_name:
            raise Conflict(
                "Kant did not create its pods, so it cannot change their number. Create or "
                "delete pods yourself."
            )
        self._rows = list(job.pod_sets.order_by("index"))
        self._before = {row.name: _sizes(row) for row in self._rows}
        named = self._named(wanted)
        self._refuse_of_gang(named)
        for row, item in named:
            for name in SIZES:
                setattr(row, name, item.get(name, getattr(row, name)))
        self.changed = [row for row in self._rows if _sizes(row) != self._before[row.name]]
        if any(_more(self._before[row.name], _sizes(row)) for row in self.changed):
            self._refuse_what_never_fits()

    def __bool__(self) -> bool:
        return bool(self.changed)

    @property
    def columns(self) -> dict[str, Any]:
        if not self.changed:
            return {}
        job, sets = self._job, [pod_set_of(vars(row)) for row in self._rows]
        columns: dict[str, Any] = {
            "gpu_milli": sum(s.count * s.milli_per_pod for s in sets),
            "growth": None,
        }
        places = Placement.objects.filter(job=job)
        if self._runs:
            # The pods that the job's recorded wait covers. A pod that was dropped before it had a
            # place does not count.
            before = sum(count for count, _ in self._before.values())
            first, milli = job.first_pods or before, job.first_gpu_milli or job.gpu_milli
            pods = ("pod_set", "ordinal")
            had = places.filter(held_from__isnull=False).values(*pods).distinct().count()
            columns["first_pods"] = min(first, max(sum(s.count for s in sets), had))
            columns["first_gpu_milli"] = milli
        elif not places.filter(state__in=LIVE_PLACEMENTS).exists():
            columns["scope"] = WHOLE  # it may now fit into another shard
        return columns

    @property
    def message(self) -> str:
        """What changes, e.g. “server: 4 → 12 pods”."""
        parts = []
        for row in self.changed:
            (count, least), (now, least_now) = self._before[row.name], _sizes(row)
            parts += [f"{row.name}: {count} → {now} pods"] * (count != now)
            if least != least_now:
                shown = ("none" if n is None else n for n in (least, least_now))
                parts.append("{}: min_count {} → {}".format(row.name, *shown))
        return "; ".join(parts)

    @property
    def evidence(self) -> dict[str, str]:
        """The old and new counts of the pod sets that change, as the command line takes them."""
        if not self.changed:
            return {}
        before = (f"{row.name}={self._before[row.name][0]}" for row in self.changed)
        now = (f"{row.name}={row.count}" for row in self.changed)
        return {"from": " ".join(before), "to": " ".join(now)}

    # --- checks -----------------------------------------------------------------------------------
    def _named(self, wanted: Sequence[Mapping[str, Any]]) -> list[tuple[PodSet, Mapping[str, Any]]]:
        """Return each item with the pod set that it names."""
        faults, rows = Faults(), {row.name: row for row in self._rows}
        found: list[tuple[PodSet, Mapping[str, Any]]] = []
        for index, item in enumerate(wanted):
            at: Path = ("pod_sets", index)
            row = rows.pop(item["name"], None)
            if row is not None:
                found.append((row, item))
                _check(self._job, row, item, at, faults)
                continue
            names = ", ".join(self._before)
            twice = item["name"] in self._before
            text = (
                "The pod set is given twice."
                if twice
                else f"The job has no such pod set; it has {names}."
            )
            faults.add((*at, "name"), text)
        counts = {row.name: row.count for row in self._rows}
        counts |= {row.name: item.get("count", row.count) for row, item in found}
        faults.unless(sum(counts.values()) <= MAX_PODS, ("pod_sets",), TOO_MANY_PODS)
        faults.raise_if_any()
        return found

    def _refuse_of_gang(self, named: Sequence[tuple[PodSet, Mapping[str, Any]]]) -> None:
        """Raise Conflict if a running gang would lose pods that need each other.

        Only pods beyond its minimum may go.
        """
        if not (self._runs and self._job.gang):
            return
        state = in_state(self._job.state)
        for row, item in named:
            if row.min_count is None:
                raise Conflict(
                    f"The job is {state}, and it is a gang that needs all pods of {row.name}. "
                    "Submit it again with the new count, or with a min_count."
                )
            least = item.get("min_count", row.min_count)
            if least is None or least > row.min_count:
                raise Conflict(
                    f"The job is {state}, and min_count of {row.name} is {row.min_count}. While "
                    "the job runs, min_count can only be lowered."
                )

    def _refuse_what_never_fits(self) -> None:
        bare = job_spec({"name": self._job.name, "tenant": "any", "gpus": 1})
        job = structs.replace(bare.job, gang=self._job.gang)
        spec = JobSpec(job, tuple(pod_set_of(vars(row)) for row in self._rows))
        apart = "submit it again with gang set to false"
        refuse_what_never_fits(Installed(self._job.cluster), spec, apart)


def may_be_resized(job: Job, row: PodSet) -> bool:
    """Whether a pod set of the job may get another count now."""
    if JobState(job.state) in HOLDING and job.gang and row.min_count is None:
        return False
    return not job.pod_name and JobState(job.state) not in TERMINAL


def _check(job: Job, row: PodSet, item: Mapping[str, Any], at: Path, faults: Faults) -> None:
    """Add the faults that a submission with these sizes would have.

    If a field that the item does not name is at fault, the count is reported instead.
    """
    faults.unless(
        any(name in item for name in SIZES), (*at, "count"), "Give the new number of pods."
    )
    faults.unless(job.gang or item.get("min_count") is None, (*at, "min_count"), MINIMUM_OF_GANGS)
    sizes = {name: item.get(name, getattr(row, name)) for name in SIZES}
    rest = {"slice_size": row.slice_size, "required_level": row.required_level}
    given = {name: value for name, value in (sizes | rest).items() if value is not None}
    found = Faults()
    check_pod_set({"name": row.name, **given}, at, found)
    for path, detail in ((fault.path, fault.detail) for fault in found.found):
        name = str(path[-1])
        if name in item:
            faults.add(path, detail)
        elif name == "min_count":
            text = f"Must be at least min_count ({row.min_count}). Lower min_count, too."
            faults.add((*at, "count"), text)
        else:
            faults.add((*at, "count"), f"{name} ({rest[name]}): {detail}")


def _sizes(row: PodSet) -> tuple[int, int | None]:
    return row.count, row.min_count


def _more(before: tuple[int, int | None], now: tuple[int, int | None]) -> bool:
    """Whether it asks for more pods, or needs more."""
    (count, least), (count_now, least_now) = before, now
    return count_now > count or (least_now or count_now) > (least or count)
