"""What plain pods may name on a cluster, by the rules of jobs (`services.jobs.permitted`). Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scheduling.kube.seam import PodFacts
from scheduling.services.jobs.permitted import (
    JobRules,
    NamedInJob,
    faults_of_job,
    faults_of_pods,
    rules_of,
)
from scheduling.services.plain_pods.spec import Refused, place_of
from scheduling.session.memory.live import Cause
from tenants.errors import FieldError, Path

DENIED = "DeniedByJobRules"


def refuse_what_may_not_be_named(
    document: Mapping[str, Any], pods: Iterable[tuple[PodFacts, int | None]]
) -> None:
    """Raise Refused for pods that name what `Cluster.job_rules` denies, with the fault of each.

    Each pod comes with the priority it asks for (None: it already has it).
    """
    rules = rules_of(document)
    own: dict[str, Cause] = {}
    named = ""
    for pod, priority in pods:
        if text := " ".join(f"{place_of(e)}: {e.detail}" for e in _faults(rules, pod, priority)):
            own[pod.uid] = Cause(DENIED, text)
            named = named or pod.name
    if own:
        text = f"Its gang waits for pod {named}, which breaks the job rules of the cluster."
        raise Refused(DENIED, text, own)


def _faults(rules: JobRules, pod: PodFacts, priority: int | None) -> Iterator[FieldError]:
    assert pod.plain is not None
    plain = pod.plain
    named = NamedInJob(plain.nodes.tolerations, plain.service_account, pod.annotations, plain.env)
    yield from faults_of_job(rules, priority, pod.labels)
    yield from faults_of_pods(rules, named, _path)


def _path(field: str) -> Path:
    return ("pod_sets", 0, field)
