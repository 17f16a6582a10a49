"""The limits of job documents, and a collector of everything that is wrong with one."""

import re
from collections.abc import Mapping
from typing import Any

from scheduling.engine.placement.request import HYPER_NODE
from scheduling.engine.types import DEFAULT_LEVELS, MILLI
from tenants import texts
from tenants.errors import FieldError, Invalid, Path

LEVELS = (*DEFAULT_LEVELS, HYPER_NODE)
MAX_PODS = 100_000
# (least, most) of each amount; the REST schema shows the same numbers.
LIMITS: dict[str, tuple[int, int]] = {
    "priority": (-1_000_000, 1_000_000),
    "declared_s": (1, 10 * 366 * 86400),
    "run_limit_s": (1, 10 * 366 * 86400),
    "checkpoint_notice_s": (1, 3600),
    "max_restarts": (0, 1000),
    "count": (1, MAX_PODS),
    "min_count": (1, MAX_PODS),
    "gpus": (0, 1024),
    "gpu_milli": (1, MILLI),
    "gpu_memory_mib": (0, 10**7),
    "cpu_milli": (0, 10**8),
    "memory_mib": (0, 10**9),
    "nics": (0, 1024),
    "shm_mib": (0, 10**9),
    "max_per_node": (1, MAX_PODS),
    "max_per_leaf": (1, MAX_PODS),
    "slice_size": (0, MAX_PODS),
}

SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_VALUE_RULE = "Not the value of a Kubernetes label: letters, digits, “-_.”, at most 63."
SLUG_RULE = "Use lower-case letters, digits and hyphens, at most 63."


def is_label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return bool(LABEL_NAME.fullmatch(name)) and (not slash or bool(DNS.fullmatch(prefix)))


class Faults:
    """Collects faults, so that a document is corrected in one go."""

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    def add(self, path: Path, detail: str) -> None:
        self.found.append(FieldError(path, detail))

    def unless(self, good: bool, path: Path, detail: str) -> None:
        if not good:
            self.add(path, detail)

    def in_range(self, item: Mapping[str, Any], names: tuple[str, ...], at: Path) -> None:
        for name in names:
            least, most = LIMITS[name]
            if name in item and not least <= item[name] <= most:
                self.add((*at, name), texts.between(least, most))

    def labels(self, labels: Mapping[str, str], at: Path) -> None:
        for key, value in labels.items():
            self.unless(is_label_key(key), (*at, key), "Not the name of a Kubernetes label.")
            self.unless(
                not value or bool(LABEL_NAME.fullmatch(value)),
                (*at, key),
                LABEL_VALUE_RULE,
            )

    def raise_if_any(self) -> None:
        if self.found:
            raise Invalid.fields(self.found)
