"""GPUs as people type them into a cell or a field."""

import re
from decimal import Decimal

# Python accepts digits of other scripts, "1_000" and "1e3" as numbers; here they are mostly typos.
PLAIN = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")
THOUSANDS = re.compile(r"[1-9][0-9]{0,2}([,_ '’\u00a0\u202f][0-9]{3})+(\.[0-9]*)?")


def typed_milli(text: str) -> int:
    """Parse GPUs as people write them into milli-GPU; raise ValueError that says how to fix the
    text."""
    text = text.strip()
    if not text:
        raise ValueError("Write 0 to guarantee none.")
    if THOUSANDS.fullmatch(text):
        raise ValueError("Write thousands without a separator, e.g. 1200.")
    if any(c.isdigit() and not c.isascii() for c in text):
        raise ValueError("Write the number with the digits 0 to 9, e.g. 16.")
    if "," in text:
        raise ValueError("Write a part of a GPU with a point, e.g. 1.5.")
    if not PLAIN.fullmatch(text):
        raise ValueError("Write a number of GPUs in the digits 0 to 9, e.g. 16.")
    value = Decimal(text)
    if value < 0:
        raise ValueError("Write 0 or more GPUs.")
    if value > 10**9:
        raise ValueError("That is more than any cluster has. Write at most 1,000,000,000 GPUs.")
    if (value * 1000) % 1:
        raise ValueError("The smallest share is 0.001 GPU.")
    return int(value * 1000)


def as_typed(milli: int | None) -> str:
    """Return milli-GPU as a person would type them; "" for None."""
    return "" if milli is None else f"{milli / 1000:.13g}"
