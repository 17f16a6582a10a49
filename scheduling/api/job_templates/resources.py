"""REST for templates: jobs that tenants keep under a name."""

import uuid
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.filters import TemplateFilter
from scheduling.api.job_templates.serializers import TemplateChange, TemplateInput, TemplateOutput
from scheduling.models import JobTemplate
from scheduling.services.jobs.templates import (
    change_template,
    delete_template,
    save_template,
    template_by_id,
    visible_templates,
)
from tenants import selectors
from tenants.api.base import ListView, View, location, rehearsed
from tenants.api.idempotency import idempotent
from tenants.api.schema import Shape
from tenants.models import User
from tenants.permissions import access_of
from tenants.services.audit import API


class TemplatesView(ListView):
    """Templates of your tenants and of the tenants above them, by tenant and name.

    Tenant admins write them, at most 50 per tenant. To submit a job from a template, send its
    document with a name and a tenant to `POST /api/v1/jobs`.
    """

    shapes = {
        "GET": Shape(TemplateOutput, many=True),
        "POST": Shape(TemplateOutput, TemplateInput, creates=True),
    }

    page_order = ("tenant__name", "name")
    filterset_class = TemplateFilter
    queryset = JobTemplate.objects.none()
    serializer_class = TemplateOutput

    def get_queryset(self) -> QuerySet[JobTemplate]:
        return visible_templates(self.actor)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), **_context(self.actor)}

    def get(self, _request: Request) -> Response:
        return self.page(TemplateOutput)

    @idempotent()
    def post(self, _request: Request) -> Response:
        given = self.body(TemplateInput)
        tenant = selectors.tenant_by_name(access_of(self.actor), given.pop("tenant"))
        made = save_template(self.actor, tenant, **given, source=API, dry_run=self.dry_run)
        body = _shown(self.actor, made)
        if self.dry_run:
            return rehearsed("create", body)
        return Response(body, 201, headers=location(self.request, "api-template", made.pk))


class TemplateView(View):
    shapes = {
        "GET": Shape(TemplateOutput),
        "PATCH": Shape(TemplateOutput, TemplateChange),
        "DELETE": Shape(),
    }

    def get(self, _request: Request, template_id: uuid.UUID) -> Response:
        return Response(_shown(self.actor, template_by_id(self.actor, template_id)))

    def patch(self, _request: Request, template_id: uuid.UUID) -> Response:
        given = self.changes(TemplateChange)
        found = template_by_id(self.actor, template_id)
        changed = change_template(self.actor, found, **given, source=API, dry_run=self.dry_run)
        body = _shown(self.actor, changed)
        return rehearsed("update", body) if self.dry_run else Response(body)

    def delete(self, _request: Request, template_id: uuid.UUID) -> Response:
        found = template_by_id(self.actor, template_id)
        delete_template(self.actor, found, source=API, dry_run=self.dry_run)
        return rehearsed("delete", None) if self.dry_run else Response(status=204)


def _shown(viewer: User, template: JobTemplate) -> dict[str, Any]:
    return dict(TemplateOutput(template, context=_context(viewer)).data)


def _context(viewer: User) -> dict[str, Any]:
    return {"names": selectors.visible_names(viewer)}
