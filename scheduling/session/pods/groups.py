"""What the group objects that pods name are told of how their gangs fare."""

from collections.abc import Mapping, Sequence

from scheduling.engine.states import HOLDING
from scheduling.kube.seam import PodFacts, TellGroup
from scheduling.kube.workloads.group_status import TELLABLE
from scheduling.kube.workloads.members import workload_of
from scheduling.session.memory.live import Cause, LiveJob, Outbox

PLACED = "Scheduled"
Group = tuple[str, str, str]  # namespace, API version, name


class Groups:
    """Tells a group what is new for it: that its gang waits and why, or has its places. `jobs`: all
    of the cluster."""

    def __init__(self, jobs: Mapping[str, LiveJob], out: Outbox) -> None:
        self._jobs = jobs
        self._out = out
        self._of: dict[str, Group] = {}  # by job
        self._last: dict[Group, str] = {}  # the last job of each
        self._told: dict[Group, tuple[bool, str, str]] = {}

    def refused(self, pod: PodFacts, why: Cause) -> None:
        """The pod is in no job. One beyond those that a gang has places for says nothing of it."""
        group = _group_of([pod])
        job = self._jobs.get(self._last.get(group, "")) if group is not None else None
        if group is not None and (job is None or job.state not in HOLDING):
            self._tell(group, False, *why)

    def waits(self, job: LiveJob, pods: Sequence[PodFacts], reason: str, text: str) -> None:
        """The job waits, of which these are pods."""
        group = self.starts(job, pods)
        if group is not None:
            self._tell(group, False, reason, text)

    def starts(self, job: LiveJob, pods: Sequence[PodFacts]) -> Group | None:
        """The job has places, or waits for them; returns the group that its pods name."""
        group = _group_of(pods) if job.pod_gang else None
        if group is not None:
            self._of[job.id], self._last[group] = group, job.id
        return group

    def placed(self, job: LiveJob) -> None:
        """All pods of the job are bound."""
        group = self._of.get(job.id)
        if group is not None:
            nodes = len({pod.place.node for pod in job.pods.values()})
            self._tell(group, True, PLACED, f"Pods: {len(job.pods)}, on nodes: {nodes}")

    def forget_others(self) -> None:
        """Forget what was told of jobs that are no more."""
        for job_id in [each for each in self._of if each not in self._jobs]:
            group = self._of.pop(job_id)
            if self._last.get(group) == job_id:
                del self._last[group]
                self._told.pop(group, None)

    def _tell(self, group: Group, placed: bool, reason: str, text: str) -> None:
        told = placed, reason, text
        if self._told.get(group) != told:
            self._told[group] = told
            namespace, version, name = group
            self._out.effects.append(TellGroup((), namespace, name, version, *told))


def _group_of(pods: Sequence[PodFacts]) -> Group | None:
    workload = workload_of(pods[0]) if pods else None
    if workload is None or workload.version.rpartition("/")[0] not in TELLABLE:
        return None
    return pods[0].namespace, workload.version, workload.name
