"""Add, change and remove the clusters that Kant schedules. Nothing here speaks to Kubernetes."""

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from scheduling.engine.states import OPEN
from scheduling.job_fields.definition import ANY_CLUSTER
from scheduling.job_fields.faults import Faults
from scheduling.job_fields.values import check_labels
from scheduling.kube.door.config import FORMS, check_written, own_namespace
from scheduling.kube.door.credentials import AccessRefused
from scheduling.kube.translate.labels import WrongRow, label_table
from scheduling.models import Cluster, Job
from scheduling.services.clusters import namespace_rights, node_groups, queue_map
from scheduling.services.common.doorbell import ring_after_commit
from scheduling.services.jobs.permitted import rule_faults
from tenants.errors import Conflict, FieldError, Invalid, NotAllowed, unknown_name
from tenants.models import Tenant, User
from tenants.services import audit
from tenants.services.transactions import checked, unit_of_work

FIELDS = (
    *("title", "access", "namespace", "label_map", "job_rules"),
    *("namespace_tenants", "queue_map", "labels", "node_groups", "provisioning_class"),
    *("takes_any", "is_active"),
)


def create_cluster(
    actor: User, name: str, values: Mapping[str, Any], *, source: str, dry_run: bool = False
) -> Cluster:
    """Create a cluster from its name and some of FIELDS (`access` is required).

    Raises NotAllowed, Invalid naming the field, Conflict.
    """
    _operators_only(actor)
    cluster = Cluster(name=name, **{f: values[f] for f in FIELDS if f in values})
    _check(cluster)
    with unit_of_work(dry_run):
        try:
            with transaction.atomic():
                cluster.save(force_insert=True)
        except IntegrityError:
            raise Conflict(f"There is already a cluster “{name}”. Choose another name.") from None
        audit.record(actor, "cluster.created", name, after=as_document(cluster), source=source)
    return cluster


def change_cluster(
    actor: User, cluster: Cluster, values: Mapping[str, Any], *, source: str, dry_run: bool = False
) -> Cluster:
    """Change some of FIELDS. An inactive cluster takes no new jobs and is left alone.

    Raises NotAllowed, Invalid naming the field, Conflict.
    """
    _operators_only(actor)
    before = as_document(cluster)
    chosen = {f: values[f] for f in FIELDS if f in values}
    for field, value in chosen.items():
        setattr(cluster, field, value)
    _check(cluster)
    with unit_of_work(dry_run):
        # Only these columns: the scheduler writes its own columns of the row.
        Cluster.objects.filter(id=cluster.pk).update(**chosen)
        audit.record(
            actor,
            "cluster.changed",
            cluster.name,
            before=before,
            after=as_document(cluster),
            source=source,
        )
        ring_after_commit(cluster.pk)
    return cluster


def delete_cluster(actor: User, cluster: Cluster, *, source: str, dry_run: bool = False) -> None:
    """Delete a cluster that never had a job; raise Conflict if it had."""
    _operators_only(actor)
    with unit_of_work(dry_run):
        jobs = Job.objects.filter(cluster=cluster)
        open_jobs = jobs.filter(state__in=list(OPEN)).count()
        if open_jobs:
            raise Conflict(
                f"“{cluster.name}” has {open_jobs} jobs that are not over. Cancel them, or wait "
                "until they end."
            )
        if jobs.exists():
            raise Conflict(
                f"“{cluster.name}” has jobs in its history, which is kept. Set is_active to false "
                "instead."
            )
        audit.record(
            actor, "cluster.deleted", cluster.name, before=as_document(cluster), source=source
        )
        ring_after_commit(cluster.pk)
        cluster.delete()


def as_document(cluster: Cluster) -> dict[str, Any]:
    return {"name": cluster.name, **{f: getattr(cluster, f) for f in FIELDS}}


def _check(cluster: Cluster) -> None:
    checked(cluster)
    faults = [
        *_access_faults(cluster.access),
        *rule_faults(cluster.job_rules),
        *namespace_rights.faults(cluster.namespace_tenants),
        *queue_map.faults(cluster.queue_map),
        *_label_faults(cluster.labels),
        *node_groups.faults(cluster.node_groups),
        *node_groups.class_faults(cluster.provisioning_class, cluster.node_groups),
    ]
    if cluster.name == ANY_CLUSTER:
        detail = (
            f"“{ANY_CLUSTER}” stands for the cluster that starts a job first. Choose another name."
        )
        faults.append(FieldError(("name",), detail))
    if theirs := Tenant.objects.filter(namespace=cluster.namespace).first():
        detail = f"It is the namespace of tenant “{theirs.name}”. Choose another one."
        faults.append(FieldError(("namespace",), detail))
    if cluster.namespace == own_namespace():
        detail = (
            f"Kant itself runs in {cluster.namespace}: jobs could use its service account. Choose "
            "another one."
        )
        faults.append(FieldError(("namespace",), detail))
    try:
        label_table(cluster.label_map)
    except WrongRow as wrong:
        faults.append(FieldError(("label_map", wrong.fact), f"{wrong}."))
    if faults:
        raise Invalid.fields(faults)


def _access_faults(access: Any) -> list[FieldError]:
    """Return the faults of an access document.

    It must name one way to reach the cluster. Secrets stay in files, in folders that the deployment
    allows.
    """
    forms = [form for form in FORMS if form in access] if isinstance(access, dict) else []
    if len(forms) != 1:
        detail = 'Give one of {"kubeconfig": path}, {"server": address}, {"in_cluster": true}.'
        return [FieldError(("access",), detail)]
    known, beside = sorted(FORMS[forms[0]]), f"beside {forms[0]}"
    faults = [
        FieldError(("access", name), unknown_name("field", name, known, beside))
        for name in access
        if name not in FORMS[forms[0]]
    ]
    for name, value in access.items():
        good = value is True if name == "in_cluster" else isinstance(value, str) and bool(value)
        if not good and name in FORMS[forms[0]]:
            wanted = "true" if name == "in_cluster" else "a text"
            faults.append(FieldError(("access", name), f"Must be {wanted}."))
    if not faults:
        try:
            check_written(access)
        except AccessRefused as error:
            # In a kubeconfig, the fault may be in a file that it names.
            faults.append(FieldError(("access", error.field.partition(",")[0]), f"{error}."))
    return faults


def _label_faults(labels: Any) -> list[FieldError]:
    """Return the faults of a cluster's labels, which follow the rules of node labels."""
    if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
        return [FieldError(("labels",), "Must be an object: {label: text}.")]
    found = Faults()
    check_labels(labels, ("labels",), found)
    return found.found


def _operators_only(actor: User) -> None:
    if not actor.is_operator:
        raise NotAllowed("Only operators can change clusters.")
