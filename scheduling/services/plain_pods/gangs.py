"""Which plain pods become one job together (docs/decisions/0026-gangs-of-plain-pods.md). Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence

from scheduling.engine.verdict import counted
from scheduling.job_fields.definition import MAX_POD_SETS
from scheduling.kube.seam import PodFacts
from scheduling.kube.translate.manifests import TENANT
from scheduling.kube.workloads.members import gang_of, missing, natural, workload_of
from scheduling.services.plain_pods.queue_names import QueueNames
from scheduling.services.plain_pods.spec import (
    ASK_FOR_GPUS,
    PLACES,
    REQUESTS,
    PodRequest,
    PodSets,
    Refused,
    asked_by,
)
from scheduling.session.memory.live import Cause
from scheduling.session.pods.plain import GANG_INCOMPLETE

NO_QUEUES = QueueNames()
NAMED = 3  # pods that a text names; the rest are counted


def groups_of(pods: Iterable[PodFacts]) -> list[list[PodFacts]]:
    """Group the pods by gang and tenant; a pod without a gang is a group of its own."""
    found: dict[tuple[str, ...], list[PodFacts]] = {}
    for pod in pods:
        gang = gang_of(pod)
        of_gang = (pod.namespace, pod.labels.get(TENANT, ""), gang)
        found.setdefault(of_gang if gang else (pod.uid,), []).append(pod)
    return list(found.values())


def pod_sets_of(
    pods: Sequence[PodFacts],
    also: str = "",
    *,
    alone: bool = False,
    queues: QueueNames = NO_QUEUES,
) -> PodSets:
    """Return the pods of a group as pod sets of one job, both in the order of pod names.

    `also`: what else to say if pods are missing. `alone`: a single pod that starts without its
    gang. `queues`: what queue names mean on the cluster. Raises Refused.
    """
    asked, own = _judged(pods, queues)
    name = "" if alone else gang_of(pods[0])
    if not name:
        if own:
            raise Refused(*own[pods[0].uid])
        return [asked]
    if asked:
        _agree(name, "size", asked)
        _refuse_other_numbers(name, pods, asked, own, also)
    if own:
        raise Refused(*next(iter(own.values())), own)
    for field in asked[0].of_job:
        _agree(name, field, asked)
    if workload_of(pods[0]) is None and not any(one.of_set["gpus"] for one in asked):
        text = f"{REQUESTS}: No pod of gang {name} asks for a GPU. {ASK_FOR_GPUS}"
        raise Refused("InvalidPod", text)
    sets: dict[str, list[PodRequest]] = {}
    for one in sorted(asked, key=lambda one: natural(one.pod.name)):
        sets.setdefault(_shape(one), []).append(one)
    if len(sets) > MAX_POD_SETS:
        text = (
            f"The pods of gang {name} are of {len(sets)} kinds: they differ in requests, node "
            "selector, node affinity, tolerations, GPU models, claims or rules about other "
            f"pods. Use at most {MAX_POD_SETS} kinds."
        )
        raise Refused("InvalidPod", text)
    return list(sets.values())


def _judged(
    pods: Sequence[PodFacts], queues: QueueNames
) -> tuple[list[PodRequest], dict[str, Cause]]:
    """Return what each pod asks for and, by uid, what is wrong with the others."""
    asked, own = list[PodRequest](), dict[str, Cause]()
    for pod in pods:
        assert pod.plain is not None
        try:
            asked.append(asked_by(pod, pod.plain, queues))
        except Refused as refused:
            own[pod.uid] = refused.cause
    return asked, own


def _refuse_other_numbers(
    name: str,
    pods: Sequence[PodFacts],
    asked: Sequence[PodRequest],
    own: Mapping[str, Cause],
    also: str,
) -> None:
    """Raise Refused unless all pods of the gang exist and none of them has to change."""
    size = asked[0].of_job["size"]
    if len(pods) > size:
        text = (
            f"{len(pods)} pods of gang {name} wait, and their {PLACES['size']} is {size}. "
            "Correct the size, or give each gang its own name."
        )
        raise Refused("GangTooLarge", text, own)
    gated = [pod.name for pod in pods if pod.gated]
    if len(pods) == size and not own and not gated:
        return
    parts = [
        f"{len(pods)} of {size} pods of gang {name} {'has' if len(pods) == 1 else 'have'} come."
    ]
    parts += [f"Of its group {g} {_more(n)}." for g, n in missing(pods).items() if g]
    if gated:
        parts.append(f"Scheduling gates must be removed from {_named(gated)}.")
    if own:
        wrong = [pod.name for pod in pods if pod.uid in own]
        parts.append(f"Kant cannot take up {_named(wrong)}: {next(iter(own.values())).text}")
    raise Refused(GANG_INCOMPLETE, " ".join(filter(None, (*parts, also))), own)


def _more(pods: int) -> str:
    return f"{pods} {'is' if pods == 1 else 'are'} missing"


def refuse_disagreement(gang: str, field: str, said: Sequence[tuple[PodFacts, object]]) -> None:
    """Raise Refused if pods of a gang say different things about all of it."""
    first, here = said[0]
    for other, there in said:
        if here != there:
            text = (
                f"{PLACES[field]}: The pods of gang {gang} disagree; it is {_shown(here)} of "
                f"{first.name} and {_shown(there)} of {other.name}. Give all pods the same "
                "value."
            )
            raise Refused("GangDisagrees", text)


def _agree(gang: str, field: str, asked: Sequence[PodRequest]) -> None:
    refuse_disagreement(gang, field, [(one.pod, one.of_job[field]) for one in asked])


def _shape(asked: PodRequest) -> str:
    """Return a key that is equal for interchangeable pods; what they run may differ."""
    asks = {name: of for name, of in asked.of_set.items() if name not in ("image", "command")}
    claims = asked.pod.claims
    plain = asked.pod.plain
    devices = plain.devices.shape if plain is not None and plain.devices is not None else ""
    return json.dumps([asks, claims, devices, asked.pod.says], sort_keys=True)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return f"{shown} and {counted(more, 'other', 'others')}" if more > 0 else shown


def _shown(value: object) -> str:
    return "not set" if value is None else str(value).lower()
