"""Which pods and Services of a cluster are left over from jobs, by the rows."""

from collections.abc import Mapping, Sequence, Set

from scheduling.engine.types import Shard
from scheduling.kube.seam import PodFacts
from scheduling.models import Cluster
from scheduling.session.memory import divided, load
from scheduling.session.pods.follow import Lifecycle
from scheduling.session.pods.foreign import LookedUp
from scheduling.session.pods.services import Key


class Leftovers:
    """The leftovers in one scope of a cluster.

    Only what Kant itself made for a job in the database can be left over. Rows say where it was;
    without a row, it must be in a namespace in which Kant makes pods. A pod that names an unknown
    job stays: a place is written before its pod is made and is kept as long as its job, so either
    the database is older than the pod, or the pod belongs to another installation.
    """

    def __init__(
        self, cluster: Cluster, scope: str, shards: Sequence[Shard], life: Lifecycle
    ) -> None:
        self._namespace = cluster.namespace
        self._scope = scope
        self._shards = shards
        self._life = life

    def pods(self, pods: Mapping[str, tuple[PodFacts, str]]) -> LookedUp:
        """Return whose these pods are.

        The wide scope looks after pods without a job. A new job is in no scope until the wide scope
        has routed it.
        """
        jobs = {job_id for _, job_id in pods.values()}
        ours = divided.looked_after(jobs, self._scope, self._shards)
        known = divided.scopes_of_jobs(ours).keys()
        strays = {uid for uid, (_, job_id) in pods.items() if job_id in ours - known}
        mine = {uid: facts for uid, (facts, job_id) in pods.items() if job_id in known}
        made = divided.made(facts.name for facts in mine.values())
        left, copies = set[str](), set[str]()
        for uid, facts in mine.items():
            has_place = made.get((facts.namespace, facts.name))
            if has_place is None and not self._makes_pods_in(facts.namespace):
                copies.add(uid)
            elif not has_place:
                left.add(uid)
        return LookedUp(pods.keys() - mine.keys() - strays, left, copies, strays)

    def looked_after(self, jobs: Set[str]) -> set[str]:
        """Return those of these jobs that this scope looks after."""
        return divided.looked_after(jobs, self._scope, self._shards)

    def services(self, services: Set[Key]) -> set[Key]:
        """Return those of these Services that are left over from jobs of this scope.

        Their job is over, has no row and no pods, or has its pods elsewhere.
        """
        mine = divided.looked_after({job_id for job_id, _ in services}, self._scope, self._shards)
        mine -= self._life.foreign.lost_jobs
        if not mine:
            return set()
        done = mine.difference(load.open_among(mine)) | (mine & self._life.jobs.keys())
        were = divided.namespaces_of(done)
        return {
            key
            for key in services
            if key[0] in done and (key in were or self._makes_pods_in(key[1]))
        }

    def _makes_pods_in(self, namespace: str) -> bool:
        return namespace == self._namespace or namespace in self._life.scope.namespaces.values()
