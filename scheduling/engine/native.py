"""Support for mypyc, which compiles the core's classes to native ones."""

import copyreg
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:
    Class = TypeVar("Class", bound=type)

    def mypyc_attr(**_: bool) -> Callable[[Class], Class]:
        """Pass options to mypyc; plain Python ignores them.

        `allow_interpreted_subclasses`: code outside the core subclasses the class, or copies its
        instances without calling `__init__`.
        """
        return lambda of: of


__all__ = ["copied_by_fields", "mypyc_attr"]


def copied_by_fields(*frozen: type) -> None:
    """Make `copy` and `pickle` build these frozen data classes through their constructors.

    Python would set the fields of an empty instance, which native classes do not allow.
    """
    for of in frozen:
        copyreg.pickle(of, _by_fields)


def _by_fields(value: Any) -> tuple[type, tuple[Any, ...]]:
    return type(value), tuple([getattr(value, field.name) for field in fields(value)])
