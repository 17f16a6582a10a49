"""How large a new job of a tenant on a GPU type may be and start now.

The engine is asked about jobs of rising size, one after another.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from scheduling.engine.rehearse import Rise
from scheduling.engine.types import JobRequest, PodSetSpec
from scheduling.engine.verdict import Verdict

# Returns how far these jobs rise, and why no more can be said.
Ask = Callable[[Iterator[JobRequest]], tuple[Rise, str]]


class Climbed(NamedTuple):
    """The result of a climb.

    - `gpus`: of the largest job that starts; `in_leaf`: within one leaf group (None = there are
      none).
    - `refused`: the next size, which does not start; None = none is larger.
    - `verdict`: why it does not, as the engine says; `trouble`: why nothing can be said of it.
    """

    gpus: int
    in_leaf: int | None
    refused: int | None
    verdict: Verdict | None
    trouble: str


class Climb(NamedTuple):
    """Jobs of 1, 2, 4 ... GPUs of a node with `per_node`, then of 1, 2, 4 ... whole nodes.

    The largest has all that are `installed`. `user`: who asks.
    """

    gpu_type: str
    tenant: str
    user: str
    per_node: int
    installed: int
    has_leaves: bool

    def climbed(self, ask: Ask, now: float) -> Climbed:
        """Climb as far as jobs start; they are submitted at `now`, in seconds since the epoch."""
        sizes = self._sizes()
        said, trouble = ask(self._jobs(sizes, now))
        started = sizes[: said.started]
        return Climbed(
            started[-1] if started else 0,
            self._in_leaf(ask, started, now) if self.has_leaves else None,
            sizes[said.started] if said.started < len(sizes) else None,
            said.verdict,
            trouble,
        )

    def _in_leaf(self, ask: Ask, sizes: Sequence[int], now: float) -> int:
        """Return the largest of these sizes that also starts within one leaf group."""
        inside = [size for size in sizes if size <= self.per_node]
        wider = sizes[len(inside) :]
        inside += wider[: ask(self._jobs(wider, now, "leaf"))[0].started]
        return inside[-1] if inside else 0

    def _sizes(self) -> list[int]:
        sizes, size = [], 1
        while size < self.per_node:
            sizes.append(size)
            size *= 2
        size = self.per_node
        while size <= self.installed:
            sizes.append(size)
            size *= 2
        return sizes

    def _jobs(self, sizes: Sequence[int], now: float, level: str = "") -> Iterator[JobRequest]:
        for size in sizes:
            pods = max(1, size // self.per_node)
            pod_set = PodSetSpec("worker", pods, min(size, self.per_node), (self.gpu_type,))
            yield JobRequest(
                f"startable {self.gpu_type} {self.tenant}",
                self.tenant,
                now,
                (pod_set,),
                user=self.user,
                required_level=level,
            )
