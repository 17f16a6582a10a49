"""Make the organisation what a document says, all or nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from scheduling.services.organisation import things
from scheduling.services.organisation.document import (
    Document,
    document_of,
    path_of,
    things_of,
)
from scheduling.services.organisation.plan import Applied, OrganisationPlan, ThingChange, plan
from scheduling.services.organisation.things import Key, Values, Writer
from tenants.errors import DomainError, FieldError, Invalid, NotAllowed
from tenants.models import AppliedDocument, User
from tenants.services.audit import Why
from tenants.services.transactions import checked, unit_of_work


@dataclass(frozen=True, slots=True)
class Applying:
    """How to apply a document.

    `name`: it is compared with what was last applied under that name. `prune`: delete what it no
    longer has. `overcommit`: promise more GPUs than there are.
    """

    name: str
    why: Why
    prune: bool = False
    overcommit: bool = False


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What was done, or would be, and warnings."""

    plan: OrganisationPlan
    warnings: tuple[str, ...]


def export(actor: User) -> Document:
    """Return the whole organisation as a document, without fields that have their default.

    Raises NotAllowed.
    """
    _operators_only(actor)
    return document_of(things.read_all())


def apply(
    actor: User, applying: Applying, document: Mapping[str, Any], *, dry_run: bool = False
) -> ApplyResult:
    """Make the organisation what the document says (`plan`), all or nothing.

    The document's shape has been checked, and quotas are in milli-GPU (`things_of`). Raises
    NotAllowed, and Invalid with everything that stands in the way, each at its place in the
    document.
    """
    _operators_only(actor)
    if faults := [*applying.why.faults(required=True)]:
        raise Invalid.fields(faults)
    asked = things_of(document)
    writer = Writer(actor, applying.why, applying.overcommit)
    with unit_of_work(dry_run):
        memory = _locked(applying.name)
        applied = _applied(memory)
        found = plan(asked, applied, things.read_all(), prune=applying.prune)
        if faults := [*_missing(found.changes)]:
            raise Invalid.fields(faults)
        warnings = _done(writer, found.changes)
        _remember(memory, actor, asked, {key: applied[key] for key in found.kept})
    return ApplyResult(found, warnings)


def _done(writer: Writer, changes: Sequence[ThingChange]) -> tuple[str, ...]:
    """Make the changes. Retry those that fail after the others, as long as some succeed.

    One change may need another first, e.g. a quota that grows needs one beside it that shrinks.
    """
    warnings: list[str] = []
    while changes:
        failed: list[tuple[ThingChange, DomainError]] = []
        for change in changes:
            try:
                with transaction.atomic():
                    if change.after is None:
                        things.delete(writer, change.key)
                    else:
                        warnings += things.write(writer, change.key, change.after)
            except DomainError as error:
                failed.append((change, error))
        if len(failed) == len(changes):
            raise Invalid.fields([one for c, error in failed for one in _faults(c, error)])
        changes = [change for change, _ in failed]
    return tuple(warnings)


def _faults(change: ThingChange, error: DomainError) -> Iterator[FieldError]:
    """Yield the error at its place in the document."""
    at = path_of(change.key)
    if not error.errors:
        yield FieldError(at, error.detail)
    for one in error.errors:
        # The name of a thing is its key in the document.
        yield FieldError(at if one.path == ("name",) else (*at, *one.path), one.detail)


def _missing(changes: Iterable[ThingChange]) -> Iterator[FieldError]:
    for change in changes:
        if change.before is None and change.after is not None:
            for name in things.REQUIRED.get(change.key[0], ()):
                if name not in change.after:
                    detail = f"This {change.key[0]} is new: give its {name}."
                    yield FieldError((*path_of(change.key), name), detail)


def _locked(name: str) -> AppliedDocument:
    """Return, locked, what was last applied under the name; two who apply it at once take turns."""
    row = checked(AppliedDocument(name=name), name="name")
    row, _ = AppliedDocument.objects.get_or_create(name=row.name)
    return AppliedDocument.objects.select_for_update().get(pk=row.pk)


def _applied(memory: AppliedDocument) -> dict[Key, frozenset[str]]:
    return {tuple(key): frozenset(fields) for key, fields in memory.things}


def _remember(
    memory: AppliedDocument, actor: User, asked: Mapping[Key, Values], kept: Applied
) -> None:
    now = {key: sorted(values) for key, values in asked.items()}
    now |= {key: sorted(fields) for key, fields in kept.items()}
    memory.things = [[list(key), fields] for key, fields in sorted(now.items())]
    memory.applied_by = actor.get_username()
    memory.save()


def _operators_only(actor: User) -> None:
    if not actor.is_operator:
        raise NotAllowed(
            "Only operators can read and apply the whole organisation. Tenant admins can change "
            "their tenants, quotas and queues one by one."
        )
