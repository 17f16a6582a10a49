"""The one transaction of a use case, and its rehearsal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import models, transaction

from tenants.errors import FieldError, Invalid

M = TypeVar("M", bound=models.Model)


@contextmanager
def unit_of_work(dry_run: bool) -> Iterator[None]:
    """One transaction; with `dry_run` everything inside really happens and is then rolled back.

    A rehearsal by the real code cannot promise what the real run would refuse, and callbacks
    registered with `transaction.on_commit` never run in it.
    """
    with transaction.atomic():
        yield
        if dry_run:
            transaction.set_rollback(True)


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
    by_field: dict[str, Any] = getattr(error, "message_dict", {NON_FIELD_ERRORS: error.messages})
    return Invalid.fields(
        [
            FieldError(() if field == NON_FIELD_ERRORS else (names.get(field, field),), message)
            for field, messages in by_field.items()
            for message in messages
        ]
    )
