"""Job templates of a tenant, which its admins write and its members, and those below it, read."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from scheduling.job_fields.secrets import looks_secret, pod_set_without_secrets
from scheduling.models import JobTemplate
from scheduling.services.jobs.validation import job_spec, without_nulls
from tenants.errors import Conflict, FieldError, Invalid, NotAllowed, NotFound
from tenants.models import Tenant, User
from tenants.permissions import Access, access_of, lineage
from tenants.selectors import parents_by_id
from tenants.services import audit, locks
from tenants.services.transactions import unit_of_work

# Each is a line of the list beside the submission form.
MOST_TEMPLATES = 50
LONGEST_DESCRIPTION = 200
# What belongs to one job alone: whose it is, when it starts, and which jobs it waits for.
LEFT_OUT = ("name", "tenant", "not_before", "after", "after_ok", "held")


def visible_templates(user: User) -> QuerySet[JobTemplate]:
    """Return the templates of the tenants that the user may see, and of all above them."""
    rows = JobTemplate.objects.select_related("tenant", "author")
    seen = access_of(user).visible_tenants()
    if seen is None:
        return rows
    parents = parents_by_id()
    return rows.filter(tenant__in={above for one in seen for above in lineage(parents, one)})


def template_by_id(user: User, template_id: Any) -> JobTemplate:
    """Return a template. Raises NotFound also if the user may not see it."""
    found = visible_templates(user).filter(pk=template_id).first()
    if found is None:
        raise NotFound(
            f"There is no template {template_id} that you may see. GET /api/v1/templates lists "
            "yours."
        )
    return found


def kept_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a template keeps of a job document.

    It keeps neither LEFT_OUT nor variables and annotations that look like secrets.
    """
    kept = {n: v for n, v in without_nulls(document).items() if n not in LEFT_OUT}
    if "pod_sets" in kept:
        kept["pod_sets"] = [_without_secret_values(one) for one in kept["pod_sets"]]
    return _without_secret_values(kept)


def save_template(
    actor: User,
    tenant: Tenant,
    name: str,
    document: Mapping[str, Any],
    *,
    description: str = "",
    source: str,
    dry_run: bool = False,
) -> JobTemplate:
    """Keep a job document, whose types have been checked, under a new name.

    Raises NotFound, NotAllowed, Invalid naming each fault, Conflict if the name is taken or the
    tenant has MOST_TEMPLATES.
    """
    _may_write(access_of(actor), tenant)
    kept = kept_of(document)
    _refuse(_faults(name, description, kept))
    template = JobTemplate(
        tenant=tenant,
        name=name,
        description=description.strip(),
        document=kept,
        author=actor,
        author_name=actor.get_username(),
    )
    with unit_of_work(dry_run):
        if not locks.in_turn(Tenant, [tenant.pk]):
            raise NotFound(f"There is no tenant “{tenant.name}” that you may see.")
        if JobTemplate.objects.filter(tenant=tenant).count() >= MOST_TEMPLATES:
            raise Conflict(
                f"“{tenant.name}” has {MOST_TEMPLATES} templates, which is the limit. Delete one "
                "first."
            )
        try:
            with transaction.atomic():
                template.save(force_insert=True)
        except IntegrityError:
            raise Conflict(
                f"Tenant “{tenant.name}” already has a template “{name}”. Choose another name."
            ) from None
        _record(actor, "template.created", template, None, _told(template), source)
    return template


def change_template(
    actor: User,
    template: JobTemplate,
    *,
    description: str | None = None,
    document: Mapping[str, Any] | None = None,
    source: str,
    dry_run: bool = False,
) -> JobTemplate:
    """Change the description or document (None = unchanged); the actor becomes its author.

    Raises NotFound, NotAllowed, Invalid naming each fault.
    """
    _may_write(access_of(actor), template.tenant)
    with unit_of_work(dry_run):
        found = _locked(template)
        before = _told(found)
        if description is not None:
            found.description = description.strip()
        if document is not None:
            found.document = kept_of(document)
        _refuse(_faults(found.name, found.description, found.document))
        found.author, found.author_name = actor, actor.get_username()
        found.save()
        _record(actor, "template.changed", found, before, _told(found), source)
    return found


def delete_template(
    actor: User, template: JobTemplate, *, source: str, dry_run: bool = False
) -> None:
    """Delete a template. Jobs made from it stay as they are. Raises NotFound, NotAllowed."""
    _may_write(access_of(actor), template.tenant)
    with unit_of_work(dry_run):
        found = _locked(template)
        _record(actor, "template.deleted", found, _told(found), None, source)
        found.delete()


def _may_write(access: Access, tenant: Tenant) -> None:
    if not access.may_administer(tenant.pk):
        raise NotAllowed(
            "Only tenant admins of the template's tenant or of a tenant above it, and operators, "
            "can change or delete a template."
        )


def _locked(template: JobTemplate) -> JobTemplate:
    locks.keep(Tenant, [template.tenant_id])
    rows = JobTemplate.objects.select_for_update(of=("self",)).select_related("tenant", "author")
    found = rows.filter(pk=template.pk).first()
    if found is None:
        raise NotFound(f"Template “{template.name}” was deleted meanwhile.")
    return found


def _without_secret_values(item: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(item)
    for field in ("env", "annotations"):
        if field in kept:
            kept[field] = {n: v for n, v in kept[field].items() if not looks_secret(n, v)}
            if not kept[field]:
                del kept[field]
    return kept


def _faults(name: str, description: str, document: Mapping[str, Any]) -> list[FieldError]:
    faults = []
    if len(description) > LONGEST_DESCRIPTION or not description.isprintable():
        text = f"Use one line of at most {LONGEST_DESCRIPTION} characters."
        faults.append(FieldError(("description",), text))
    try:
        job_spec({**document, "name": name, "tenant": "x"})
    except Invalid as error:
        for one in error.errors:
            of_name = one.path[:1] == ("name",)
            faults.append(one if of_name else FieldError(("document", *one.path), one.detail))
    sets = document.get("pod_sets")
    places: Iterable[tuple[tuple[str | int, ...], Mapping[str, Any]]] = (
        [((), document)]
        if sets is None
        else [(("pod_sets", at), one) for at, one in enumerate(sets)]
    )
    for path, item in places:
        shown = pod_set_without_secrets(item)
        for field in sorted(item):
            if shown[field] != item[field]:
                text = (
                    "This looks like a secret, and others can read templates. Keep it in a "
                    "Kubernetes secret."
                )
                faults.append(FieldError(("document", *path, field), text))
    return faults


def _refuse(faults: list[FieldError]) -> None:
    if faults:
        raise Invalid.fields(faults)


def _record(
    actor: User,
    action: str,
    one: JobTemplate,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    source: str,
) -> None:
    audit.record(
        actor,
        action,
        f"{one.tenant.name} / {one.name}",
        tenant=one.tenant,
        before=before,
        after=after,
        source=source,
    )


def _told(template: JobTemplate) -> dict[str, Any]:
    return {"description": template.description, "document": template.document}
