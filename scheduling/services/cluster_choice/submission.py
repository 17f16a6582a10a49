"""Choose the cluster of a new job that names none.

The choice uses sums of rows, so that no request waits for a cluster or for the engine.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from scheduling.engine.cluster_choice.choice import ClusterOutlook, choose, labels_in_common
from scheduling.engine.cluster_choice.estimate import PodsOfJob, estimate, start_after
from scheduling.models import Cluster
from scheduling.queries.cluster_choice.facts import SupplyFacts
from scheduling.queries.standstill import silence
from scheduling.services.cluster_choice.told import ChosenForJob
from scheduling.services.jobs.capacity import Installed, refuse_what_never_fits
from scheduling.services.jobs.permitted import refuse_what_may_not_be_named
from scheduling.services.jobs.validation import JobSpec
from tenants.errors import Invalid


class ClusterChooser:
    """Chooses for the jobs of one request, one after another."""

    def __init__(self, clusters: Sequence[Cluster], now: datetime) -> None:
        self._clusters, self._now = clusters, now
        self._facts = SupplyFacts([cluster.pk for cluster in clusters])

    def choose(self, spec: JobSpec, refused: Mapping[str, str]) -> ChosenForJob:
        """Choose a cluster for a job.

        `refused`: by name of a cluster, why the job can never run there. At least one cluster must
        not be in it.
        """
        asked = asked_of(spec)
        now = self._now.timestamp()
        outlooks = self._outlooks(spec, asked, refused)
        chosen = choose(outlooks, now)
        assert chosen is not None  # at least one cluster is not refused
        cluster = next(c for c in self._clusters if c.name == chosen.name)
        times = 1 if spec.job.array is None else spec.job.array.count
        self._facts.promise(cluster.pk, spec.pod_sets, times)
        return ChosenForJob(cluster, chosen, outlooks)

    def _outlooks(
        self, spec: JobSpec, asked: PodsOfJob, refused: Mapping[str, str]
    ) -> list[ClusterOutlook]:
        found, by_quota = {}, None
        silent = {cluster.name: silence(cluster, self._now) for cluster in self._clusters}
        for cluster in self._clusters:
            if cluster.name in refused or silent[cluster.name]:
                continue
            if by_quota is None:
                preemptible = spec.job.preemptible
                by_quota = self._facts.refused(
                    spec.job.tenant, asked, non_preemptible=not preemptible
                )
            supply = self._facts.supply(cluster.pk, asked, spec.job.priority)
            found[cluster.name] = estimate(asked, supply, by_quota)
        # The ends of running jobs are read only if the job has to wait for them.
        waits = not any(each.starts_now for each in found.values())
        outlooks = []
        for cluster in self._clusters:
            each = found.get(cluster.name)
            start_at = None
            if each is not None and waits and each.lacks:
                start_at = start_after(each.lacks, self._facts.endings(cluster.pk))
            outlooks.append(
                ClusterOutlook(
                    cluster.name,
                    starts_now=each is not None and each.starts_now,
                    start_at=start_at,
                    why=each.why if each is not None else "",
                    silent=silent[cluster.name],
                    refused=refused.get(cluster.name, ""),
                    groups=each.groups if each is not None else 0,
                    labels=labels_in_common(cluster.labels, spec.job.preferred_cluster_labels),
                    room=each.room if each is not None else 0.0,
                )
            )
        return outlooks


def asked_of(spec: JobSpec) -> PodsOfJob:
    """Return what a job asks for. Its network level is its own, or that of its first pod set."""
    first = spec.pod_sets[0]
    required = spec.job.required_level or first.required_level
    level = required or spec.job.preferred_level or first.preferred_level
    return PodsOfJob(spec.pod_sets, spec.job.gang, level, within=bool(required))


def _lacks_label(cluster: Cluster, selector: Mapping[str, str]) -> str:
    """Return why the selector does not match the cluster; "" = it does."""
    missing = [f"{n}={v}" for n, v in selector.items() if cluster.labels.get(n) != v]
    return f"Cluster “{cluster.name}” lacks the label {missing[0]}." if missing else ""


def refuse_on(installed: Installed, spec: JobSpec) -> None:
    """Raise Invalid if a job can never run on a cluster."""
    cluster = installed.cluster
    if lack := _lacks_label(cluster, spec.job.cluster_selector):
        raise Invalid.field("cluster_selector", lack)
    refuse_what_may_not_be_named(cluster.job_rules, spec)
    refuse_what_never_fits(installed, spec)


def refuse_everywhere(faults: Mapping[str, Invalid]) -> Invalid:
    """Return one refusal for what every cluster refuses, with the field errors of the first."""
    first = next(iter(faults.values()))
    if len(faults) == 1:
        return first
    codes = {fault.code for fault in faults.values()}
    told = " ".join(f"{name}: {fault.detail}" for name, fault in faults.items())
    return Invalid(
        f"No active cluster can run it. {told}",
        code=first.code if len(codes) == 1 else None,
        errors=first.errors,
    )
