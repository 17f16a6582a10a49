"""What can go wrong in a use case. Services raise these errors; REST and pages render them.

None of them knows HTTP. Each says what is wrong and what to do about it.
"""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
LONGEST_NAME = 100  # characters that are compared with known names


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: its path in the submitted document, and a sentence that says how to fix
    it."""

    path: Path
    detail: str

    @property
    def field(self) -> str:
        """The path with dots, as forms name their fields: `pod_sets.0.gpus`."""
        return ".".join(str(part) for part in self.path)


def unknown_name(what: str, name: object, known: Collection[str], where: str = "here") -> str:
    """Return what to say of a name that nobody knows: with the closest known name, if one is close,
    and all of them. `what` it names, e.g. a field; `where` the names are known."""
    close = difflib.get_close_matches(str(name)[:LONGEST_NAME], known, n=1)
    guess = f" Did you mean {close[0]}?" if close else ""
    return f"Unknown {what}.{guess} Known {where}: {', '.join(known) or 'none'}."


class DomainError(Exception):
    """Base of all errors. `code` is a stable name for programs, `detail` a sentence for people."""

    code = "error"

    def __init__(
        self, detail: str, *, code: str | None = None, errors: Sequence[FieldError] = ()
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.errors = tuple(errors)

    @property
    def first_detail(self) -> str:
        """The sentence of the first wrong field, else the general one; for places with room for one
        only."""
        return self.errors[0].detail if self.errors else self.detail

    @property
    def details(self) -> list[str]:
        """The sentences of all wrong fields, else the general one."""
        return [error.detail for error in self.errors] or [self.detail]

    @property
    def by_field(self) -> dict[str, list[str]]:
        """{dotted field: sentences}, as forms need it."""
        found: dict[str, list[str]] = {}
        for error in self.errors:
            found.setdefault(error.field, []).append(error.detail)
        return found


class Invalid(DomainError):
    """Values that are wrong by themselves or in combination; nothing was changed."""

    code = "invalid"

    @classmethod
    def field(cls, field: str, detail: str) -> "Invalid":
        return cls(detail, errors=[FieldError((field,), detail)])

    @classmethod
    def fields(cls, errors: Sequence[FieldError], *, code: str | None = None) -> "Invalid":
        first = errors[0]
        more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
        return cls(f"{first.field}: {first.detail}{more}", code=code, errors=errors)

    def below(self, field: str) -> "Invalid":
        """Return the same errors for a document nested in that field of another."""
        return self.fields([FieldError((field, *e.path), e.detail) for e in self.errors])


class NotFound(DomainError):
    """It does not exist, or the caller may not know that it does."""

    code = "not-found"


class NotAllowed(DomainError):
    """The caller may see it but not do this."""

    code = "not-allowed"


class Conflict(DomainError):
    """The current state forbids it; the detail names the obstacle."""

    code = "conflict"


class Stale(DomainError):
    """Somebody else changed it first. `current_version` and `current` are what is stored now."""

    code = "stale"

    def __init__(self, detail: str, *, current_version: int, current: Any = None) -> None:
        super().__init__(detail)
        self.current_version = current_version
        self.current = current
