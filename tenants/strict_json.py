"""JSON as RFC 8259 means it: what no database or other client could hold is refused."""

import json
import math
from collections import Counter
from typing import Any

# Several times what the largest job asks for; each value costs a field's work.
MOST_VALUES = 100_000


class NotJson(Exception):
    """The message says in a sentence why."""


class TooManyValues(Exception):
    """It has more than MOST_VALUES values; the message says so with the remedy."""


def value_of(raw: bytes, what: str) -> Any:
    """The value that the UTF-8 text says. Raises NotJson, also for NaN, infinities, 1e999, repeated
    names, NUL, lone surrogates and endless nesting, and TooManyValues. `what`: how messages call
    it."""
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
    # A comma or bracket goes with each value: few of them need no count.
    if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
        _refuse_too_many(value, what)
    # Unescaped, neither can pass the decoder: only escapes need a look.
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
    except ValueError:  # Python tells how to have it read that many digits
        raise ValueError(f"the number {text[:40]} is too large") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {twice[:60]!r} stands twice in one object")
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
