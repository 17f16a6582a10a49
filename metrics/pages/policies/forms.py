"""The form of a policy: a field for every setting, grouped by the decisions that people make."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms

from metrics.pages.policies.fields import Percent, ShardLines, Span
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.types import CpuJobs, QueueingPolicy
from scheduling.policy.document import MAX_COUNT, SHARES, effective
from scheduling.policy.settings import Settings, field_of, is_same, settings_of, without_effect
from scheduling.queries.wording import setting_name, setting_words
from tenants.errors import DomainError, FieldError
from tenants.forms import Fields

ORDERS = {
    QueueingPolicy.STRICT_FIFO: "no other job may take the GPU models that it needs. The order is "
    "predictable",
    QueueingPolicy.BEST_EFFORT_FIFO: "any job that fits may pass it. Good for many small jobs; "
    "big gangs may wait a long time",
    QueueingPolicy.BACKFILL: "other jobs may pass it if they do not delay it. Good for big gangs "
    "among small jobs",
}
CPU_JOB_TEXTS = {
    CpuJobs.NEVER: "only on nodes without GPUs",
    CpuJobs.FREELY: "anywhere, even if GPUs then lack CPU",
}
STRATEGY_TEXTS = {
    "binpack": "fills used nodes first",
    "e-binpack": "packs gangs into few network groups",
    "spread": "spreads pods over the emptiest nodes",
    "e-spread": "spreads pods inside the inference zone",
    "native": "takes the node with most free GPUs (baseline)",
    "fragmentation": "keeps nodes useful for the usual mix of jobs",
}
LABELS = {
    "learned_run_times": "Learned run times: plan by what earlier jobs took",
    "preemption.priority": "Priority: jobs of higher priority may preempt",
    "preemption.reclaim": "Reclaim: tenants may take back the quota they lent",
    "preemption.backfill": "Backfill: an overdue head may preempt the jobs that passed it",
    "fair_share": "Fair share: the tenant with the smallest share by weight goes first",
    "fair_users": "Fair users: inside a tenant, the user with the smallest share goes first",
    "cpu_jobs_on_gpu_nodes": "Jobs without GPUs on GPU nodes",
    "consolidation": "Consolidation: move replicas of inference jobs to free whole nodes",
    "defrag_loss": "GPU time that moves may lose",
    "defrag_above": "Act above a GFR of",
    "defrag_moves": "Moves at once",
}
HELP = {
    "backfill_after_s": "Other jobs may pass a blocked head for this long; then none may delay it",
    "learned_run_times": (
        "Used if a job declares no run time. By these times, nodes are reserved for blocked jobs "
        "that need several nodes or have waited too long, and shorter jobs may use them until "
        "then. Short jobs go before long ones that were submitted a little earlier"
    ),
    "preemption.priority": "A job that would borrow preempts only borrowers and its own tenant's "
    "jobs",
    "preemption.reclaim": "Jobs that cannot be preempted then cannot borrow",
    "preemption.backfill": "Jobs that started behind the head leave as soon as it fits",
    "preempt_after_s": "A job waits this long before it preempts by priority or reclaim. 0: "
    "at once",
    "min_runtime_s": "A job is not preempted or moved until it has run this long; a tenant may set "
    "its own time",
    "max_preemptions": "After this many preemptions, a job is not preempted again",
    "fair_share": "Applies to jobs of equal priority",
    "fair_users": "One person's jobs do not make all colleagues wait",
    "usage_half_life_s": "Past use counts too; its weight halves in this time. 0: only current use "
    "counts",
    "consolidation": "Moves one preemptible pod of a job at a time. The pod is down while it moves",
    "defrag_loss": (
        "Share of the jobs' GPU time that may be lost by moving jobs of one pod so that fewer "
        "nodes are partly used. A moved job starts again from its last checkpoint. 0: no job is "
        "moved"
    ),
    "defrag_above": "Nothing moves while at most this share of the nodes of a GPU model is partly "
    "used",
    "defrag_moves": "Once a minute, at most this many jobs move",
    "max_attempts": "A job fails after this many failed placements in a row",
    "backoff_base_s": "Wait after the first failed placement; it doubles each time",
    "backoff_cap_s": "Longest wait after a failed placement",
    "gang_timeout_s": "A gang gives up its places if not all its pods run within this time",
    "blame_s": "A job avoids a node that rejected its pod for this long",
    "node_loss_s": (
        "Pods stay this long on a node that does not respond, as it may come back. Pods that "
        "Kant did not create follow their own tolerations"
    ),
    "node_loss_saved_s": "The same, for jobs that save their work or may use spare nodes",
    "warn_before_s": "Warn a job this long before its run-time limit",
    "shards": (
        f"One shard per line: {ShardLines.rule}, names separated by commas. The last line is "
        "only a name: that shard takes all other nodes. Empty: one scheduler for all nodes"
    ),
}
SPANS = {
    "backfill_after_s": "minutes",
    "preempt_after_s": "seconds",
    "min_runtime_s": "minutes",
    "usage_half_life_s": "hours",
    "backoff_base_s": "seconds",
    "backoff_cap_s": "seconds",
    "gang_timeout_s": "minutes",
    "blame_s": "minutes",
    "node_loss_s": "seconds",
    "node_loss_saved_s": "seconds",
    "warn_before_s": "minutes",
}
# Title, subject, and fields of the policy.
GROUPS = (
    (
        "Order of the queue",
        "Jobs of higher priority go first, then those submitted earlier. If there is no room for "
        "the first job:",
        ("queueing",),
    ),
    ("Backfill", "", ("backfill_after_s", "learned_run_times")),
    (
        "Preemption",
        "Which jobs may preempt running jobs:",
        ("preemption", "preempt_after_s", "min_runtime_s", "max_preemptions"),
    ),
    ("Fair share", "", ("fair_share", "fair_users", "usage_half_life_s")),
    (
        "Placement",
        "Applies to pods placed from now on. Running pods stay where they are.",
        ("strategies", "cpu_jobs_on_gpu_nodes", "spare_nodes", "consolidation"),
    ),
    (
        "Defragmentation",
        "Jobs may move, at a cost, so that whole nodes become free.",
        ("defrag_loss", "defrag_above", "defrag_moves"),
    ),
    (
        "Health and requeueing",
        "What happens after a failed placement.",
        ("max_attempts", "backoff_base_s", "backoff_cap_s", "gang_timeout_s", "blame_s",
         "node_loss_s", "node_loss_saved_s", "warn_before_s"),
    ),
    (
        "Several schedulers",
        "Divide the cluster into parts, each with its own scheduler.",
        ("shards",),
    ),
)  # fmt: skip
DEFAULTS = settings_of(effective({}))


@dataclass(frozen=True, slots=True)
class Item:
    """A field on the page: its previous value if it was edited, and the condition for it to have an
    effect."""

    field: forms.BoundField
    was: str
    idle: str

    @property
    def looks(self) -> str:
        widget = self.field.field.widget
        if isinstance(widget, forms.RadioSelect):
            return "radio"
        return "check" if isinstance(widget, forms.CheckboxInput) else "field"

    @property
    def width(self) -> str:
        wide = self.field.name == "consolidation" or isinstance(
            self.field.field.widget, forms.Textarea | forms.RadioSelect
        )
        return "" if wide else "f4"


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    text: str
    items: list[Item]


class PolicyForm(Fields):
    """The fields are named as settings (`scheduling.policy.settings`). Only what differs from
    the policy that the form was shown with is changed, whatever somebody else has changed in
    between."""

    def __init__(
        self, shown: Mapping[str, Any], gpu_types: Collection[str], data: Any = None
    ) -> None:
        """`gpu_types`: those that may have spare nodes, in addition to those of `shown`."""
        super().__init__(data)
        self.shown = settings_of(shown)
        spares = {f"spare_nodes.{name}": 0 for name in sorted(gpu_types)}
        for key, value in {**DEFAULTS, **spares, **self.shown}.items():
            field = _field(key)
            field.initial = _typed(field, value)
            self.add(key, field)
            if isinstance(field.widget, forms.RadioSelect):
                field.widget.attrs["class"] = "form-check-input"

    def changes(self) -> Settings:
        """Return the changed settings of a valid form."""
        data = self.cleaned_data
        # An empty number of spare nodes means 0.
        found = {key: 0 if data[key] is None else data[key] for key in self.changed_data}
        return {k: v for k, v in found.items() if not is_same(k, v, self.shown.get(k))}

    def groups(self) -> list[Group]:
        legible: Settings = {}
        if self.is_bound:
            self.is_valid()
            legible = self.cleaned_data
        idle = without_effect({**self.shown, **legible})
        return [Group(title, text, list(self._items(names, idle))) for title, text, names in GROUPS]

    def _items(self, names: Collection[str], idle: Mapping[str, str]) -> Iterator[Item]:
        edited = self.changed_data if self.is_bound else ()
        keys = [key for name in names for key in self.fields if field_of(key) == name]
        for key in keys:
            was = setting_words(key, self.shown.get(key)) if key in edited else ""
            yield Item(self[key], was, idle.get(key, ""))

    def show(self, error: DomainError) -> None:
        """Show each error at its field, and those without one above the form."""
        for fault in error.errors:
            name, detail = _placed(fault)
            self.add_error(name if name in self.fields else None, detail)
        if not error.errors:
            self.add_error(None, error.detail)


def typed(form: PolicyForm, settings: Settings) -> dict[str, Any]:
    """Return what the form would send with these settings typed into it."""
    texts = {key: _typed(form.fields[key], settings.get(key, 0)) for key in form.fields}
    # Browsers do not send unticked boxes.
    sent = {key: text for key, text in texts.items() if text is not False}
    return {key: "on" if text is True else str(text) for key, text in sent.items()}


def _typed(field: forms.Field, value: Any) -> Any:
    return field.typed(value) if isinstance(field, Span | Percent | ShardLines) else value


def _field(key: str) -> forms.Field:
    default = DEFAULTS.get(key)
    told = f"Default: {setting_words(key, default)}" if default is not None else ""
    help_text = ". ".join(filter(None, (HELP.get(key, ""), told)))
    label = LABELS.get(key) or setting_name(key)
    if key == "queueing":
        return forms.ChoiceField(
            label=label,
            choices=[(kind.value, text) for kind, text in ORDERS.items()],
            widget=forms.RadioSelect,
            help_text=help_text,
        )
    if key == "cpu_jobs_on_gpu_nodes":
        texts = [(kind.value, f"{kind}: {text}") for kind, text in CPU_JOB_TEXTS.items()]
        return forms.ChoiceField(label=label, choices=texts, help_text=help_text)
    if key == "shards":
        return ShardLines(label=label, help_text=HELP[key])
    if key in SHARES:
        return Percent(label, help_text=help_text)
    if unit := SPANS.get(key):
        return Span(label, unit, help_text=help_text)
    if field_of(key) == "strategies":
        choices = [(name, f"{name}: {STRATEGY_TEXTS[name]}") for name in STRATEGIES]
        return forms.ChoiceField(label=label, choices=choices, help_text=help_text)
    if isinstance(default, bool):
        return forms.BooleanField(label=label, required=False, help_text=help_text)
    spare = field_of(key) == "spare_nodes"
    return forms.IntegerField(
        label=label,
        required=not spare,
        min_value=0,
        max_value=MAX_COUNT,
        help_text="Kept free for jobs that may use spare nodes" if spare else help_text,
    )


def _placed(fault: FieldError) -> tuple[str, str]:
    """Return the field of an error, and the text for it."""
    match fault.path:
        case ("shards", int(index), *names):
            what = " ".join(map(str, names))
            return "shards", f"Shard {index + 1}, {what}: {fault.detail}"
    return fault.field, fault.detail


class ReasonForm(Fields):
    reason = forms.CharField(
        label="Reason", required=False, max_length=2000, help_text="Kept with the change"
    )
