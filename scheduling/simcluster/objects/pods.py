"""Rules of pods on create and update: defaults, admission, validation, what may change."""

from functools import lru_cache
from typing import Any

from scheduling.simcluster.objects.kinds import PODS
from scheduling.simcluster.objects.meta import Causes, Obj, label_causes, name_causes, rfc3339
from scheduling.simcluster.objects.quantities import amount, is_extended, parse
from scheduling.simcluster.objects.status import (
    cause,
    forbidden,
    forbidden_field,
    invalid,
    invalid_value,
    not_supported,
    required,
)
from scheduling.simcluster.objects.store import Store

_GONE_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_UPDATES = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be "
    "set to 1 if it was previously negative)"
)
_STANDARD = ("cpu", "memory", "ephemeral-storage")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")


# --- create ---------------------------------------------------------------------------------
def prepare_create(obj: Obj, store: Store, now: float) -> None:
    """Default, admit and validate a new pod in place; its status starts as Pending.

    Raises:
        ApiError: 403 for an unknown priority class, 422 with every field error.
    """
    name = obj["metadata"]["name"]
    spec = obj.get("spec") or {}
    obj["spec"] = spec
    _default_spec(spec)
    _resolve_priority(name, spec, store)
    if causes := _spec_causes(spec):
        raise invalid(PODS, name, causes)
    _add_default_tolerations(spec)
    obj["metadata"]["generation"] = 1
    obj["status"] = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        obj["status"]["conditions"] = [_gated(now)]
    obj["status"]["qosClass"] = _qos_class(spec)


def _gated(now: float) -> Obj:
    return {
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": rfc3339(now),
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }


def _default_spec(spec: Obj) -> None:
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        _default_container(container)
        for port in container.get("ports") or ():
            port.setdefault("protocol", "TCP")
            if spec.get("hostNetwork") and not port.get("hostPort"):
                port["hostPort"] = port["containerPort"]
    for field, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("enableServiceLinks", True),
    ):
        if spec.get(field) in (None, ""):
            spec[field] = value
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}


def _default_container(container: Obj) -> None:
    image = container.get("image") or ""
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    if not container.get("imagePullPolicy"):
        latest = tag in ("", "latest") and "@" not in image
        container["imagePullPolicy"] = "Always" if latest else "IfNotPresent"
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.get("resources") or {}
    container["resources"] = resources
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **(resources.get("requests") or {})}


def _resolve_priority(name: str, spec: Obj, store: Store) -> None:
    """Act as the Priority admission plugin: set value and preemption policy by the pod's class."""
    wanted = spec.get("priorityClassName")
    classes = store.objects["priorityclasses"]
    if wanted:
        found = classes.get(wanted)
        if found is None:
            raise forbidden(PODS, name, f"no PriorityClass with name {wanted} was found")
        chosen: Obj = found.decode()
    else:
        every = (c.decode() for c in classes.values())
        defaults = [c for c in every if c.get("globalDefault")]
        chosen = min(defaults, key=lambda c: c["value"]) if defaults else {"value": 0}
        if defaults:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    if spec.get("priority") not in (None, chosen["value"]):
        raise forbidden(
            PODS,
            name,
            f"the integer value of priority ({spec['priority']}) must not be provided in pod "
            f"spec; priority admission controller computed {chosen['value']} from the given "
            "PriorityClass name",
        )
    spec["priority"] = chosen["value"]
    if not spec.get("preemptionPolicy"):
        spec["preemptionPolicy"] = chosen.get("preemptionPolicy", "PreemptLowerPriority")


def _add_default_tolerations(spec: Obj) -> None:
    """Act as the DefaultTolerationSeconds admission plugin: five minutes on a lost node."""
    tolerations = list(spec.get("tolerations") or ())
    for key in _GONE_NODE:
        covered = any(
            t.get("key") in (key, None, "") and t.get("effect") in ("NoExecute", None, "")
            for t in tolerations
        )
        if not covered:
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
            )
    if tolerations:
        spec["tolerations"] = tolerations


def _qos_class(spec: Obj) -> str:
    guaranteed, any_set = True, False
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container["resources"]
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            any_set = any_set or name in limits or name in requests
            guaranteed = guaranteed and name in limits and limits[name] == requests.get(name)
    return "BestEffort" if not any_set else "Guaranteed" if guaranteed else "Burstable"


# --- validation -----------------------------------------------------------------------------
def _spec_causes(spec: Obj) -> Causes:
    causes: Causes = []
    if not spec.get("containers"):
        causes.append(required("spec.containers"))
    for at, container in enumerate(spec.get("containers") or ()):
        causes += _container_causes(container, f"spec.containers[{at}]")
    for at, container in enumerate(spec.get("initContainers") or ()):
        causes += _container_causes(container, f"spec.initContainers[{at}]")
    names = [c.get("name") for c in spec.get("containers") or ()]
    causes += [
        cause("FieldValueDuplicate", f"spec.containers[{at}].name", f'Duplicate value: "{name}"')
        for at, name in enumerate(names)
        if name and name in names[:at]
    ]
    if spec["restartPolicy"] not in _RESTART_POLICIES:
        causes.append(not_supported("spec.restartPolicy", spec["restartPolicy"], _RESTART_POLICIES))
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    if spec.get("nodeName"):
        causes += name_causes(spec["nodeName"], "spec.nodeName")
        if spec.get("schedulingGates"):
            causes.append(
                forbidden_field(
                    "spec.nodeName",
                    "cannot be set until all schedulingGates have been cleared",
                )
            )
    causes += label_causes(spec.get("nodeSelector") or {}, "spec.nodeSelector")
    for at, toleration in enumerate(spec.get("tolerations") or ()):
        causes += _toleration_causes(toleration, f"spec.tolerations[{at}]")
    return causes


