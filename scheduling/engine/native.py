"""What the core says of its classes for the sake of mypyc, which makes them native."""

import copyreg
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:
    Class = TypeVar("Class", bound=type)

    def mypyc_attr(**_: bool) -> Callable[[Class], Class]:
        """`allow_interpreted_subclasses`: code outside of the core derives classes from it, or
        copies it without a call of `__init__`. It means nothing to Python."""
        return lambda of: of


__all__ = ["copied_by_fields", "mypyc_attr"]


def copied_by_fields(*frozen: type) -> None:
    """Copy and pickle these frozen data classes by making them anew: the fields of a native one
    cannot be set afterwards, as Python would."""
    for of in frozen:
        copyreg.pickle(of, _by_fields)


def _by_fields(value: Any) -> tuple[type, tuple[Any, ...]]:
    return type(value), tuple([getattr(value, field.name) for field in fields(value)])
