"""The settings of a queue in one place: their defaults and rules, as a row and as a document of the
audit trail."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tenants import facts, texts
from tenants.errors import FieldError
from tenants.models import DEFAULT_QUEUE, GpuType, Queue, QueueOrder, Role, User
from tenants.selectors import known_gpu_types_hint
from tenants.services.tenant_terms import MAX_JOBS

MAX_PRIORITY = 1_000_000
MAX_RANK = 1_000_000
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1e6
MAX_RUN_S = 10 * 366 * 86400
MAX_GPUS = 10**9
MOST_NAMES, MOST_OF_A_NAME = 256, 200
# Viewers submit nothing, so a queue restricted to them would serve nobody.
SUBMITTERS = (Role.ENGINEER.value, Role.TENANT_ADMIN.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTerms:
    """The settings of a queue, named as its columns. Limits: None = none. `max_gpus`: {GPU type:
    most GPUs at once}. Run times in seconds. Empty lists: all kinds of jobs, and everybody who may
    submit to the tenant."""

    title: str = ""
    weight: float = 1.0
    rank: int = 0
    order: str = ""
    max_running: int | None = None
    max_waiting: int | None = None
    max_gpus: Mapping[str, float] = field(default_factory=dict)
    default_priority: int | None = None
    max_priority: int | None = None
    default_run_limit_s: int | None = None
    max_run_limit_s: int | None = None
    default_preemptible: bool | None = None
    kinds: Collection[str] = ()
    roles: Collection[str] = ()
    users: Collection[str] = ()
    groups: Collection[str] = ()

    @classmethod
    def of(cls, row: Queue) -> "QueueTerms":
        return cls(**{name: getattr(row, name) for name in NAMES})

    @classmethod
    def given(cls, values: Mapping[str, Any], before: "QueueTerms | None" = None) -> "QueueTerms":
        """Take the terms among these values; others come from `before`, else from the defaults."""
        kept = asdict(before) if before else {}
        return cls(**{**kept, **{name: values[name] for name in NAMES if name in values}})

    def columns(self) -> dict[str, Any]:
        """Return them as the row holds them: lists without duplicates, whole GPUs as whole
        numbers."""
        found = asdict(self)
        for name in LISTS:
            found[name] = list(dict.fromkeys(found[name]))
        gpus = self.max_gpus.items()
        found["max_gpus"] = {m: int(n) if float(n).is_integer() else n for m, n in gpus}
        return found

    def faults(self) -> Iterator[FieldError]:
        """Yield what is wrong with them by themselves."""
        for name, least, most in BOUNDS:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                yield FieldError((name,), _out_of_bounds(name, least, most))
        if self.order and self.order not in QueueOrder.values:
            yield FieldError(("order",), texts.one_of(", ".join(QueueOrder.values)))
        for name, names in (("kinds", facts.scheduling().job_kinds()), ("roles", SUBMITTERS)):
            for value in getattr(self, name):
                if value not in names:
                    yield FieldError((name,), f"{value!r}: {texts.one_of(', '.join(names))}")
                    break
        for name in LISTS:
            values = getattr(self, name)
            if len(values) > MOST_NAMES or any(not 0 < len(v) <= MOST_OF_A_NAME for v in values):
                text = f"Must be a list of at most {MOST_NAMES} names."
                yield FieldError((name,), text)
        yield from self._unknown_names()
        for value, most_of in (
            ("default_priority", "max_priority"),
            ("default_run_limit_s", "max_run_limit_s"),
        ):
            default, most_allowed = getattr(self, value), getattr(self, most_of)
            if default is not None and most_allowed is not None and default > most_allowed:
                detail = (
                    f"{default} is more than {most_of}, {most_allowed}. Lower this value, or "
                    f"raise {most_of}."
                )
                yield FieldError((value,), detail)

    def _unknown_names(self) -> Iterator[FieldError]:
        """Yield GPU types and users that do not exist: a typo would lock everybody out."""
        known = set(GpuType.objects.filter(name__in=self.max_gpus).values_list("name", flat=True))
        for model, gpus in self.max_gpus.items():
            if model not in known:
                detail = f"There is no GPU type “{model}”. {known_gpu_types_hint()}"
                yield FieldError(("max_gpus", model), detail)
            elif not (math.isfinite(gpus) and 0 <= gpus <= MAX_GPUS) or round(gpus, 3) != gpus:
                detail = f"Must be from 0 to {MAX_GPUS} GPUs, with at most three decimals."
                yield FieldError(("max_gpus", model), detail)
        people = set(
            User.objects.filter(username__in=list(self.users)).values_list("username", flat=True)
        )
        for name in self.users:
            if name not in people:
                detail = f"There is no user “{name[:MOST_OF_A_NAME]}”. Leave the name out."
                yield FieldError(("users",), detail)
                break


NAMES = tuple(one.name for one in fields(QueueTerms))
LISTS = ("kinds", "roles", "users", "groups")
BOUNDS = (
    ("weight", MIN_WEIGHT, MAX_WEIGHT),
    ("rank", -MAX_RANK, MAX_RANK),
    ("max_running", 0, MAX_JOBS),
    ("max_waiting", 0, MAX_JOBS),
    ("default_priority", -MAX_PRIORITY, MAX_PRIORITY),
    ("max_priority", -MAX_PRIORITY, MAX_PRIORITY),
    ("default_run_limit_s", 1, MAX_RUN_S),
    ("max_run_limit_s", 1, MAX_RUN_S),
)


def _out_of_bounds(name: str, least: float, most: float) -> str:
    if name == "weight":
        return (
            f"Must be more than 0, from {least:g} to {most:,.0f}. To keep its jobs from starting, "
            "hold the queue."
        )
    return texts.between(int(least), int(most))


def as_document(queue: Queue | None) -> dict[str, Any] | None:
    """Return a queue as a document of the audit trail."""
    if queue is None:
        return None
    terms = QueueTerms.of(queue).columns()
    return {"name": queue.name, **terms, "state": str(queue.state), "version": queue.version}


def subject_of(tenant: str, name: str) -> str:
    """Return a queue's name in the audit trail and on the command line."""
    return f"{tenant}/{name}"


def may_be_deleted(queue: Queue) -> str:
    """Return why the queue may not be deleted, whatever its jobs; "" = it may."""
    if queue.name == DEFAULT_QUEUE:
        return (
            f"Every tenant needs “{DEFAULT_QUEUE}”: it takes the jobs that name no queue. Hold "
            "or close it instead."
        )
    if not Queue.objects.filter(tenant=queue.tenant_id).exclude(pk=queue.pk).exists():
        return "It is the tenant's last queue. Create another one first."
    return ""
