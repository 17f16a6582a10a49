"""Where queue names in other systems' manifests lead: a map of the cluster, set by operators.

Such names are `kai.scheduler/queue` and `kueue.x-k8s.io/queue-name`. A key is a name, or
NAMESPACE/NAME for pods of one namespace. A value with a slash is TENANT/QUEUE; one without is
another name of the map.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from scheduling.job_fields.faults import SLUG
from tenants.errors import FieldError
from tenants.models import Queue

FIELD = "queue_map"
MOST_ENTRIES, MOST_OF_A_NAME = 1000, 253


def target_of(queue_map: Mapping[str, str], namespace: str, name: str) -> tuple[str, str] | None:
    """Return the tenant and queue that a name means in a namespace; None = not in the map."""
    found = queue_map.get(f"{namespace}/{name}", queue_map.get(name))
    for _ in queue_map:  # a checked map ends sooner
        if found is None or "/" in found:
            break
        found = queue_map.get(found)
    tenant, slash, queue = (found or "").partition("/")
    return (tenant, queue) if slash else None


def faults(document: Any) -> Iterator[FieldError]:
    """Yield the faults of a cluster's `queue_map`."""
    shape = 'Must be an object: {"name" or "namespace/name": "tenant/queue"}.'
    if not isinstance(document, dict) or len(document) > MOST_ENTRIES:
        yield FieldError((FIELD,), f"{shape} It has at most {MOST_ENTRIES} entries.")
        return
    known = {f"{t}/{q}" for t, q in Queue.objects.values_list("tenant__name", "name")}
    for name, target in document.items():
        at = (FIELD, name)
        namespace, slash, of_namespace = name.rpartition("/")
        if not of_namespace or (slash and not SLUG.fullmatch(namespace)):
            yield FieldError(at, "Must be a name, or namespace/name.")
        elif len(name) > MOST_OF_A_NAME:
            yield FieldError(at, f"The name is longer than {MOST_OF_A_NAME} characters.")
        elif not isinstance(target, str):
            yield FieldError(at, "Must be TENANT/QUEUE, or another name of the map.")
        elif "/" in target:
            if target not in known:
                detail = f"There is no queue “{target}”. Create it first, or name another one as "
                yield FieldError(at, f"{detail}TENANT/QUEUE.")
        elif loop := _loop(document, name):
            yield FieldError(at, f"It points back to itself: {' → '.join(loop)}.")
        elif target not in document:
            detail = f"“{target}” is neither TENANT/QUEUE nor another name of the map."
            yield FieldError(at, detail)


def _loop(queue_map: Mapping[str, Any], name: str) -> list[str]:
    """Return the names on the way from this one back to itself; [] = it does not lead back."""
    way, at = [name], queue_map.get(name)
    while isinstance(at, str) and at in queue_map and "/" not in at:
        way.append(at)
        if at == name:
            return way
        if way.count(at) > 1:
            return []
        at = queue_map[at]
    return []
