"""Reads the environment's variables strictly: an unreadable value keeps Kant from starting.

A lenient reader would take a typing error for "off", "1m" for a second, and a secret that begins
with a dollar sign for the name of another variable.
"""

import math
import os
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import environ
from django.core.exceptions import ImproperlyConfigured

YES, NO = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
DIGITS = "in the digits 0 to 9"
_WHOLE = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
_SHOWN = 40  # characters of a value that are shown

Default = TypeVar("Default", float, float | None)


class Variables:
    """Values by name.

    Errors are collected and `refuse` reports all at once; until then a wrong value counts as its
    default.
    """

    def __init__(self, values: Mapping[str, str] = os.environ) -> None:
        self._values = values
        self._faults: list[str] = []

    def refuse(self) -> None:
        """Raise ImproperlyConfigured if something could not be read, with one line for each."""
        if self._faults:
            raise ImproperlyConfigured("\n".join(self._faults))

    def text(self, name: str, *, default: str) -> str:
        return self._values.get(name, default)

    def names(self, name: str, *, default: list[str]) -> list[str]:
        """Return a comma-separated list."""
        if name not in self._values:
            return default
        return [each.strip() for each in self._values[name].split(",") if each.strip()]

    def switch(self, name: str, *, default: bool) -> bool:
        word = self._values.get(name, str(default)).strip().lower()
        if word in YES or word in NO:
            return word in YES
        self._fault(name, "true or false")
        return default

    def whole(self, name: str, *, default: int) -> int:
        text = self._values.get(name, str(default)).strip()
        if _WHOLE.fullmatch(text):
            return int(text)
        self._fault(name, f"a whole number {DIGITS}, e.g. {default or 1}")
        return default

    def number(self, name: str, *, default: Default, above: float = -math.inf) -> Default:
        """Return a number greater than `above`."""
        if name not in self._values:
            return default
        text = self._values[name].strip()
        if _NUMBER.fullmatch(text) and float(text) > above:
            return float(text)
        least = f" above {above:g}" if above > -math.inf else ""
        self._fault(name, f"a number{least} {DIGITS}, e.g. {default or 8:g}")
        return default

    def level(self, name: str, *, default: str) -> str:
        """Return a log level."""
        word = self._values.get(name, default).strip().upper()
        if word in LEVELS or not word:
            return word
        self._fault(name, f"one of {', '.join(LEVELS)}")
        return default

    def address(self, name: str, *, default: str, schemes: tuple[str, ...]) -> str:
        """Return a URL with one of these schemes, or ""."""
        text = self._values.get(name, default)
        if not text or _kind(text) in schemes:
            return text
        self._no_address(name, schemes)
        return default

    def database(self, name: str, *, default: str) -> dict[str, Any]:
        """Return Django's connection settings for a database URL."""
        text, schemes = self._values.get(name) or default, ("postgres", "postgresql", "sqlite")
        if _kind(text) in schemes:
            try:
                return dict(environ.Env.db_url_config(text))
            except ValueError:  # an invalid port, an unclosed bracket
                pass
        self._no_address(name, schemes)
        return dict(environ.Env.db_url_config(default))

    def _no_address(self, name: str, schemes: tuple[str, ...]) -> None:
        """Report a fault without the value, which may contain a password."""
        kinds = " or ".join(f"{scheme}://…" for scheme in schemes)
        self._faults.append(f"{name} cannot be read: set it to an address as {kinds}.")

    def _fault(self, name: str, wanted: str) -> None:
        text = self._values[name]
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        self._faults.append(f"{name} is {shown!r}: set it to {wanted}, or unset it.")


def _kind(address: str) -> str:
    kind, colon, _ = address.partition("://")
    return kind if colon else ""
