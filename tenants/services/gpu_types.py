"""GPU types: the names on which quota is given."""

import re

from django.db import IntegrityError, transaction

from tenants import facts
from tenants.errors import Conflict, Invalid, NotAllowed
from tenants.models import GpuType, Quota, User
from tenants.services import audit, locks
from tenants.services.transactions import checked, unit_of_work

NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def create_gpu_type(
    actor: User,
    name: str,
    *,
    title: str = "",
    memory_mib: int = 0,
    source: str,
    dry_run: bool = False,
) -> GpuType:
    """Create a GPU type under the name that nodes report. Raises NotAllowed, Invalid, Conflict."""
    _operators_only(actor)
    if not NAME.fullmatch(name):
        raise Invalid.field(
            "name", "Use letters, digits and “-_.”, at most 63, as nodes report the model."
        )
    gpu_type = checked(GpuType(name=name, title=title, memory_mib=memory_mib))
    with unit_of_work(dry_run):
        try:
            with transaction.atomic():
                gpu_type.save(force_insert=True)
        except IntegrityError:
            raise Conflict(f"There is already a GPU type “{name}”.") from None
        audit.record(
            actor, "gpu-type.created", name, after={"memory_mib": memory_mib}, source=source
        )
    return gpu_type


def change_gpu_type(
    actor: User,
    gpu_type: GpuType,
    *,
    title: str | None = None,
    memory_mib: int | None = None,
    source: str,
    dry_run: bool = False,
) -> GpuType:
    """Change what is not None. The name cannot change: nodes, quotas and jobs refer to it."""
    _operators_only(actor)
    before = {"title": gpu_type.title, "memory_mib": gpu_type.memory_mib}
    if title is not None:
        gpu_type.title = title
    if memory_mib is not None:
        gpu_type.memory_mib = memory_mib
    checked(gpu_type)
    after = {"title": gpu_type.title, "memory_mib": gpu_type.memory_mib}
    with unit_of_work(dry_run):
        GpuType.objects.filter(id=gpu_type.pk).update(**after)
        audit.record(
            actor, "gpu-type.changed", gpu_type.name, before=before, after=after, source=source
        )
    return gpu_type


def delete_gpu_type(actor: User, gpu_type: GpuType, *, source: str, dry_run: bool = False) -> None:
    """Delete a GPU type. Raises Conflict while a quota, a node or an open job refers to it."""
    _operators_only(actor)
    with unit_of_work(dry_run):
        locks.alone(GpuType, gpu_type.pk)
        tenants = Quota.objects.filter(gpu_type=gpu_type).values_list("tenant__name", flat=True)
        if names := list(tenants[:5]):
            raise Conflict(
                f"Tenants have quota for “{gpu_type.name}” ({', '.join(names)}). "
                "Delete these quotas first."
            )
        if facts.scheduling().gpu_type_in_use(gpu_type.name):
            raise Conflict(f"“{gpu_type.name}” is in use by nodes or by jobs that are not over.")
        audit.record(
            actor,
            "gpu-type.deleted",
            gpu_type.name,
            before={"title": gpu_type.title, "memory_mib": gpu_type.memory_mib},
            source=source,
        )
        gpu_type.delete()


def _operators_only(actor: User) -> None:
    if not actor.is_operator:
        raise NotAllowed("Only operators can change GPU types.")
