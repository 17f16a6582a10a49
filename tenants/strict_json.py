"""JSON strictly by RFC 8259: refuses what a database or another client could not store."""

import json
import math
from collections import Counter
from typing import Any

# Several times what the largest job needs; each value costs as much work as a field.
MOST_VALUES = 100_000


class NotJson(Exception):
    """Not acceptable JSON; the message says why, in a sentence."""


class TooManyValues(Exception):
    """More than MOST_VALUES values; the message says so and how to fix it."""


def value_of(raw: bytes, what: str) -> Any:
    """Parse UTF-8 JSON. `what`: the document's name in error messages.

    Raises TooManyValues, and NotJson for anything malformed, also for NaN, infinities, 1e999,
    repeated names, NUL, lone surrogates and excessive nesting.
    """
    try:
        text = raw.decode("utf-8")
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_unique,
        )
    except UnicodeDecodeError as error:
        raise NotJson(f"{what} is not UTF-8 (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise NotJson(
            f"{what} is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}."
        ) from None
    except RecursionError:
        raise NotJson(f"{what} is nested too deeply.") from None
    except ValueError as error:
        raise NotJson(f"{what} is not valid JSON: {error}.") from None
    # Each value comes with a comma or bracket: where these are few, the values need no count.
    if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
        _refuse_too_many(value, what)
    # The decoder rejects both when unescaped, so only escapes need a check.
    if "\\u" in text:
        _refuse_unstorable(value)
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python's message says how to lift its limit on digits
        raise ValueError(f"the number {text[:40]} is too large") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {twice[:60]!r} appears twice in one object")
    return found


def _refuse_too_many(value: Any, what: str) -> None:
    waiting, count = [value], 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list):
            count += len(item)
            waiting += item.values() if isinstance(item, dict) else item
        if count > MOST_VALUES:
            raise TooManyValues(f"{what} holds more than {MOST_VALUES:,} values. Send fewer.")


def _refuse_unstorable(value: Any) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and (
            "\0" in item or any(0xD800 <= ord(c) < 0xE000 for c in item)
        ):
            raise NotJson("A text contains NUL or half of a surrogate pair.")
