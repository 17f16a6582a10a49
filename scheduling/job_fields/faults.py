"""The syntax of names in job documents, and a collector for all faults of a document."""

import re

from scheduling.engine.placement.request import HYPER_NODE
from scheduling.engine.types import DEFAULT_LEVELS
from tenants.errors import FieldError, Invalid, Path

LEVELS = (*DEFAULT_LEVELS, HYPER_NODE)
MAX_PODS = 100_000

SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_VALUE_RULE = "Not the value of a Kubernetes label: letters, digits, “-_.”, at most 63."
SLUG_RULE = "Use lower-case letters, digits and hyphens, at most 63."


def is_label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return bool(LABEL_NAME.fullmatch(name)) and (not slash or bool(DNS.fullmatch(prefix)))


class Faults:
    """Collects faults, so that a document can be corrected in one go."""

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    def add(self, path: Path, detail: str) -> None:
        self.found.append(FieldError(path, detail))

    def unless(self, good: bool, path: Path, detail: str) -> None:
        if not good:
            self.add(path, detail)

    def raise_if_any(self) -> None:
        if self.found:
            raise Invalid.fields(self.found)
