"""Reading the JSON of other projects' objects, where each field may be absent or wrong."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from scheduling.kube.seam import GangGroup, PodFacts, Reference, Unclear, Workload
from scheduling.kube.workloads.contradiction import Contradicts
from scheduling.kube.workloads.levels import asked_of_owner

Found = Mapping[str, Any]  # an object: its metadata, spec and status
SUSPENDED, CONTRADICTION = "OwnerSuspended", "WorkloadContradicts"
MAX_COUNT = 1_000_000
# Prefix of an owner's annotations that count for its pods.
NOTES = "kant.io/"
KAI_MINIMUM = "kai.scheduler/batch-min-member"


class Rule(Struct, frozen=True):
    """A kind that defines gangs: where its objects are, and how they are read."""

    group: str
    kind: str
    plural: str
    read: Callable[[PodFacts, Found], Workload]


def name_of(found: Found) -> str:
    return str(found["metadata"]["name"])


def part_of(found: Found, *path: str) -> Mapping[str, Any]:
    """Return the object at the path; empty if there is none."""
    value: Any = found
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def list_of(found: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a list; empty if there is none."""
    value = found.get(key)
    if not isinstance(value, list):
        return ()
    return [each for each in value if isinstance(each, Mapping)]


def count_of(found: Mapping[str, Any], key: str, default: int, field: str) -> int:
    """Return a number of pods. `field`: where it is written, for people. Raises Contradicts."""
    value = found.get(key)
    if value is None:
        return default
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise Contradicts(field, f"It is {value!r}; give the number of pods.")
    return value


def notes_of(found: Found) -> dict[str, str]:
    """Return the object's annotations for Kant."""
    notes = part_of(found, "metadata", "annotations")
    return {k: str(v) for k, v in sorted(notes.items()) if k.startswith(NOTES)}


def minimum_of(found: Found) -> int | None:
    """Return how many pods start together by the object's KAI annotation; None = not set."""
    notes = part_of(found, "metadata", "annotations")
    if KAI_MINIMUM not in notes:
        return None
    return count_of(notes, KAI_MINIMUM, 0, f"annotation {KAI_MINIMUM}")


def controller_of(found: Found) -> Reference | None:
    """Return the object that made this one."""
    for owner in list_of(part_of(found, "metadata"), "ownerReferences"):
        if owner.get("controller"):
            return Reference(
                *(str(owner.get(k, "")) for k in ("apiVersion", "kind", "name", "uid"))
            )
    return None


def one_by_one(kind: str, found: Found) -> Workload:
    return Workload(kind, name_of(found), notes=notes_of(found))


def gang(kind: str, found: Found, groups: Sequence[GangGroup], **more: Any) -> Workload:
    """Return a gang of these groups; without groups its pods start one by one."""
    groups = tuple(group for group in groups if group.minimum)
    more.setdefault("asked", asked_of_owner(part_of(found, "metadata", "annotations")))
    return Workload(kind, name_of(found), groups, notes=notes_of(found), **more)


def suspended(kind: str, found: Found) -> Workload:
    """Return a suspended workload, whose pods its controller is about to delete."""
    name = name_of(found)
    text = (
        f"{kind} {name} is suspended: its pods are deleted, and created again when it is resumed."
    )
    return Workload(kind, name, wait=Unclear(SUSPENDED, text, is_answer=True))
