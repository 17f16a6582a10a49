"""What jobs may name on a cluster, such as tolerations, service accounts and priorities.

Operators set these rules (`Cluster.job_rules`). An existing job continues as it is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, NamedTuple

from scheduling.engine.types import Toleration
from scheduling.job_fields.definition import JobDocument, PodSetDocument
from scheduling.job_fields.parts import limits_of
from scheduling.services.jobs.validation import JobSpec
from tenants import texts
from tenants.errors import FieldError, Invalid, Path, unknown_name

SWITCHES = ("toleration_of_everything", "host_network", "privileged")
MOST_NAMES, MOST_OF_A_NAME = 256, 400
WHERE = "job_rules of the cluster"


@dataclass(frozen=True, slots=True)
class JobRules:
    """The rules of a cluster; the defaults apply where `Cluster.job_rules` has no entry.

    A name that ends with `*` stands for all names that begin with it.

    `denied_labels`: NAME or NAME=VALUE. `service_accounts`, `max_priority`: None = any.
    """

    # Taints of nodes that no job belongs on, and of cordoned nodes.
    denied_tolerations: tuple[str, ...] = (
        "node-role.kubernetes.io/*",
        "node.kubernetes.io/unschedulable",
    )
    # A toleration without a key tolerates these, too.
    toleration_of_everything: bool = False
    service_accounts: tuple[str, ...] | None = None
    # Networks and devices that the runtime would give a pod beyond what Kubernetes counted, and
    # profiles that keep a container away from the node.
    denied_annotations: tuple[str, ...] = (
        "k8s.v1.cni.cncf.io/*",
        "v1.multus-cni.io/*",
        "cdi.k8s.io/*",
        "container.apparmor.security.beta.kubernetes.io/*",
        "seccomp.security.alpha.kubernetes.io/*",
        "container.seccomp.security.alpha.kubernetes.io/*",
    )
    # The Services and disruption budgets of Kant itself would select such pods.
    denied_labels: tuple[str, ...] = ("app.kubernetes.io/name=kant",)
    # Container runtimes give a pod devices by these, whichever the pod was assigned.
    denied_env: tuple[str, ...] = (
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_MIG_*",
        "NVIDIA_IMEX_CHANNELS",
        "AMD_VISIBLE_DEVICES",
        "ASCEND_VISIBLE_DEVICES",
        "HABANA_VISIBLE_DEVICES",
    )
    max_priority: int | None = None
    # The remaining rules are for pods that Kant makes with its own account: neither the rights of
    # the submitter nor the Pod Security of another namespace limits these. Plain pods have passed
    # admission.
    host_network: bool = False
    # Privileged containers, and those without a seccomp profile.
    privileged: bool = False
    # What containers may add to the runtime's default; RDMA pins memory.
    capabilities: tuple[str, ...] = ("IPC_LOCK", "NET_BIND_SERVICE")
    denied_runtime_classes: tuple[str, ...] = ()
    # With these, a node would evict its own components before a job.
    denied_priority_classes: tuple[str, ...] = ("system-*",)


_FIELDS = tuple(field.name for field in fields(JobRules))


def rules_of(document: Mapping[str, Any]) -> JobRules:
    """Return the rules of a valid document; fields that this version does not know are ignored."""
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in document.items()
        if name in _FIELDS
    }
    return JobRules(**known)


def effective_rules(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return all rules that a document means, as JSON."""
    rules = asdict(rules_of(document))
    return {name: list(v) if isinstance(v, tuple) else v for name, v in rules.items()}


def rule_faults(document: Any) -> Iterator[FieldError]:
    """Yield the faults of a document of rules, below `job_rules`."""
    at: Path = ("job_rules",)
    if not isinstance(document, dict):
        yield FieldError(at, f"Must be an object with any of {', '.join(_FIELDS)}.")
        return
    for name, value in document.items():
        if name not in _FIELDS:
            yield FieldError((*at, name), unknown_name("field", name, _FIELDS))
        elif detail := _fault_of(name, value):
            yield FieldError((*at, name), detail)


def _fault_of(name: str, value: Any) -> str:
    if name in SWITCHES:
        return "" if isinstance(value, bool) else "Must be true or false."
    if name == "max_priority":
        least, most = limits_of(JobDocument, "priority")
        good = value is None or (
            isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        )
        return "" if good else f"{texts.between(least, most)} Null is no limit."
    if name == "service_accounts" and value is None:
        return ""
    good = (
        isinstance(value, list)
        and len(value) <= MOST_NAMES
        and all(isinstance(n, str) and n and len(n) <= MOST_OF_A_NAME for n in value)
        and not any("*" in n[:-1] for n in value)
    )
    return (
        ""
        if good
        else (
            f"Must be a list of at most {MOST_NAMES} names; a * is allowed only at the end of a "
            "name."
        )
    )


