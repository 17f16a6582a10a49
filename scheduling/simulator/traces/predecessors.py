"""The names in `after` of a trace that no job can wait for: they count as ended."""

from scheduling.simulator.traces.jobs import TraceJob

TOLD = 3  # how many names a remark shows


class Predecessors:
    """What the jobs of a trace wait for, collected while they are read.

    It keeps the id and time of each job, and the time of each job that waits for one that has not
    come yet.
    """

    def __init__(self) -> None:
        self._submitted: dict[str, float] = {}  # jobs that ask for GPUs; others are left out
        self._open: list[tuple[str, float]] = []

    def read(self, job: TraceJob) -> None:
        if job.gpus <= 0:
            return
        for name in job.after:
            before = self._submitted.get(name)
            if before is None or before > job.submitted_at:
                self._open.append((name, job.submitted_at))
        self._submitted[job.id] = job.submitted_at

    def remark(self) -> str:
        """Return a sentence with the number of names and the first ones; "" if there are none."""
        absent, later = dict[str, None](), dict[str, None]()
        for name, at in self._open:
            known = self._submitted.get(name)
            if known is None:
                absent[name] = None
            elif known >= at:  # if both come at once, the file says which is first
                later[name] = None
        told = [
            _told(names, one, many)
            for names, one, many in (
                (absent, "is no job with GPUs of it", "are no jobs with GPUs of it"),
                (
                    later,
                    "comes after a job that waits for it",
                    "come after jobs that wait for them",
                ),
            )
            if names
        ]
        if not told:
            return ""
        which = "it counts" if len(absent) + len(later) == 1 else "they count"
        return f"of the jobs that `after` names, {' and '.join(told)}; {which} as ended"


def _told(names: dict[str, None], one: str, many: str) -> str:
    first = ", ".join(name[:60] for name in list(names)[:TOLD])
    more = ", …" if len(names) > TOLD else ""
    return f"{len(names):,} {one if len(names) == 1 else many} ({first}{more})"
