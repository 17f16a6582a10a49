"""What the definition says of a field besides its type, and how to read both back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import fields

from scheduling.job_fields.faults import Faults
from tenants.errors import Path


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """What values mean beyond their type.

    - `check(value, path, faults)`: finds faults.
    - `stored`: from a document to a row; `noun`: from there to the engine; `written`: back from the
      engine; `short`: from a row to the shortest document.
    - `one_of`: the allowed names.
    """

    check: Callable[[Any, Path, Faults], None] | None = None
    stored: Callable[[Any], Any] = _as_it_is
    noun: Callable[[Any], Any] = _as_it_is
    written: Callable[[Any], Any] = _as_it_is
    short: Callable[[Any], Any] = _as_it_is
    one_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """How people write an amount: one of their units is `size` of the document's."""

    size: int
    decimals: int
    least: Decimal = Decimal(0)

    def read(self, value: Decimal) -> int:
        return round(self.size * value)

    def write(self, amount: float) -> str:
        """Write an amount as "64" or "0.5"; an amount above 0 is never written as 0."""
        value = round(Decimal(amount) / self.size, self.decimals)
        return f"{max(value, self.least if amount else value).normalize():f}"


MINUTES, GIB, CORES = Unit(60, 2, Decimal("0.02")), Unit(1024, 4), Unit(1000, 3)


@dataclass(frozen=True, slots=True)
class Asked:
    """The field of the submit form.

    `name`: of the form's field if it differs from the document's. `folded`: it is among the rarely
    needed fields.
    """

    label: str
    hint: str = ""
    name: str = ""
    unit: Unit | None = None
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """The flag of `kant submit`: its names, separated by blanks, its value's name and its help.

    `reads`: how its text is read (`kant.client.submission`); "" = by the type. `again`: it may be
    given several times.
    """

    names: str
    metavar: str
    says: str
    reads: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """The column if it is not named like the field; "" = the job's row has none."""

    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """The field may be changed while the job waits; with `running` also later."""

    running: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the definition, as its consumers read it.

    `default` NODEFAULT = it is required. `type`: msgspec's view of its type, without the additional
    information. `limits`: (least, most) of an amount.
    """

    name: str
    type: msgspec.inspect.Type
    limits: tuple[int, int] | None
    default: Any
    help: str
    column: str
    kind: Kind
    asked: Asked | None
    flag: Flag | None
    change: Change | None

    @property
    def optional(self) -> bool:
        """Whether it may be null."""
        return isinstance(self.type, msgspec.inspect.UnionType)

    @property
    def unit(self) -> Unit | None:
        """The unit in which the form asks for it; None = the document's."""
        return self.asked.unit if self.asked else None


def plain(of: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return a type without descriptions, and without null if that is allowed, too."""
    while isinstance(of, msgspec.inspect.Metadata):
        of = of.type
    if isinstance(of, msgspec.inspect.UnionType):
        (of,) = (plain(t) for t in of.types if not isinstance(t, msgspec.inspect.NoneType))
    return of


@cache
def fields_of(struct: type[Struct]) -> Mapping[str, Field]:
    """Return the fields of a definition by name, in order."""
    hints = get_type_hints(struct, include_extras=True)
    return {f.name: _field(f, hints[f.name]) for f in fields(struct)}


def _field(of: Any, hint: Any) -> Field:
    said = hint.__metadata__ if get_origin(hint) is Annotated else ()
    inner = get_args(hint)[0] if said else hint

    def part(kind: type) -> Any:
        return next((one for one in said if isinstance(one, kind)), None)

    sizes = [one for one in said if isinstance(one, Meta) and one.description is None]
    helps = [one.description for one in said if isinstance(one, Meta) and one.description]
    column = part(Column)
    if of.default_factory is not NODEFAULT:
        default = of.default_factory()
    else:
        default = of.default
    found = msgspec.inspect.type_info(Annotated[inner, *sizes] if sizes else inner)
    return Field(
        name=of.name,
        type=found,
        limits=_limits(plain(found)),
        default=default,
        help="".join(helps),
        column=of.name if column is None else column.name,
        kind=part(Kind) or Kind(),
        asked=part(Asked),
        flag=part(Flag),
        change=part(Change),
    )


def _limits(of: msgspec.inspect.Type) -> tuple[int, int] | None:
    if isinstance(of, msgspec.inspect.IntType) and of.ge is not None and of.le is not None:
        return of.ge, of.le
    return None


def limits_of(struct: type[Struct], name: str) -> tuple[int, int]:
    """Return (least, most) of an amount."""
    limits = fields_of(struct)[name].limits
    assert limits is not None, name
    return limits
