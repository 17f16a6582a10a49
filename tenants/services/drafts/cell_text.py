"""A quota as the text of one cell, in tables, drafts and CSV: "8", "8 isolated", "8 shared borrow 4
lend any"."""

from tenants.models import Quota, QuotaMode
from tenants.services.quota_terms import QuotaTerms
from tenants.services.typed_gpus import PLAIN, as_typed, typed_milli

LIMIT_WORDS = {"borrow": "borrow_limit", "lend": "lend_limit"}
WORDS = {*QuotaMode.values, *LIMIT_WORDS}
NO_LIMIT = "any"
ACCEPTED = (
    "Write the GPUs, then optionally shared or isolated, and borrow or lend with a number of "
    f"GPUs or {NO_LIMIT}, e.g. 8 shared borrow 4 lend {NO_LIMIT}."
)


def fields_typed(text: str) -> dict[str, str]:
    """Return the fields of a quota that the text of a cell sets, always with `guaranteed`.

    Values are as typed; a limit of "" means no limit. Words may come in any order and case. Raises
    ValueError with a message that says how to fix the text.
    """
    parts: list[tuple[str, list[str]]] = [("", [])]
    for token in text.split():
        if (word := token.casefold()) in WORDS:
            parts.append((word, []))
        else:
            parts[-1][1].append(token)
    found = {"guaranteed": _guaranteed(parts[0][1], is_alone=len(parts) == 1)}
    for word, rest in parts[1:]:
        name = LIMIT_WORDS.get(word, "mode")
        if name in found:
            what = "shared or isolated" if name == "mode" else word
            raise ValueError(f"Give {what} only once. {ACCEPTED}")
        if name != "mode":
            found[name] = _limit(word, rest)
        elif rest:
            raise _unknown(rest[0])
        else:
            found[name] = word
    return found


def named_terms(text: str) -> dict[str, str]:
    """Return mode and limits where the text sets them; nothing if it cannot be read."""
    try:
        fields = fields_typed(text)
    except ValueError:
        return {}
    del fields["guaranteed"]
    return fields


def guaranteed_in(text: str) -> int | None:
    """Return the guarantee in the text, in milli-GPU; None if it cannot be read."""
    try:
        return typed_milli(fields_typed(text)["guaranteed"])
    except ValueError:
        return None


def cell_text(quota: Quota | None) -> str:
    """Write a quota as `fields_typed` reads it, with mode and limits only where they differ from
    the defaults; "" for no quota."""
    if quota is None:
        return ""
    terms = QuotaTerms.of(quota)
    limits = [
        f"{word} {as_typed(limit)}"
        for word, name in LIMIT_WORDS.items()
        if (limit := getattr(terms, name)) is not None
    ]
    mode = [str(terms.mode)] if limits or terms.mode != QuotaMode.SHARED else []
    return " ".join([as_typed(terms.guaranteed), *mode, *limits])


def _guaranteed(tokens: list[str], *, is_alone: bool) -> str:
    text = _amount(tokens)
    if not text and not is_alone:
        raise ValueError(f"Write the guaranteed GPUs first. {ACCEPTED}")
    try:
        typed_milli(text)
    except ValueError as error:
        more = f" {ACCEPTED}" if any(c.isalpha() for c in text) else ""
        raise ValueError(f"{error}{more}") from None
    return text


def _limit(word: str, tokens: list[str]) -> str:
    text = _amount(tokens)
    if text.casefold() == NO_LIMIT:
        return ""
    if not text:
        raise ValueError(f"After {word}, write the most GPUs or {NO_LIMIT}. {ACCEPTED}")
    try:
        typed_milli(text)
    except ValueError as error:
        raise ValueError(f"After {word}: {error} Or write {NO_LIMIT}.") from None
    return text


def _amount(tokens: list[str]) -> str:
    """Return the text before the next word. A plain number must not be followed by words; digits
    after blanks stay with it."""
    if tokens and (PLAIN.fullmatch(tokens[0]) or tokens[0].casefold() == NO_LIMIT):
        for token in tokens[1:]:
            if not token[0].isdigit():
                raise _unknown(token)
    return " ".join(tokens)


def _unknown(token: str) -> ValueError:
    return ValueError(f"“{token}” cannot be read here. {ACCEPTED}")
