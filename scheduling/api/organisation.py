"""REST for the organisation as one document: for operators, and for Git."""

from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.organisation_serializers import (
    OrganisationAnswer,
    OrganisationDocument,
    OrganisationInput,
)
from scheduling.services.organisation.apply import Applying, ApplyResult, apply, export
from scheduling.services.organisation.document import told
from scheduling.services.organisation.plan import ThingChange
from tenants.api.base import View, rehearsed
from tenants.api.schema import Shape
from tenants.errors import Invalid
from tenants.services.audit import API, Why

NAME = "organisation"
FLAGS = {
    "prune": "Delete what the previous version of the document had and this one does not.",
    "overcommit": "Guarantee more GPUs than are installed.",
}


class OrganisationView(View):
    """The organisation (tenants, quotas, queues, GPU types, clusters, policies) as one document.

    GET returns all of it in the form that PUT takes. PUT changes the organisation to match the
    document, all of it or nothing.
    """

    shapes = {
        "GET": Shape(OrganisationDocument),
        "PUT": Shape(OrganisationAnswer, OrganisationInput, flags=FLAGS),
    }
    query = {"PUT": frozenset(FLAGS)}

    def get(self, _request: Request) -> Response:
        return Response(export(self.actor))

    def put(self, _request: Request) -> Response:
        given = self.body(OrganisationInput)
        applying = Applying(
            given.get("name", NAME),
            Why(given["reason"], API),
            prune=self.flag("prune"),
            overcommit=self.flag("overcommit"),
        )
        try:
            result = apply(self.actor, applying, given["document"], dry_run=self.dry_run)
        except Invalid as error:
            own = all(one.path[0] in ("reason", "name") for one in error.errors)
            raise error if own else error.below("document") from None
        body = _shown(result)
        if self.dry_run:
            return rehearsed("update", body, list(result.warnings))
        return Response({**body, "warnings": list(result.warnings)})


def _shown(result: ApplyResult) -> dict[str, object]:
    kept = [{"kind": kind, "names": names} for kind, *names in result.plan.kept]
    return {"changes": [_change(one) for one in result.plan.changes], "kept": kept}


def _change(change: ThingChange) -> dict[str, object]:
    kind, *names = change.key
    before = told(kind, {name: pair[0] for name, pair in change.fields.items()})
    after = told(kind, {name: pair[1] for name, pair in change.fields.items()})
    fields = [{"field": n, "before": before[n], "after": after[n]} for n in change.fields]
    return {"kind": kind, "names": names, "action": change.action, "fields": fields}
