"""The form that requests a replay: the policy fields that people try out, nodes by shape, and
quotas."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django import forms

from metrics.models import Replay
from metrics.pages.replays.quota_form import PATTERN, QuotaFormRow, QuotaGrid
from metrics.replays.scenario import MOST_NODES, NodeShape
from metrics.replays.services import MOST, USUAL
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.types import JobKind, PreemptionKind, QueueingPolicy
from scheduling.policy.document import MAX_SECONDS, effective
from tenants.errors import DomainError, FieldError
from tenants.forms import Fields

ORDERS = {
    QueueingPolicy.STRICT_FIFO: "Strict: no job passes a blocked head",
    QueueingPolicy.BEST_EFFORT_FIFO: "Best effort: any job that fits starts",
    QueueingPolicy.BACKFILL: "Backfill: jobs pass a blocked head until it is overdue",
}
PREEMPTIONS = {
    PreemptionKind.PRIORITY: "By jobs of higher priority",
    PreemptionKind.RECLAIM: "By tenants that take back quota they lent",
    PreemptionKind.BACKFILL: "By an overdue head, of jobs that passed it",
}
SWITCHES = {
    "fair_share": "The tenant with the smallest share goes first",
    "fair_users": "Inside a tenant, the user with the smallest share goes first",
    "consolidation": "Move replicas to free whole nodes",
}
POLICY_FIELDS = {"queueing", "backfill_after_s", "strategies", "preemption", *SWITCHES}
MINUTES = "%Y-%m-%dT%H:%M"


class Instant(forms.DateTimeField):
    """A time in UTC, to the minute."""

    def __init__(self, label: str, help_text: str) -> None:
        widget = forms.DateTimeInput(format=MINUTES, attrs={"type": "datetime-local"})
        super().__init__(
            label=label,
            help_text=help_text,
            widget=widget,
            input_formats=[MINUTES, f"{MINUTES}:%S"],
        )


class ReplayForm(Fields):
    since = Instant("From, UTC", f"At most {MOST.days} days in all")
    until = Instant("To, UTC", "")
    queueing = forms.ChoiceField(
        label="Queue", choices=[(kind.value, text) for kind, text in ORDERS.items()]
    )
    backfill_after_min = forms.DecimalField(
        label="Overdue after, minutes",
        min_value=0,
        max_value=MAX_SECONDS // 60,
        decimal_places=2,
        help_text="Only under backfill, for a blocked head",
    )

    def __init__(
        self,
        shapes: Mapping[NodeShape, int],
        grid: QuotaGrid,
        data: Any = None,
        *,
        initial: Mapping[str, Any],
    ) -> None:
        super().__init__(data, initial=dict(initial))
        self.shapes = list(shapes)
        self.grid = grid
        self._asked_cells: list[int] = []
        names = [(name, name) for name in STRATEGIES]
        for job_kind in JobKind:
            strategy = forms.ChoiceField(label=f"Placement of {job_kind} jobs", choices=names)
            self.add(f"strategy_{job_kind}", strategy)
        for kind, text in PREEMPTIONS.items():
            self.add(f"preemption_{kind}", forms.BooleanField(label=text, required=False))
        for name, text in SWITCHES.items():
            self.add(name, forms.BooleanField(label=text, required=False))
        for index, (shape, count) in enumerate(shapes.items()):
            self.add(
                f"nodes_{index}",
                forms.IntegerField(
                    label=str(shape),
                    required=False,
                    min_value=-count,
                    max_value=MOST_NODES,
                    help_text=f"Now {count}",
                ),
            )
        grid.add_to(self)

    def clean(self) -> dict[str, Any]:
        for name, text in self.grid.faults(self.cleaned_data):
            self.add_error(name, text)
        return self.cleaned_data

    # The parts of the form, for the page.
    def strategies(self) -> list[forms.BoundField]:
        return [self[f"strategy_{kind}"] for kind in JobKind]

    def preemptions(self) -> list[forms.BoundField]:
        return [self[f"preemption_{kind}"] for kind in PREEMPTIONS]

    def switches(self) -> list[forms.BoundField]:
        return [self[name] for name in SWITCHES]

    def nodes(self) -> list[forms.BoundField]:
        return [self[f"nodes_{index}"] for index in range(len(self.shapes))]

    def quotas(self) -> list[QuotaFormRow]:
        return self.grid.rows(self)

    def is_unfolded(self) -> bool:
        """Whether the quotas part has changes or errors to show."""
        return any(place.edited or place.errors for row in self.quotas() for place in row.places)

    def asked(self) -> dict[str, Any]:
        """Return the arguments of `services.create_replay`."""
        data = self.cleaned_data
        quotas = self.grid.asked(data)
        self._asked_cells = list(quotas)
        return {
            "since": data["since"],
            "until": data["until"],
            "policy": {
                "queueing": data["queueing"],
                "strategies": {str(kind): data[f"strategy_{kind}"] for kind in JobKind},
                "backfill_after_s": float(60 * data["backfill_after_min"]),
                "preemption": [str(k) for k in PREEMPTIONS if data[f"preemption_{k}"]],
                **{name: data[name] for name in SWITCHES},
            },
            "nodes": [
                {"gpu_type": shape.gpu_type, "gpus": shape.gpus, "change": data[f"nodes_{i}"] or 0}
                for i, shape in enumerate(self.shapes)
            ],
            "quotas": list(quotas.values()),
        }

    def show(self, error: DomainError) -> None:
        """Show each error at its field, and those without one above the form."""
        for fault in error.errors:
            name = self._field_of(fault)
            if name in self.fields:
                self.add_error(name, fault.detail)
            else:
                self.add_error(None, f"{fault.field}: {fault.detail}")
        if not error.errors:
            self.add_error(None, error.detail)

    def _field_of(self, fault: FieldError) -> str:
        match fault.path:
            case ("policy", "strategies", kind):
                return f"strategy_{kind}"
            case ("policy", "backfill_after_s"):
                return "backfill_after_min"
            case ("policy", name) | (name,):
                return str(name)
            case ("nodes", index, *_):
                return f"nodes_{index}"
            case ("quotas", int(index), *_):
                return PATTERN.format(self._asked_cells[index])
        return ""


def initial_of(policy: Mapping[str, Any], grid: QuotaGrid, now: datetime) -> dict[str, Any]:
    """Return the current policy and quotas, and the last seven days."""
    until = now.astimezone(UTC).replace(second=0, microsecond=0)
    minutes = round(Decimal(str(policy["backfill_after_s"])) / 60, 2)
    return {
        "since": until - USUAL,
        "until": until,
        "queueing": policy["queueing"],
        "backfill_after_min": f"{minutes.normalize():f}",
        **{f"strategy_{kind}": policy["strategies"][kind] for kind in JobKind},
        **{f"preemption_{kind}": kind in policy["preemption"] for kind in PREEMPTIONS},
        **{name: policy[name] for name in SWITCHES},
        **grid.initial(),
    }


def initial_like(
    replay: Replay, shapes: Mapping[NodeShape, int], grid: QuotaGrid
) -> dict[str, Any]:
    """Return the fields as they were in another replay's request."""
    return initial_of(effective(replay.policy), grid, replay.until) | {
        "since": replay.since,
        "until": replay.until,
        **dict(_nodes(replay, shapes)),
        **grid.initial(replay.quotas),
    }


def kept_of(replay: Replay) -> dict[str, Any]:
    """Return the policy fields that another replay changed and the form lacks."""
    before, tried = replay.policy_before, replay.policy
    changed = {name: value for name, value in tried.items() if before.get(name) != value}
    return {name: value for name, value in changed.items() if name not in POLICY_FIELDS}


def _nodes(replay: Replay, shapes: Mapping[NodeShape, int]) -> Iterator[tuple[str, int]]:
    changes = {NodeShape(one["gpu_type"], one["gpus"]): one["change"] for one in replay.nodes}
    for index, shape in enumerate(shapes):
        if shape in changes:
            yield f"nodes_{index}", changes[shape]
