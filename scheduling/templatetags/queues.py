"""How states of queues look on pages, and what changing them does."""

from dataclasses import dataclass

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from tenants.models import Queue, QueueState
from tenants.templatetags.ui import icon

register = template.Library()

# state -> (tone, icon)
LOOKS: dict[str, tuple[str, str]] = {
    QueueState.OPEN: ("good", "play-fill"),
    QueueState.HELD: ("wait", "pause-fill"),
    QueueState.DRAINING: ("wait", "hourglass-split"),
    QueueState.CLOSED: ("", "slash-circle"),
}


@dataclass(frozen=True, slots=True)
class StateAct:
    """A change of a queue's state: its button and its effect. `is_felt`: whether waiting jobs are
    affected."""

    verb: str
    title: str
    effect: str
    is_felt: bool = False


ACTS = {
    act.verb: act
    for act in (
        StateAct(
            "hold",
            "Hold",
            "None of its waiting jobs starts until it is released. Running jobs go on, new jobs "
            "may wait, and other queues are not affected.",
            is_felt=True,
        ),
        StateAct(
            "release",
            "Release",
            "Its waiting jobs may start again; each keeps its place.",
            is_felt=True,
        ),
        StateAct(
            "drain",
            "Drain",
            "It accepts no more jobs. Jobs already in it start and end as usual.",
        ),
        StateAct("close", "Close", "It accepts no more jobs, and is not meant to open again."),
        StateAct("open", "Open", "It accepts jobs, and they start in their turn."),
    )
}


@register.simple_tag
def queue_state(queue: Queue) -> SafeString:
    tone, name = LOOKS[queue.state]
    return format_html(
        '<span class="chip {}" title="{}">{}{}</span>',
        tone,
        queue.state_reason,
        icon(name),
        queue.get_state_display(),
    )


@register.filter
def state_acts(verbs: str) -> list[StateAct]:
    """Return the actions with these names, separated by spaces."""
    return [ACTS[verb] for verb in verbs.split()]


@register.filter
def verbs_of(queue: Queue) -> str:
    """Return the actions possible in a queue's state, the most likely first."""
    match queue.state:
        case QueueState.HELD:
            return "release drain close"
        case QueueState.DRAINING:
            return "open hold close"
        case QueueState.CLOSED:
            return "open hold"
    return "hold drain close"


@register.filter
def state_effect(state: str) -> str:
    """Return what a state other than open means for the queue's jobs."""
    return {
        QueueState.HELD: "None of its waiting jobs starts. Running jobs go on, and new jobs "
        "may wait.",
        QueueState.DRAINING: "It accepts no more jobs. Jobs already in it start and end as usual.",
        QueueState.CLOSED: "It accepts no more jobs.",
    }.get(QueueState(state), "")