def refuse_what_may_not_be_named(document: Mapping[str, Any], spec: JobSpec) -> None:
    """Raise Invalid naming each field of the job that the rules do not allow."""
    rules = rules_of(document)
    found = [*faults_of_job(rules, spec.job.priority, spec.job.labels)]
    for index, (asked, pods) in enumerate(zip(spec.pod_sets, spec.job.pod_sets, strict=True)):
        named = NamedInJob(
            asked.nodes.tolerations,
            pods.service_account,
            pods.annotations,
            pods.env,
            pods.env_from_secrets,
        )
        path = partial(spec.path, index)
        found += [*faults_of_pods(rules, named, path), *_faults_of_run(rules, pods, path)]
    if found:
        raise Invalid.fields(found)


def refuse_priority(document: Mapping[str, Any], priority: int) -> None:
    """Raise Invalid if jobs of the cluster may not ask for this priority."""
    if fault := _of_priority(rules_of(document), priority):
        raise Invalid.fields([fault])


def _of_priority(rules: JobRules, priority: int) -> FieldError | None:
    if rules.max_priority is None or priority <= rules.max_priority:
        return None
    return FieldError(
        ("priority",),
        f"{priority} is above the highest priority on this cluster, {rules.max_priority}. Ask "
        f"for less, or ask an operator to change max_priority in {WHERE}.",
    )


class NamedInJob(NamedTuple):
    """What pods name that rules may deny; where there are values, only the names."""

    tolerations: Iterable[Toleration]
    service_account: str
    annotations: Iterable[str]
    env: Iterable[str]
    env_from_secrets: Iterable[str] = ()


def faults_of_job(
    rules: JobRules, priority: int | None, labels: Mapping[str, str]
) -> Iterator[FieldError]:
    """Yield what the rules deny of a whole job. `priority` None: it is not checked."""
    if priority is not None and (fault := _of_priority(rules, priority)):
        yield fault
    for name, value in labels.items():
        if any(_is_among(each, rules.denied_labels) for each in (name, f"{name}={value}")):
            yield _refused(("labels", name), f"The label {name}={value}", "denied_labels")


def faults_of_pods(
    rules: JobRules, named: NamedInJob, path: Callable[[str], Path]
) -> Iterator[FieldError]:
    """Yield what the rules deny of pods. `path`: the place of one of their fields."""
    for at, each in enumerate(named.tolerations):
        here = (*path("tolerations"), at)
        if not each.key and not rules.toleration_of_everything:
            yield FieldError(
                here,
                "A toleration without a key tolerates every taint, also that of cordoned nodes. "
                "Name a key, or ask an operator to allow it: toleration_of_everything in "
                f"{WHERE}.",
            )
        elif each.key and _is_among(each.key, rules.denied_tolerations):
            text = f"The toleration of {each.key}"
            yield _refused((*here, "key"), text, "denied_tolerations")
    account = named.service_account
    allowed = rules.service_accounts
    if account and allowed is not None and not _is_among(account, allowed):
        yield FieldError(
            path("service_account"),
            f"“{account}” is not among those that jobs of this cluster may name "
            f"({', '.join(allowed) or 'none'}). Choose one of those, or ask an operator to add "
            f"it to service_accounts in {WHERE}.",
        )
    for name in named.annotations:
        if _is_among(name, rules.denied_annotations):
            here = (*path("annotations"), name)
            yield _refused(here, f"The annotation {name}", "denied_annotations")
    for field, names in (("env", named.env), ("env_from_secrets", named.env_from_secrets)):
        for name in names:
            if _is_among(name, rules.denied_env):
                yield _refused((*path(field), name), f"The variable {name}", "denied_env")


def _faults_of_run(
    rules: JobRules, pods: PodSetDocument, path: Callable[[str], Path]
) -> Iterator[FieldError]:
    """Yield what the rules deny of how containers run."""
    if pods.host_network and not rules.host_network:
        yield _refused(path("host_network"), "The network of the node", "host_network")
    rights: Mapping[str, Any] = pods.security_context  # type: ignore[assignment]
    here = path("security_context")
    if rights.get("privileged") and not rules.privileged:
        yield _refused((*here, "privileged"), "Privileged containers", "privileged")
    if rights.get("seccomp") == "Unconfined" and not rules.privileged:
        yield _refused((*here, "seccomp"), "Containers without a seccomp profile", "privileged")
    for index, name in enumerate(rights.get("add_capabilities", ())):
        if not _is_among(name, rules.capabilities):
            at = (*here, "add_capabilities", index)
            yield _refused(at, f"The capability {name}", "capabilities")
    for field, name, denied in (
        ("runtime_class", pods.runtime_class, rules.denied_runtime_classes),
        ("priority_class", pods.priority_class, rules.denied_priority_classes),
    ):
        if name and _is_among(name, denied):
            text = f"The {field.replace('_', ' ')} {name}"
            yield _refused(path(field), text, f"denied_{field}es")


def _refused(at: Path, what: str, rule: str) -> FieldError:
    return FieldError(
        at,
        f"{what} may not be set by jobs of this cluster. Leave it out, or ask an operator to "
        f"change {rule} in {WHERE}.",
    )


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
    )
