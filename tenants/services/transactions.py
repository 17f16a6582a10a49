"""The one transaction of a use case, and its dry run."""

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
    """Open one transaction; with `dry_run` everything inside really happens and is then rolled
    back.

    Because a dry run executes the real code, it cannot promise what the real run would refuse.
    Callbacks registered with `transaction.on_commit` do not run in it.

    Raises Conflict when a row that this refers to was deleted meanwhile, or the reverse: databases
    check references only at the commit.
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
            "Something that this refers to has just been deleted, or what it deletes is now in "
            "use. Read it again."
        ) from error


def _breaks_reference(error: IntegrityError) -> bool:
    if isinstance(error, models.ProtectedError | models.RestrictedError):
        return True
    cause = error.__cause__
    postgres, sqlite = getattr(cause, "sqlstate", ""), getattr(cause, "sqlite_errorname", "")
    return postgres == "23503" or sqlite == "SQLITE_CONSTRAINT_FOREIGNKEY"


def checked(instance: M, **names: str) -> M:
    """Return the instance if its fields satisfy the model's validators; raise Invalid otherwise.

    `names` maps a model field to the name that callers know.
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
    """Return one error of a field in Kant's words."""
    text = texts.DJANGO.get(fault.code or "", fault.message)
    return str(text % fault.params if fault.params else text)
