"""What a simulated run is made of: arrivals, faults, changes, and the parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scheduling.engine.deltas import Delta
from scheduling.engine.states import JobState
from scheduling.engine.types import JobRequest, Node, Policy

Pod = tuple[int, int]  # (pod set, ordinal)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job and what will become of it. Times in seconds.

    - `duration_s`: the run time if nothing disturbs the job. `ends`: its state after that.
    - `resubmit_after_s`: how long after a failure its owner submits it again; the second one
      succeeds.
    - `cancel_after_s`: how long after submission its owner cancels it, waiting or running; None =
      never.
    - `pod_s`: run times by (pod set, ordinal) if pods differ; `duration_s` is the longest.
      Otherwise a gang ends as one.
    - `heard_after_s`: how long after submission the scheduler hears of it.
    - `not_before`: no start before this instant of the run.
    - `leaves_s`: by (pod set, ordinal), how long the pod takes to leave at its first, second, …
      preemption, as far as known. Otherwise it takes `Settings.evict_s`, after `notice_s` in which
      it may save its work.
    - `cluster`: the cluster to run on, if there are several; "" = where it starts first. Only
      clusters with the labels of `cluster_selector` are allowed; those with more of
      `cluster_labels` are preferred.
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
    notice_s: float = 0.0
    cluster: str = ""
    cluster_selector: Mapping[str, str] | None = None
    cluster_labels: Mapping[str, str] | None = None

    @property
    def submitted_at(self) -> float:
        return self.job.submitted_at

    def again(self, at: float) -> "Arrival":
        """Return what its owner submits at `at` because it failed; that one succeeds."""
        job = replace(self.job, id=f"{self.job.id}+", submitted_at=at)
        return replace(self, job=job, resubmit_after_s=None, ends=JobState.SUCCEEDED)


@dataclass(frozen=True, slots=True)
class ClusterOfRun:
    """One of several clusters of a run.

    The names of its nodes are unique over all clusters. `faults` ascend in time. `labels`: what
    jobs select clusters by. `takes_any`: whether it takes jobs that name no cluster.
    """

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
    """A change of a node, quota, tenant or policy on the timeline, or what is known of the past."""

    at: float
    delta: Delta


@dataclass(frozen=True, slots=True)
class Settings:
    """How the simulated shell behaves. Times in seconds.

    - `cycle_s`: run a cycle at each multiple of this at which something has changed; 0 = run one at
      once at every event.
    - `bind_delay_s`: from a decision until the pods run.
    - `evict_s`: from a preemption until the victim's pods are gone; they do not work meanwhile.
    - `checkpoint_s`: the interval at which running jobs save their work; None = never. The
      engine hears of it from gangs.
    - `restart_s`: the time lost at every start after the first.
    - `sample_s`: the spacing of the sampled series; integrals are exact in any case.
    - `warm_up_s`: the time that the summary leaves out.
    - `stop_s`: the end of the run; None = when everything has come to rest.
    - `fault_first`: a job that lost its place by a fault goes before all others of its priority, as
      it does live. Otherwise it waits in its old position.
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
