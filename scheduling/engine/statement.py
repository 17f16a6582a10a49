"""Statement: a transaction on ClusterState that can be rolled back exactly."""

from scheduling.engine.cluster.cluster import ClusterState, Infeasible
from scheduling.engine.cluster.columns import Booking, PodKey
from scheduling.engine.types import JobRequest, PodPlacement, PodSetSpec

# How many infeasible shapes to remember; at this number the memory is cleared.
MAX_SHAPES = 10_000


class Step:
    """One change: an eviction (`evicted`) or an allocation.

    `version` and `gains` are those of the state before it.
    """

    __slots__ = ("evicted", "gains", "key", "placement", "pod_set", "version")

    def __init__(
        self,
        key: PodKey,
        placement: PodPlacement,
        pod_set: PodSetSpec,
        evicted: bool,
        version: int,
        gains: int,
    ) -> None:
        self.key = key
        self.placement = placement
        self.pod_set = pod_set
        self.evicted = evicted
        self.version = version
        self.gains = gains


class Statement:
    """Allocations and evictions on a state that can be rolled back to any checkpoint.

    Shapes remembered as infeasible are part of the statement: rolling back an earlier change
    forgets them.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._steps: list[Step] = []
        self._remembered: list[tuple[int, object]] = []

    def allocate(self, job: JobRequest, p: PodPlacement) -> None:
        """Book a place for one pod of the job, taking its resources."""
        self.put_back(job.id, Booking(p, job.pod_sets[p.pod_set]))

    def put_back(self, job_id: str, booking: Booking) -> None:
        """Book a place for one pod again, with all that it held there."""
        p, pod_set = booking
        before = self.state.version, self.state.gains
        self.state.restore(job_id, p, pod_set)
        self._allocated(job_id, p, pod_set, *before)

    def adopt(self, job: JobRequest, p: PodPlacement) -> None:
        """Book a place whose resources the search for it has already taken."""
        pod_set = job.pod_sets[p.pod_set]
        before = self.state.version, self.state.gains
        self.state.register(job.id, p, pod_set)
        self._allocated(job.id, p, pod_set, *before)

    def _allocated(
        self, job_id: str, p: PodPlacement, pod_set: PodSetSpec, version: int, gains: int
    ) -> None:
        self._steps.append(Step((job_id, p.pod_set, p.ordinal), p, pod_set, False, version, gains))

    def evict(self, key: PodKey) -> PodPlacement:
        """Release the place of a pod; raise KeyError if the pod holds none."""
        booking = self.state.booking(key)
        if booking is None:
            raise KeyError(f"pod {key[2]} of pod set {key[1]} of job {key[0]} holds no place")
        version, gains = self.state.version, self.state.gains
        self.state.release(*key)
        self._steps.append(Step(key, booking.placement, booking.pod_set, True, version, gains))
        return booking.placement

    def remember_infeasible(self, shape: object, why: Infeasible) -> None:
        """Remember that nothing of this shape fits until something is released or changed."""
        if len(self.state.infeasible) >= MAX_SHAPES:
            self.state.infeasible.clear()
        self.state.infeasible[shape] = (self.state.version, why)
        self._remembered.append((len(self._steps), shape))

    def checkpoint(self) -> int:
        return len(self._steps)

    def rollback(self, mark: int = 0) -> None:
        """Undo everything since the checkpoint, restoring the state exactly."""
        state = self.state
        while len(self._steps) > mark:
            step = self._steps.pop()
            if step.evicted:
                state.restore(step.key[0], step.placement, step.pod_set)
            else:
                state.release(*step.key)
            state.forget_gains(step.version, step.gains)
        while self._remembered and self._remembered[-1][0] > mark:
            state.infeasible.pop(self._remembered.pop()[1], None)

    def commit(self) -> tuple[PodPlacement, ...]:
        """Keep everything; return the allocated places in the order of allocation."""
        made = tuple([step.placement for step in self._steps if not step.evicted])
        self._steps.clear()
        self._remembered.clear()
        self.state.committed(len(made))
        return made
