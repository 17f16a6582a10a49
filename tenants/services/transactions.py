"""The one transaction of a use case, and its rehearsal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import IntegrityError, models, transaction

from tenants import texts
from tenants.errors import Conflict, FieldError, Invalid

M = TypeVar("M", bound=models.Model)


@contextmanager
def unit_of_work(dry_run: bool) -> Iterator[None]:
    """One transaction; with `dry_run` everything inside really happens and is then rolled back.

    A rehearsal by the real code cannot promise what the real run would refuse, and callbacks
    registered with `transaction.on_commit` never run in it.

    Raises Conflict when what it refers to was deleted meanwhile, or the reverse: databases look
    at references only at the commit.
    """
    try:
        with transaction.atomic():
            yield
            if dry_run:
                transaction.set_rollback(True)
    except IntegrityError as error:
        if not _breaks_reference(error):
            raise
        raise Conflict(
            "What this refers to was deleted meanwhile, or what it deletes is in use by now. "
            "Read it again."
        ) from error


def _breaks_reference(error: IntegrityError) -> bool:
    if isinstance(error, models.ProtectedError | models.RestrictedError):
        return True
    cause = error.__cause__
    postgres, sqlite = getattr(cause, "sqlstate", ""), getattr(cause, "sqlite_errorname", "")
    return postgres == "23503" or sqlite == "SQLITE_CONSTRAINT_FOREIGNKEY"


def checked(instance: M, **names: str) -> M:
    """The instance, when its fields obey the model's own validators; raises Invalid otherwise.

    `names` maps a model field to the name under which callers know it.
    """
    try:
        instance.clean_fields(exclude={f.name for f in instance._meta.fields if f.is_relation})
    except ValidationError as error:
        raise invalid_from(error, **names) from None
    return instance


def invalid_from(error: ValidationError, **names: str) -> Invalid:
    by_field = error.update_error_dict({})
    return Invalid.fields(
        [
            FieldError(() if field == NON_FIELD_ERRORS else (names.get(field, field),), _told(one))
            for field, faults in by_field.items()
            for one in faults
        ]
    )


def _told(fault: ValidationError) -> str:
    """One fault of a field in Kant's words."""
    text = texts.DJANGO.get(fault.code or "", fault.message)
    return str(text % fault.params if fault.params else text)
