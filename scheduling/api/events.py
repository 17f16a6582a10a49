"""REST for what happened on clusters and in the organisation."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from scheduling.queries.events.stream import (
    CHANGES,
    LONGEST,
    THEMES,
    EventsWanted,
    event_kinds,
    period,
    stream,
)
from scheduling.queries.names import cluster_names, node_names
from scheduling.queries.selectors import visible_jobs, what_is_gone
from tenants.api.base import View
from tenants.api.filters import MomentField, asked_for
from tenants.api.pagination import bad_cursor, limit_of
from tenants.api.problems import bad_query
from tenants.api.schema import Shape
from tenants.database.keyset import BadCursor
from tenants.names import tenant_names
from tenants.selectors import subtree_ids

WHEN = "Time, e.g. 2030-01-31T12:00:00Z"
QUERY = {
    "kind": (
        "Kind of a job event, e.g. PREEMPTED; an action of the audit trail, e.g. quota.changed, "
        f"or quota for all actions on quotas; or {', '.join(THEMES)} or {CHANGES} for several "
        "kinds."
    ),
    "tenant": "Name of a tenant; includes all tenants below it.",
    "cluster": "Name of a cluster.",
    "node": "Name of a node: changes of the node, and events of jobs that had pods on it.",
    "job": "Id of a job.",
    "since": f"{WHEN}; default: one day before `until`; at most {LONGEST.days} days before it.",
    "until": f"{WHEN}; default: now.",
    "limit": "Items per page, from 1 to 500; default 50.",
    "cursor": "Start of the page: the cursor in `next` of the previous page.",
}


class StreamEventOutput(serializers.Serializer[Any]):
    """An event of a job or an entry of the audit trail.

    `kind`: of the job's event, or the action of the audit trail. `subject`: the name of the job, or
    what was changed. `job`, `tenant`, `cluster`: null if the event concerns none. `reason`: a code,
    empty if there is none. `message`: a sentence; for a change, the reason that was given. `by`:
    who did it, empty = Kant itself.
    """

    at = serializers.DateTimeField()
    kind = serializers.CharField()
    subject = serializers.CharField()
    job = serializers.UUIDField(source="job.pk", allow_null=True, default=None)
    tenant = serializers.CharField(allow_null=True)
    cluster = serializers.CharField(allow_null=True)
    reason = serializers.CharField()
    message = serializers.CharField()
    by = serializers.CharField()


class StreamOutput(serializers.Serializer[Any]):
    """A page of events.

    `next`: the address of the next page, null on the last one. `since`, `until`: the period
    covered.
    """

    items = StreamEventOutput(many=True)
    next = serializers.URLField(allow_null=True)
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()


class EventsView(View):
    """Events of jobs, and changes by people, newest first.

    Shows the jobs of tenants that you may see, and the changes whose audit trail you may read.
    """

    shapes = {"GET": Shape(StreamOutput, texts=QUERY)}
    query = {"GET": frozenset(QUERY)}

    def get(self, request: Request) -> Response:
        wanted = self._wanted(request)
        try:
            found, cursor = stream(
                self.actor, wanted, limit_of(request), request.query_params.get("cursor")
            )
        except BadCursor:
            raise bad_cursor() from None
        following = None
        if cursor is not None:
            here = request.build_absolute_uri()
            # The next page covers the same period, however late it is requested.
            for name, value in (
                ("since", wanted.since.isoformat()),
                ("until", wanted.until.isoformat()),
                ("cursor", cursor),
            ):
                here = replace_query_param(here, name, value)
            following = here
        body = {"items": found, "next": following, "since": wanted.since, "until": wanted.until}
        return Response(StreamOutput(body).data)

    def _wanted(self, request: Request) -> EventsWanted:
        query = request.query_params
        try:
            since, until = period(_moment(query, "since"), _moment(query, "until"), timezone.now())
        except ValueError as error:
            raise bad_query("since", str(error)) from None
        if (kind := query.get("kind", "")) and kind not in (kinds := event_kinds()):
            raise bad_query("kind", kinds.refusal(kind))
        tenants = cluster = job = None
        if name := query.get("tenant", ""):
            tenants = frozenset(subtree_ids(asked_for("tenant", name, tenant_names(self.actor)).pk))
        if name := query.get("cluster", ""):
            cluster = asked_for("cluster", name, cluster_names())
        if node := query.get("node", ""):
            asked_for("node", node, node_names(since))
        if text := query.get("job", ""):
            try:
                job = UUID(text)
            except ValueError:
                raise bad_query("job", "Must be a job id.") from None
            if not visible_jobs(self.actor).filter(pk=job).exists():
                raise bad_query("job", f"There is no job {job} that you may see.{what_is_gone()}")
        return EventsWanted(since, until, kind, tenants, cluster, node, job)


def _moment(query: Any, name: str) -> datetime | None:
    try:
        moment: datetime | None = MomentField(required=False).clean(query.get(name, ""))
    except ValidationError as error:
        raise bad_query(name, error.messages[0]) from None
    return moment
