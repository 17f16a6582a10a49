"""When running jobs got their places: who may have passed a job that was blocked since."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

# Placements of jobs that have ended are remembered until there are so many.
MORE_PLACED = 1_000


@dataclass(slots=True)
class Placed:
    """Times at which jobs got places, in order; those of some that have ended are among them."""

    times: list[tuple[float, str]] = field(default_factory=list)

    def note(self, job_id: str, at: float, running: Mapping[str, object]) -> None:
        """Note that a job got a place."""
        times = self.times
        if len(times) > 2 * len(running) + MORE_PLACED:
            latest = {name: since for since, name in times if name in running}
            times[:] = sorted((since, name) for name, since in latest.items())
        if not times or times[-1][0] < at:
            times.append((at, job_id))
        else:
            insort(times, (at, job_id))

    def since(self, at: float) -> dict[str, None]:
        """Jobs of which a pod may have got its place since then, the last first."""
        first = bisect_left(self.times, (at,))
        return dict.fromkeys(name for _, name in reversed(self.times[first:]))
