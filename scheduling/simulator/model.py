"""The nouns of a simulated run: what arrives, what breaks, what changes, and the parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduling.engine.deltas import Delta
from scheduling.engine.states import JobState
from scheduling.engine.types import JobRequest, Node, Policy

Pod = tuple[int, int]  # (pod set, ordinal)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job and what will become of it. `duration_s`: run time when nothing disturbs it.

    `ends`: the state it ends in after `duration_s`. `resubmit_after_s`: a failed job that its
    owner submits again that much later; the second one succeeds. `cancel_after_s`: given up by
    its owner that long after submission, waiting or running; None = never. `pod_s`: run times by
    (pod set, ordinal) where pods differ, `duration_s` the longest; else a gang ends as one.
    `heard_after_s`: from submission until the scheduler hears of it. `not_before`: no start
    earlier, in seconds of the run. `leaves_s`: by (pod set, ordinal), how long the pod takes to go
    when it is preempted for the first, the second, … time, where that is known. `cluster`: where it
    is to run, of several; "" = where it starts first, on clusters with the labels of
    `cluster_selector`, rather on those with more of `cluster_labels`.
    """

    job: JobRequest
    duration_s: float
    ends: JobState = JobState.SUCCEEDED
    resubmit_after_s: float | None = None
    cancel_after_s: float | None = None
    pod_s: Mapping[Pod, float] | None = None
    heard_after_s: float = 0.0
    not_before: float = 0.0
    leaves_s: Mapping[Pod, tuple[float, ...]] | None = None
    cluster: str = ""
    cluster_selector: Mapping[str, str] | None = None
    cluster_labels: Mapping[str, str] | None = None

    @property
    def submitted_at(self) -> float:
        return self.job.submitted_at

    def again(self, at: float) -> "Arrival":
        """What its owner submits then because it failed; that succeeds."""
        job = replace(self.job, id=f"{self.job.id}+", submitted_at=at)
        return replace(self, job=job, resubmit_after_s=None, ends=JobState.SUCCEEDED)


@dataclass(frozen=True, slots=True)
class ClusterOfRun:
    """One of several clusters of a run. Its nodes have names that those of no other have; `faults`
    of them ascend in time. `labels`: what jobs choose by. `takes_any`: whether jobs come here that
    name no cluster."""

    name: str
    nodes: tuple[Node, ...]
    policy: Policy
    labels: Mapping[str, str] = field(default_factory=dict)
    takes_any: bool = True
    faults: Iterable["HardwareFault"] = ()


@dataclass(frozen=True, slots=True)
class HardwareFault:
    """A node, or one GPU of it, that is out of service from `at` for `repair_s` seconds."""

    at: float
    node: str
    repair_s: float
    device: int | None = None


@dataclass(frozen=True, slots=True)
class TimedChange:
    """A node, quota, tenant or policy change on the timeline, or what is known of the past."""

    at: float
    delta: Delta


@dataclass(frozen=True, slots=True)
class Settings:
    """How the simulated shell behaves. Times in seconds.

    `cycle_s`: a cycle at each multiple of it that has news; 0 = at once at every event.
    `bind_delay_s`: from decision to running; `evict_s`: from a preemption until the victim's pods
    are gone, while which they work no more. `checkpoint_s`: interval at which running jobs save
    their work, None = never; of gangs the engine is told. `restart_s`: lost at every start after
    the first. `sample_s`: spacing of the sampled series; integrals are exact whatever it is.
    `warm_up_s`: left out of the summary. `stop_s`: end of the run, None = when everything has come
    to rest. `fault_first`: a job that lost its place by a fault goes before all others of its
    priority, as it does live; otherwise it waits in its old place.
    """

    cycle_s: float = 0.0
    bind_delay_s: float = 0.0
    evict_s: float = 0.0
    checkpoint_s: float | None = None
    restart_s: float = 0.0
    sample_s: float = 600.0
    warm_up_s: float = 0.0
    stop_s: float | None = None
    fault_first: bool = True
