"""REST for queues: read with an ETag, change with it; hold, release, drain, close, open."""

import uuid
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import facts, selectors
from tenants.api.base import ListView, View, etag, expected_version, location, rehearsed
from tenants.api.effects import DryRunWithEffects, effects_body
from tenants.api.filters import QueueFilter
from tenants.api.idempotency import idempotent
from tenants.api.queue_serializers import (
    QueueAnswer,
    QueueChange,
    QueueInput,
    QueueOutput,
    QueueReason,
    QueueRevertAnswer,
)
from tenants.api.schema import Shape
from tenants.errors import Invalid, NotFound
from tenants.models import AuditRecord, Queue, QueueState
from tenants.permissions import access_of
from tenants.services.audit import API, Why
from tenants.services.queues.change import (
    QueueChangeResult,
    change_queue,
    create_queue,
    delete_queue,
    release_queue,
    set_state,
)
from tenants.services.queues.revert import queue_reversal_of, revert_queue_change
from tenants.services.queues.terms import QueueTerms, subject_of

REASON = {"reason": "Reason, kept in the audit trail. Required."}


class QueuesView(ListView):
    """Queues of the tenants you see, by tenant and name. Every tenant has the queue `default`, for
    jobs that name none."""

    shapes = {
        "GET": Shape(QueueOutput, many=True),
        "POST": Shape(QueueAnswer, QueueInput, creates=True),
    }

    page_order = ("tenant__name", "name")
    filterset_class = QueueFilter
    serializer_class = QueueOutput

    def get_queryset(self) -> QuerySet[Queue]:
        return selectors.visible_queues(self.request.user)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "loads": facts.scheduling().queue_loads()}

    def get(self, _request: Request) -> Response:
        return self.page(QueueOutput)

    @idempotent()
    def post(self, _request: Request) -> Response:
        given = self.body(QueueInput)
        try:
            tenant = selectors.tenant_by_name(access_of(self.actor), given["tenant"])
        except NotFound as error:
            raise Invalid.field("tenant", error.detail) from None
        why = Why(given.get("reason", ""), API)
        made = create_queue(
            self.actor,
            tenant,
            given["name"],
            QueueTerms.given(given),
            why=why,
            dry_run=self.dry_run,
        )
        if self.dry_run:
            return rehearsed("create", _shown(made.queue), list(made.warnings))
        where = location(self.request, "api-queue", tenant.name, made.queue.name)
        return Response(_answer(made), 201, headers={**where, **etag(made.queue.version)})


class QueueView(View):
    """One queue.

    PATCH changes the fields that it names. Jobs already in the queue continue; the answer says what
    a new limit means for them, and a dry run what the change would do to jobs. DELETE needs a queue
    without open jobs.
    """

    shapes = {
        "GET": Shape(QueueOutput),
        "PATCH": Shape(QueueAnswer, QueueChange, versioned=True, rehearsal=DryRunWithEffects),
        "DELETE": Shape(versioned=True, texts=REASON),
    }

    query = {"DELETE": frozenset(REASON)}

    def get(self, _request: Request, tenant: str, name: str) -> Response:
        queue = selectors.queue_by_name(self.actor, tenant, name)
        return Response(_shown(queue), headers=etag(queue.version))

    def patch(self, request: Request, tenant: str, name: str) -> Response:
        given = self.changes(QueueChange)
        why = Why(given.pop("reason", ""), API)
        queue = selectors.queue_by_name(self.actor, tenant, name)
        version = expected_version(request)
        changed = change_queue(
            self.actor, queue, given, expected_version=version, why=why, dry_run=self.dry_run
        )
        return _changed(self, changed)

    def delete(self, request: Request, tenant: str, name: str) -> Response:
        queue = selectors.queue_by_name(self.actor, tenant, name)
        why = Why(request.query_params.get("reason", ""), API)
        version = expected_version(request)
        delete_queue(self.actor, queue, expected_version=version, why=why, dry_run=self.dry_run)
        return rehearsed("delete", None) if self.dry_run else Response(status=204)


