"""Turns a Kubernetes pod into PodFacts."""

import logging
from collections.abc import Callable

from scheduling.kube.seam import PodFacts, PodSays
from scheduling.kube.translate import pod_rules
from scheduling.kube.translate.anti_affinity import keeps_away
from scheduling.kube.translate.claims import claims_of, device_claims_of
from scheduling.kube.translate.objects import KubePod, Terminated
from scheduling.kube.translate.plain_pods import is_plain, plain_pod
from scheduling.kube.translate.quantities import PodHolding, holding
from scheduling.kube.translate.texts import seconds_of, storable, storable_reason

logger = logging.getLogger(__name__)

_NOTHING: dict[str, str] = {}
# The Job controller counts the end of each pod with this finalizer and then removes it.
JOB_TRACKING = "batch.kubernetes.io/job-tracking"


def pod_translator(scheduler_name: str) -> Callable[[KubePod], PodFacts]:
    """Return a translator; pods that name `scheduler_name` are Kant's own. It never raises."""

    def translate(raw: KubePod) -> PodFacts:
        meta, spec, status = raw.metadata, raw.spec, raw.status
        owned = spec.scheduler_name == scheduler_name
        held = _holding(raw)
        ended = _ended(raw)
        created = seconds_of(meta.creation_timestamp)
        extended = status.extended_resource_claim_status
        return PodFacts(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            node=spec.node_name,
            phase=status.phase,
            owned=owned,
            deleting=bool(meta.deletion_timestamp),
            gated=bool(spec.scheduling_gates),
            reason=storable_reason(status.reason or (ended.reason if ended else "")),
            message=storable(status.message or (ended.message if ended else "")),
            exit_code=ended.exit_code if ended else None,
            gpus=held.gpus,
            gpu_milli=held.gpu_milli,
            cpu_milli=held.cpu_milli,
            memory_mib=held.memory_mib,
            extended=held.extended,
            gpu_resources=held.gpu_resources,
            priority=spec.priority,
            started_at=seconds_of(status.start_time),
            finished_at=seconds_of(ended.finished_at) if ended else None,
            # With versions of other schedulers' pods, every heartbeat would be news.
            labels=meta.labels if owned or spec.node_name else _NOTHING,
            annotations=meta.annotations if owned else _NOTHING,
            resource_version=meta.resource_version if owned else "",
            plain=plain_pod(raw, created or 0.0) if owned and is_plain(raw) else None,
            disrupted=_disrupted(raw) if owned else "",
            tracked=owned and JOB_TRACKING in meta.finalizers,
            keeps_away=keeps_away(raw) if spec.node_name else (),
            says=_says(raw, owned) if owned or spec.node_name else None,
            claims=claims_of(raw) if owned or spec.node_name else (),
            device_claims=device_claims_of(raw) if owned else (),
            extended_claim=extended.resource_claim_name if owned and extended else "",
        )

    return translate


def _says(raw: KubePod, owned: bool) -> PodSays | None:
    """Read the pod's rules; `plain_pods` refuses a waiting pod whose rules cannot be read."""
    try:
        return pod_rules.says(raw) if owned else pod_rules.ports_of(raw)
    except ValueError as wrong:
        where = f"{raw.metadata.namespace}/{raw.metadata.name}"
        logger.warning("pod %s: what it says of other pods cannot be read: %s", where, wrong)
        return None


def _holding(raw: KubePod) -> PodHolding:
    try:
        # The generation counts changes of the spec, which is possible for running pods, too.
        changed = raw.metadata.generation > 1 and bool(raw.spec.node_name)
        return holding(raw.spec, raw.status if changed else None)
    except ValueError as wrong:
        where = f"{raw.metadata.namespace}/{raw.metadata.name}"
        logger.warning("pod %s: its requests cannot be read and count as nothing: %s", where, wrong)
        return PodHolding(0, 0, 0, 0)


def _disrupted(raw: KubePod) -> str:
    """Return the reason of the condition DisruptionTarget while it holds."""
    for condition in raw.status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return storable_reason(condition.reason)
    return ""


def _ended(raw: KubePod) -> Terminated | None:
    """Return how the pod's containers ended: the first to fail, otherwise the last to finish."""
    ends = [each.state.terminated for each in raw.status.container_statuses]
    done = [end for end in ends if end is not None]
    if not done or len(done) < len(ends):
        return None
    failed = [end for end in done if end.exit_code]
    return failed[0] if failed else max(done, key=lambda end: end.finished_at or "")
