"""Tell group objects that pods name how their gangs fare."""

from collections import Counter
from collections.abc import Mapping, Sequence

from scheduling.engine.states import HOLDING
from scheduling.kube.seam import GroupCounts, PodFacts, TellGroup
from scheduling.kube.workloads.group_status import COUNTED, TELLABLE
from scheduling.kube.workloads.members import workload_of
from scheduling.kube.workloads.pod_groups import named_by
from scheduling.session.memory.live import Cause, LiveJob, Outbox

PLACED = "Scheduled"
Group = tuple[str, str, str]  # namespace, API version, name
Words = tuple[bool, str, str]  # whether it has places; reason, text


class Groups:
    """Tells a group what is new: that its gang waits and why, or that it has its places.

    `jobs`: all jobs of the cluster.
    """

    def __init__(self, jobs: Mapping[str, LiveJob], out: Outbox) -> None:
        self._jobs = jobs
        self._out = out
        self._of: dict[str, Group] = {}  # by job
        self._last: dict[Group, str] = {}  # the last job of each group
        self._told: dict[Group, tuple[Words, GroupCounts]] = {}
        self._said: dict[Group, Words] = {}
        self._pods: dict[Group, dict[str, PodFacts]] = {}  # by uid, of groups that count pods
        self._counted: dict[Group, None] = {}  # groups whose counts changed

    # --- groups that count their pods -------------------------------------------------------------
    def seen(self, facts: PodFacts) -> None:
        """Note a pod, whatever it does."""
        group = _counting(facts)
        if group is not None:
            self._pods.setdefault(group, {})[facts.uid] = facts
            self._counted[group] = None

    def gone(self, facts: PodFacts) -> None:
        """Forget a pod."""
        group = _counting(facts)
        pods = self._pods.get(group) if group is not None else None
        if group is None or pods is None:
            return
        pods.pop(facts.uid, None)
        self._counted[group] = None
        if not pods:
            del self._pods[group]

    def tell_counts(self) -> None:
        """Tell groups whose pods changed state, or have ended.

        A group that this scheduler has not reported on yet has its places if its pods have nodes.
        """
        for group in self._counted:
            pods = self._pods.get(group, {})
            placed = [pod.node for pod in pods.values() if pod.node]
            words = self._said.get(group)
            if words is None and placed:
                words = True, PLACED, f"Pods: {len(placed)}, on nodes: {len(set(placed))}"
            if words is not None:
                self._tell(group, *words)
            if not pods:
                self._said.pop(group, None)
                self._told.pop(group, None)
        self._counted.clear()

    def _counts(self, group: Group) -> GroupCounts:
        pods = self._pods.get(group, {}).values()
        phases = Counter(pod.phase for pod in pods)
        return GroupCounts(
            pods=len(pods),
            scheduled=sum(bool(pod.node) for pod in pods),
            running=phases["Running"],
            succeeded=phases["Succeeded"],
            failed=phases["Failed"],
        )

    # --- what groups are told ---------------------------------------------------------------------

    def refused(self, pod: PodFacts, why: Cause) -> None:
        """Tell the group that the pod is in no job.

        If the gang already has its places, a pod beyond them does not count against it.
        """
        group = _group_of([pod])
        job = self._jobs.get(self._last.get(group, "")) if group is not None else None
        if group is not None and (job is None or job.state not in HOLDING):
            self._tell(group, False, *why)

    def waits(self, job: LiveJob, pods: Sequence[PodFacts], reason: str, text: str) -> None:
        """Tell the group that the job of these pods waits."""
        group = self.starts(job, pods)
        if group is not None:
            self._tell(group, False, reason, text)

    def starts(self, job: LiveJob, pods: Sequence[PodFacts]) -> Group | None:
        """Note that the job has places, or waits for them; return the group that its pods name."""
        group = _group_of(pods) if job.pod_gang else None
        if group is not None:
            self._of[job.id], self._last[group] = group, job.id
        return group

    def placed(self, job: LiveJob) -> None:
        """Tell the group that all pods of the job are bound."""
        group = self._of.get(job.id)
        if group is not None:
            nodes = len({pod.place.node for pod in job.pods.values()})
            self._tell(group, True, PLACED, f"Pods: {len(job.pods)}, on nodes: {nodes}")

    def forget_others(self) -> None:
        """Forget the groups of jobs that no longer exist."""
        for job_id in [each for each in self._of if each not in self._jobs]:
            group = self._of.pop(job_id)
            if self._last.get(group) == job_id:
                del self._last[group]
                if group not in self._pods:
                    self._told.pop(group, None)
                    self._said.pop(group, None)

    def _tell(self, group: Group, placed: bool, reason: str, text: str) -> None:
        words = placed, reason, text
        told = words, self._counts(group)
        self._said[group] = words
        if self._told.get(group) != told:
            self._told[group] = told
            namespace, version, name = group
            of = (), namespace, name, version
            self._out.effects.append(TellGroup(*of, *words, told[1]))


def _counting(facts: PodFacts) -> Group | None:
    """Return the group that the pod names, if that kind counts its pods."""
    named = named_by(facts) if facts.owned else None
    if named is None or named.api_version.rpartition("/")[0] not in COUNTED:
        return None
    return facts.namespace, named.api_version, named.name


def _group_of(pods: Sequence[PodFacts]) -> Group | None:
    workload = workload_of(pods[0]) if pods else None
    if workload is None or workload.version.rpartition("/")[0] not in TELLABLE:
        return None
    return pods[0].namespace, workload.version, workload.name