class QueueActionView(View):
    """Changes the state of a queue. A dry run says what it would do to jobs."""

    shapes = {
        "POST": Shape(QueueAnswer, QueueReason, rehearsal=DryRunWithEffects),
    }
    state: ClassVar[str] = ""

    @idempotent()
    def post(self, _request: Request, tenant: str, name: str) -> Response:
        why = Why(self.body(QueueReason)["reason"], API)
        queue = selectors.queue_by_name(self.actor, tenant, name)
        return _changed(self, self.done(queue, why))

    def done(self, queue: Queue, why: Why) -> QueueChangeResult:
        return set_state(self.actor, queue, self.state, why=why, dry_run=self.dry_run)


class QueueHoldView(QueueActionView):
    """Stops starting jobs of the queue. Running jobs continue, and new ones may wait."""

    state = QueueState.HELD.value


class QueueReleaseView(QueueActionView):
    """Lets a held queue start jobs again."""

    def done(self, queue: Queue, why: Why) -> QueueChangeResult:
        return release_queue(self.actor, queue, why=why, dry_run=self.dry_run)


class QueueDrainView(QueueActionView):
    """The queue takes no new jobs; those already in it start and end as usual."""

    state = QueueState.DRAINING.value


class QueueCloseView(QueueActionView):
    """The queue takes no new jobs until it is opened again."""

    state = QueueState.CLOSED.value


class QueueOpenView(QueueActionView):
    """The queue takes jobs and starts them."""

    state = QueueState.OPEN.value


ACTIONS: dict[str, type[QueueActionView]] = {
    "hold": QueueHoldView,
    "release": QueueReleaseView,
    "drain": QueueDrainView,
    "close": QueueCloseView,
    "open": QueueOpenView,
}


class QueueRevertView(View):
    """Reverts a change of a queue, given the id of its record in the audit trail, as a change of
    its own. `GET /api/v1/audit?action=queue` lists these records. The version is that of the queue;
    `If-None-Match: *` if there is none now."""

    shapes = {"POST": Shape(QueueRevertAnswer, QueueReason, versioned=True)}

    @idempotent()
    def post(self, request: Request, tenant: str, name: str, record_id: uuid.UUID) -> Response:
        why = Why(self.body(QueueReason)["reason"], API)
        version = expected_version(request)
        records = selectors.visible_audit_records(self.actor).filter(
            action__startswith="queue.", subject=subject_of(tenant, name)
        )
        record: AuditRecord | None = records.filter(pk=record_id).first()
        if record is None:
            raise NotFound(
                f"There is no change {record_id} of queue “{tenant}/{name}” that you may see. "
                "GET /api/v1/audit?action=queue lists them."
            )
        there_was = queue_reversal_of(record).queue is not None
        reverted = revert_queue_change(
            self.actor, record, expected_version=version, why=why, dry_run=self.dry_run
        )
        body = _shown(reverted.queue) if reverted else None
        warnings = list(reverted.warnings) if reverted else []
        if self.dry_run:
            would = "delete" if body is None else "update" if there_was else "create"
            return rehearsed(would, body, warnings)
        headers = etag(reverted.queue.version) if reverted else {}
        return Response({"queue": body, "warnings": warnings}, headers=headers)


def _changed(view: View, changed: QueueChangeResult) -> Response:
    if view.dry_run:
        effects = facts.scheduling().queue_effects(view.actor, changed.queue)
        return rehearsed(
            "update",
            _shown(changed.queue),
            list(changed.warnings),
            effects=effects_body(effects),
        )
    return Response(_answer(changed), headers=etag(changed.queue.version))


def _answer(changed: QueueChangeResult) -> dict[str, Any]:
    return {**_shown(changed.queue), "warnings": list(changed.warnings)}


def _shown(queue: Queue) -> dict[str, Any]:
    load = facts.scheduling().queue_load(queue.tenant_id, queue.name)
    context = {"loads": {(queue.tenant_id, queue.name): load}}
    return dict(QueueOutput(queue, context=context).data)
