"""JSON as RFC 8259 means it: what no database or other client could hold is refused at the door."""

import json
import math
from collections import Counter
from typing import IO, Any

from rest_framework.parsers import JSONParser

from tenants.api.problems import Problem

# Several times what the largest job asks for; each value costs a field's work.
MOST_VALUES = 100_000
REMEDY = "Send one JSON object in UTF-8."


class StrictJSONParser(JSONParser):
    """Refuses NaN, infinities, 1e999, repeated names, NUL, lone surrogates, endless nesting."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,  # noqa: ARG002
        parser_context: Any = None,  # noqa: ARG002
    ) -> Any:
        raw = stream.read()
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
            raise Problem(
                "not-json", f"The body is not UTF-8 (byte {error.start}). {REMEDY}"
            ) from None
        except json.JSONDecodeError as error:
            raise Problem(
                "not-json",
                f"The body is not valid JSON: {error.msg} at line {error.lineno} column "
                f"{error.colno}. {REMEDY}",
            ) from None
        except RecursionError:
            raise Problem("not-json", f"The body is nested too deeply. {REMEDY}") from None
        except ValueError as error:
            raise Problem("not-json", f"The body is not valid JSON: {error}. {REMEDY}") from None
        # A comma or bracket goes with each value: few of them need no count.
        if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
            _refuse_too_many(value)
        # Unescaped, neither can pass the decoder: only escapes need a look.
        if "\\u" in text:
            _refuse_unstorable(value)
        return value


class UnlabelledJSONParser(StrictJSONParser):
    """JSON that `curl -d` sends without saying so: its first request should need no header."""

    media_type = "application/x-www-form-urlencoded"


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


def _refuse_too_many(value: Any) -> None:
    waiting, count = [value], 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list):
            count += len(item)
            waiting += item.values() if isinstance(item, dict) else item
        if count > MOST_VALUES:
            raise Problem(
                "too-large", f"The body holds more than {MOST_VALUES:,} values. Send fewer."
            )


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
            raise Problem("not-json", f"A text contains NUL or half of a surrogate pair. {REMEDY}")
