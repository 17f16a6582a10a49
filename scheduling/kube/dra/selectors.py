"""CEL expressions about devices, with the API server's meaning.

`device` has `driver`, `attributes` and `capacity`, the latter two by domain and then by name; a
domain of which the device has nothing is empty. Beside standard CEL there are the functions that
Kubernetes adds for quantities, versions, regular expressions and sets.

Sources: Kubernetes, "Common Expression Language in Kubernetes"; dynamic-resource-allocation/cel.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from scheduling.kube.dra.facts import DeviceFacts, Version, whole_name
from scheduling.kube.translate.quantities import parse

QUANTITY, VERSION = "quantity", "semver"  # values of these types are represented as {type: text}
_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
)
_PREFIX = re.compile(r"[A-Z_]+: (ERROR: <input>:)?")
_LITERAL = re.compile(r"""["']([a-z0-9.-]+)["']""")


class WrongSelector(Exception):
    """An expression that cannot be compiled, or that fails for a device."""


class Selector:
    """A compiled expression. Raises WrongSelector."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        # Literals that may be domains: a device has an empty one for each domain that it lacks.
        self._domains = tuple(set(_LITERAL.findall(expression)))
        try:
            self._program = _environment().compile(expression)
        except RuntimeError as wrong:
            raise WrongSelector(_first_line(wrong)) from None

    def matches(self, driver: str, device: DeviceFacts) -> bool:
        """Whether the device of that driver satisfies the expression. Raises WrongSelector."""
        given = {
            "driver": driver,
            "attributes": _by_domain(device.attributes, self._domains, _value),
            "capacity": _by_domain(
                {whole_name(name, driver): each.value for name, each in device.capacity.items()},
                self._domains,
                _quantity_value,
            ),
            "allowMultipleAllocations": device.several,
        }
        value = self._program.eval(data={"device": given})
        kind = value.type().name()
        if kind == "BOOL":
            return bool(value.plain_value())
        if kind == "ERROR":
            raise WrongSelector(f"{_first_line(value.plain_value())}, for device {device.name}")
        raise WrongSelector(f"it is of type {kind.lower()}, not bool")


@lru_cache(maxsize=4096)
def selector(expression: str) -> Selector:
    """Return the expression, compiled once. Raises WrongSelector."""
    return Selector(expression)


def _first_line(error: object) -> str:
    """Return the first line of an error, without the library's prefix."""
    return _PREFIX.sub("", str(error).split("\n", 1)[0]).strip()


def _by_domain(
    values: Mapping[str, Any], domains: tuple[str, ...], written: Callable[[Any], object]
) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {domain: {} for domain in domains}
    for whole, value in values.items():
        domain, _, name = whole.partition("/")
        found.setdefault(domain, {})[name] = written(value)
    return found


def _value(value: Any) -> object:
    return {VERSION: _normal(value.text)} if isinstance(value, Version) else value


def _quantity_value(amount: Fraction) -> object:
    return {QUANTITY: str(amount)}


# --- functions of Kubernetes ----------------------------------------------------------------------
Values = dict[str, Any]


def _quantity(text: str) -> Values:
    return {QUANTITY: str(parse(text))}


def _semver(text: str) -> Values:
    return {VERSION: _normal(text)}


def _normal(text: str) -> str:
    """Return the version without its build part, which does not count in comparisons.

    Raises ValueError if the text is no version.
    """
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{text!r} is not a semantic version such as 1.2.3")
    return text.partition("+")[0]


def _is(read: Callable[[str], object]) -> Callable[[str], bool]:
    def can_be_read(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return can_be_read


def _amount(value: Values) -> Fraction:
    return Fraction(value[QUANTITY])


def _key(text: str) -> tuple[Any, ...]:
    """Return a key that orders versions: a pre-release comes before its release."""
    found = _VERSION.fullmatch(text)
    assert found is not None
    *numbers, pre = found.groups()
    parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in (pre or "").split("."))
    return (*map(int, numbers), 0 if pre else 1, parts if pre else ())


def _order(one: Values, other: Values) -> int:
    if (QUANTITY in one) != (QUANTITY in other):
        raise ValueError("a quantity is compared with a version")
    if QUANTITY in one:
        a, b = _amount(one), _amount(other)
        return (a > b) - (a < b)
    v, w = _key(one[VERSION]), _key(other[VERSION])
    return (v > w) - (v < w)


def _part(index: int) -> Callable[[Values], int]:
    return lambda value: int(_key(value[VERSION])[index])


def _integer(value: Values) -> int:
    amount = _amount(value)
    if amount.denominator != 1:
        raise ValueError("the quantity is not a whole number")
    return amount.numerator


def _added(one: Values, other: Values | int, sign: int) -> Values:
    more = Fraction(other) if isinstance(other, int) else _amount(other)
    return {QUANTITY: str(_amount(one) + sign * more)}


def _found(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found.group(0) if found else ""


def _all_found(text: str, pattern: str) -> list[str]:
    return [found.group(0) for found in re.finditer(pattern, text)]


def _contains(one: list[Any], other: list[Any]) -> bool:
    return all(each in one for each in other)


@cache
def _environment() -> Any:
    """Return the environment that expressions are compiled in.

    Imported only if there are claims: the library is large.
    """
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_encoders, ext_math, ext_optional, ext_strings

    t = cel.Type
    text, known, many = t.STRING, t.MAP, t.LIST

    def function(name: str, result: Any, *overloads: tuple[Callable[..., Any], list[Any]]) -> Any:
        member = not name.startswith(("is", "sets.")) and name not in (QUANTITY, VERSION)
        member = member or name in ("isGreaterThan", "isLessThan", "isInteger")
        return cel.FunctionDecl(
            name,
            [
                cel.Overload(
                    f"{name}_{n}",
                    return_type=result,
                    parameters=parameters,
                    is_member=member,
                    impl=impl,
                )
                for n, (impl, parameters) in enumerate(overloads)
            ],
        )

    functions = [
        function(QUANTITY, known, (_quantity, [text])),
        function(VERSION, known, (_semver, [text])),
        function("isQuantity", t.BOOL, (_is(_quantity), [text])),
        function("isSemver", t.BOOL, (_is(_semver), [text])),
        function("compareTo", t.INT, (_order, [known, known])),
        function("isGreaterThan", t.BOOL, (lambda a, b: _order(a, b) > 0, [known, known])),
        function("isLessThan", t.BOOL, (lambda a, b: _order(a, b) < 0, [known, known])),
        function("isInteger", t.BOOL, (lambda a: _amount(a).denominator == 1, [known])),
        function("asInteger", t.INT, (_integer, [known])),
        function("asApproximateFloat", t.DOUBLE, (lambda a: float(_amount(a)), [known])),
        function("sign", t.INT, (lambda a: (_amount(a) > 0) - (_amount(a) < 0), [known])),
        function(
            "add",
            known,
            (lambda a, b: _added(a, b, 1), [known, known]),
            (lambda a, b: _added(a, b, 1), [known, t.INT]),
        ),
        function(
            "sub",
            known,
            (lambda a, b: _added(a, b, -1), [known, known]),
            (lambda a, b: _added(a, b, -1), [known, t.INT]),
        ),
        function("major", t.INT, (_part(0), [known])),
        function("minor", t.INT, (_part(1), [known])),
        function("patch", t.INT, (_part(2), [known])),
        function("find", text, (_found, [text, text])),
        function("findAll", t.List(text), (_all_found, [text, text])),
        function("sets.contains", t.BOOL, (_contains, [many, many])),
        function(
            "sets.equivalent",
            t.BOOL,
            (lambda a, b: _contains(a, b) and _contains(b, a), [many, many]),
        ),
        function(
            "sets.intersects", t.BOOL, (lambda a, b: any(each in a for each in b), [many, many])
        ),
    ]
    extensions = [
        ext_bindings.ExtBindings(),
        ext_encoders.ExtEncoders(),
        ext_math.ExtMath(),
        ext_optional.ExtOptional(),
        ext_strings.ExtStrings(),
    ]
    return cel.NewEnv(variables={"device": t.DYN}, extensions=extensions, functions=functions)
