"""Shapes of queues in REST."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from tenants.api.fields import (
    Boolean,
    Choice,
    Integer,
    List,
    Number,
    Object,
    Serializer,
    Text,
)
from tenants.api.serializers import REASON
from tenants.facts import QueueLoad
from tenants.models import QueueOrder, QueueState
from tenants.services.queues.terms import (
    BOUNDS,
    MOST_NAMES,
    MOST_OF_A_NAME,
    SUBMITTERS,
)

_BOUNDS = {name: (least, most) for name, least, most in BOUNDS}
NO_LOAD = QueueLoad(0, 0, (), {})


def _number(name: str, text: str, **more: Any) -> Integer:
    least, most = _BOUNDS[name]
    return Integer(
        min_value=int(least), max_value=int(most), required=False, help_text=text, **more
    )


def _names(text: str) -> List:
    return List(
        child=Text(max_length=MOST_OF_A_NAME),
        max_length=MOST_NAMES,
        required=False,
        help_text=text,
    )


class QueueFields(Serializer):
    """The settings that a new queue may have and that may be changed later."""

    title = Text(max_length=200, allow_blank=True, required=False)
    weight = Number(
        required=False,
        help_text="Share among the tenant's queues of the same rank; more than 0.",
    )
    rank = _number("rank", "A tenant's queues of higher rank go first.")
    order = Choice(
        QueueOrder.values,
        required=False,
        allow_blank=True,
        help_text="Order of the queue's jobs; empty = the order that the cluster's policy sets.",
    )
    max_running = _number("max_running", "Most jobs that may run at once; null = no limit.",
                          allow_null=True)  # fmt: skip
    max_waiting = _number("max_waiting", "Most jobs that may wait at once; null = no limit.",
                          allow_null=True)  # fmt: skip
    max_gpus = Object(
        child=Number(),
        max_entries=256,
        required=False,
        help_text="{GPU type: most GPUs that the queue's jobs may hold at once}. Other types "
        "have no limit.",
    )
    default_priority = _number("default_priority", "Priority of jobs that set none; null = 0.",
                               allow_null=True)  # fmt: skip
    max_priority = _number(
        "max_priority", "Highest priority that its jobs may have; null = no limit.",
                           allow_null=True)  # fmt: skip
    default_run_limit_s = _number(
        "default_run_limit_s", "Run-time limit of jobs that set none, in seconds; null = no limit.",
        allow_null=True,
    )  # fmt: skip
    max_run_limit_s = _number(
        "max_run_limit_s",
        "Longest run-time limit that its jobs may set, in seconds; null = no limit.",
        allow_null=True,
    )  # fmt: skip
    default_preemptible = Boolean(
        required=False,
        allow_null=True,
        help_text="Whether jobs that do not set `preemptible` may be preempted; null = the queue "
        "sets nothing.",
    )
    kinds = _names("Kinds of jobs that the queue accepts; empty = all.")
    roles = List(
        child=Choice(SUBMITTERS),
        required=False,
        help_text="Roles whose users may submit here. Users in `users` and members of `groups` may "
        "submit, too; all need the right to submit to the tenant. All three empty: "
        "everybody with that right.",
    )
    users = _names("Names of users who may submit.")
    groups = _names("Groups, of Kant or of the OpenID provider, whose members may submit.")


class QueueInput(QueueFields):
    tenant = Text(max_length=63)
    name = Text(max_length=63)
    reason = Text(**REASON)


class QueueChange(QueueFields):
    """Fields that are left out stay as they are."""

    reason = Text(**REASON)


class QueueReason(Serializer):
    """The reason; kept in the audit trail."""

    reason = Text(max_length=2000)


class QueueOutput(serializers.Serializer[Any]):
    """A queue, its state and who set it, and its current jobs: how many wait and run, and the GPUs
    that they hold by type (`gpus_held`)."""

    tenant = serializers.CharField(source="tenant.name")
    name = serializers.CharField()
    title = serializers.CharField()
    weight = serializers.FloatField()
    rank = serializers.IntegerField()
    order = serializers.CharField()
    max_running = serializers.IntegerField(allow_null=True)
    max_waiting = serializers.IntegerField(allow_null=True)
    max_gpus = serializers.DictField(child=serializers.FloatField())
    default_priority = serializers.IntegerField(allow_null=True)
    max_priority = serializers.IntegerField(allow_null=True)
    default_run_limit_s = serializers.IntegerField(allow_null=True)
    max_run_limit_s = serializers.IntegerField(allow_null=True)
    default_preemptible = serializers.BooleanField(allow_null=True)
    kinds = serializers.ListField(child=serializers.CharField())
    roles = serializers.ListField(child=serializers.CharField())
    users = serializers.ListField(child=serializers.CharField())
    groups = serializers.ListField(child=serializers.CharField())
    state = serializers.ChoiceField(QueueState.values)
    state_reason = serializers.CharField()
    state_by = serializers.CharField()
    state_at = serializers.DateTimeField(allow_null=True)
    waiting = serializers.SerializerMethodField()
    running = serializers.SerializerMethodField()
    gpus_held = serializers.SerializerMethodField()
    version = serializers.IntegerField()
    created_at = serializers.DateTimeField()

    def get_waiting(self, queue: Any) -> int:
        return self._load(queue).waiting

    def get_running(self, queue: Any) -> int:
        return self._load(queue).running

    @extend_schema_field(serializers.DictField(child=serializers.FloatField()))
    def get_gpus_held(self, queue: Any) -> dict[str, float]:
        return {model: milli / 1000 for model, milli in self._load(queue).held.items()}

    def _load(self, queue: Any) -> QueueLoad:
        load: QueueLoad = self.context["loads"].get((queue.tenant_id, queue.name), NO_LOAD)
        return load


class QueueAnswer(QueueOutput):
    warnings = serializers.ListField(child=serializers.CharField())


class QueueRevertAnswer(serializers.Serializer[Any]):
    """The queue as it is now; null = deleted."""

    queue = QueueOutput(allow_null=True)
    warnings = serializers.ListField(child=serializers.CharField())