def _container_causes(container: Obj, at: str) -> Causes:
    causes: Causes = []
    name = container.get("name")
    causes += name_causes(name, f"{at}.name", label=True) if name else [required(f"{at}.name")]
    if not container.get("image"):
        causes.append(required(f"{at}.image"))
    limits = container["resources"].get("limits") or {}
    requests = container["resources"].get("requests") or {}
    for part, resources in (("limits", limits), ("requests", requests)):
        for resource, text in resources.items():
            causes += [
                invalid_value(f"{at}.resources.{part}[{resource}]", value, why)
                for value, why in _amount_problems(resource, text)
            ]
    if causes:
        return causes
    for resource, text in requests.items():
        field = f"{at}.resources.requests"
        if resource in limits and amount(resource, text) > amount(resource, limits[resource]):
            causes.append(
                invalid_value(
                    field,
                    text,
                    f"must be less than or equal to {resource} limit of {limits[resource]}",
                )
            )
        elif is_extended(resource) and resource not in limits:
            causes.append(
                required(
                    f"{at}.resources.limits", "Limit must be set for non overcommitable resources"
                )
            )
        elif is_extended(resource) and amount(resource, text) != amount(resource, limits[resource]):
            causes.append(
                invalid_value(
                    field, text, f"must be equal to {resource} limit of {limits[resource]}"
                )
            )
    return causes


@lru_cache(maxsize=4096)
def _amount_problems(resource: str, text: str) -> tuple[tuple[str, str], ...]:
    """Return (refused value, reason) for one amount; cached, as pods repeat the same few."""
    value = parse(text)
    if "/" not in resource and resource not in _STANDARD and not resource.startswith("hugepages-"):
        return (
            (resource, "must be a standard resource type or fully qualified"),
            (resource, "must be a standard resource for containers"),
        )
    if value < 0:
        return ((text, "must be greater than or equal to 0"),)
    if is_extended(resource) and value != int(value):
        return ((text, "must be an integer"),)
    return ()


def _toleration_causes(toleration: Obj, at: str) -> Causes:
    operator = toleration.get("operator") or "Equal"
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    causes: Causes = []
    if operator not in ("Exists", "Equal"):
        causes.append(not_supported(f"{at}.operator", operator, ("Equal", "Exists")))
    if operator == "Exists" and toleration.get("value"):
        causes.append(
            invalid_value(
                f"{at}.operator",
                toleration["value"],
                "value must be empty when `operator` is 'Exists'",
            )
        )
    if toleration.get("effect") and toleration["effect"] not in effects:
        causes.append(not_supported(f"{at}.effect", toleration["effect"], effects))
    return causes


# --- update ---------------------------------------------------------------------------------
def prepare_update(new: Obj, old: Obj) -> None:
    """Prepare an update; its status stays the old one.

    Raises ApiError 422 if something immutable changes.
    """
    name = old["metadata"]["name"]
    spec, before = new.get("spec") or {}, old["spec"]
    new["spec"], new["status"] = spec, old["status"]
    _add_default_tolerations(spec)
    causes: Causes = []
    if len(spec.get("containers") or ()) != len(before["containers"]):
        causes.append(
            forbidden_field("spec.containers", "pod updates may not add or remove containers")
        )
    gates = [g["name"] for g in spec.get("schedulingGates") or ()]
    had = [g["name"] for g in before.get("schedulingGates") or ()]
    if added := [g for g in gates if g not in had]:
        causes.append(
            forbidden_field(
                f"spec.schedulingGates[{gates.index(added[0])}].name",
                f"only deletion is allowed, but found new scheduling gate '{added[0]}'",
            )
        )
    if any(t not in (spec.get("tolerations") or ()) for t in before.get("tolerations") or ()):
        causes.append(
            forbidden_field(
                "spec.tolerations",
                "existing toleration can not be modified except its tolerationSeconds",
            )
        )
    if not causes and _frozen(spec, gated=bool(had)) != _frozen(before, gated=bool(had)):
        causes.append(forbidden_field("spec", _UPDATES))
    if causes:
        raise invalid(PODS, name, causes)
    if spec != before:
        new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
    if had and not gates:
        # The API server leaves the condition to the scheduler, which sets Unschedulable or binds.
        spec.pop("schedulingGates", None)


def _frozen(spec: Obj, *, gated: bool) -> Obj:
    """Return the part of a spec that an update may not change."""
    out: dict[str, Any] = {
        k: v
        for k, v in spec.items()
        if k not in ("tolerations", "activeDeadlineSeconds", "schedulingGates")
        and not (gated and k in ("nodeSelector", "affinity"))
        and v not in (None, [], {})
    }
    for field in ("containers", "initContainers"):
        if field in out:
            out[field] = [{k: v for k, v in c.items() if k != "image"} for c in out[field]]
    return out
