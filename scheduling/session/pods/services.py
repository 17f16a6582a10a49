"""The Services by which the pods of one job find each other.

A job of several pods gets a Service when it starts, keeps it while it waits again, and loses it
when all of the job is gone. The name follows from the job's id, so asking twice makes one.
"""

import logging
from collections.abc import Callable, Mapping, Set

from scheduling.engine.states import HOLDING
from scheduling.kube.seam import CallOutcome, CreateService, DeleteService, Result, ServiceFacts
from scheduling.kube.translate import manifests
from scheduling.session.memory.live import LiveJob, Outbox

log = logging.getLogger(__name__)

Key = tuple[str, str]  # job and namespace


class Services:
    """The Services of the jobs of a scope. `jobs`: all of its jobs that are not gone."""

    def __init__(self, jobs: Mapping[str, LiveJob]) -> None:
        self._jobs = jobs
        self._seen: dict[Key, ServiceFacts] = {}
        # Services that need nothing more until all are looked at again.
        self._asked: set[Key] = set()

    def seen(self, facts: ServiceFacts) -> None:
        if facts.job:
            self._seen[_key(facts)] = facts
            self._asked.discard(_key(facts))

    def gone(self, facts: ServiceFacts, out: Outbox) -> None:
        known = self._seen.get(_key(facts))
        if known is not None and known.uid != facts.uid:
            return
        self._seen.pop(_key(facts), None)
        self._asked.discard(_key(facts))
        if (job := self._jobs.get(facts.job)) is not None:
            self.make(job, out)

    def make(self, job: LiveJob, out: Outbox) -> None:
        """Request the Service of a job that holds places, unless it exists."""
        wanted = not job.plain and job.state in HOLDING and job.request.pods > 1
        key = job.id, job.namespace
        if not wanted or key in self._seen or key in self._asked:
            return
        self._asked.add(key)
        name, tenant = manifests.subdomain(job.id), job.request.tenant
        manifest = manifests.service_manifest(job.namespace, job.id, tenant)
        out.effects.append(CreateService((job.id,), job.namespace, name, manifest))

    def forget(self, job_id: str) -> None:
        """Forget what was requested for a stale job: nothing was sent for it."""
        self._asked = {key for key in self._asked if key[0] != job_id}

    def look_after(self, left: Callable[[Set[Key]], Set[Key]], out: Outbox, *, again: bool) -> None:
        """Delete the Services of jobs that are gone or now have their pods elsewhere.

        `left` returns those of the given Services that are left over in this scope. `again`:
        request again whatever is not as it should be.
        """
        if again:
            self._asked.clear()
            for job in self._jobs.values():
                self.make(job, out)
        unneeded = {k for k in self._seen.keys() - self._asked if not self._stays(*k)}
        if not unneeded:
            return
        self._asked |= unneeded
        for key in sorted(left(unneeded)):
            facts = self._seen[key]
            out.effects.append(DeleteService((facts.job,), facts.namespace, facts.name, facts.uid))

    def _stays(self, job_id: str, namespace: str) -> bool:
        """Whether the job may still need the Service; a waiting job has its pods nowhere."""
        job = self._jobs.get(job_id)
        return job is not None and (job.state not in HOLDING or job.namespace == namespace)

    def done(self, effect: CreateService | DeleteService, outcome: CallOutcome) -> None:
        if outcome.result in (Result.REFUSED, Result.FAILED):
            verb = "make" if isinstance(effect, CreateService) else "delete"
            log.warning("cannot %s service %s: %s", verb, effect.name, outcome.message)


def _key(facts: ServiceFacts) -> Key:
    return facts.job, facts.namespace
