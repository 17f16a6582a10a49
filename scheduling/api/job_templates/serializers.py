"""Serializers of job templates."""

from typing import Any

from rest_framework import serializers

from scheduling.api.document_serializers import made
from scheduling.api.job_serializers import JobInput
from scheduling.models import JobTemplate
from scheduling.services.jobs.templates import LONGEST_DESCRIPTION
from tenants.api.fields import Serializer, Text

TemplateDocument = made(
    "TemplateDocument",
    """A job, as it is submitted. A template leaves out the fields of a single job: name, tenant,
    `not_before`, `after`, `after_ok`, `held`; also variables and annotations that look like
    secrets.""",
    {
        **JobInput().fields,
        "name": Text(max_length=63, required=False, allow_null=True, allow_blank=True),
        "tenant": Text(max_length=63, required=False, allow_null=True, allow_blank=True),
    },
)


class TemplateInput(Serializer):
    tenant = Text(max_length=63)
    name = Text(
        max_length=63,
        help_text="Name of the template, with the rules of job names; unique in its tenant.",
    )
    description = Text(max_length=LONGEST_DESCRIPTION, required=False, allow_blank=True)
    document = TemplateDocument()


class TemplateChange(Serializer):
    description = Text(max_length=LONGEST_DESCRIPTION, required=False, allow_blank=True)
    document = TemplateDocument(required=False)


class TemplateOutput(serializers.Serializer[JobTemplate]):
    id = serializers.UUIDField()
    tenant = serializers.SerializerMethodField(
        help_text="Tenant that owns the template; null = a tenant above yours."
    )
    name = serializers.CharField()
    description = serializers.CharField()
    document = serializers.DictField(
        child=serializers.JSONField(),
        help_text="Body for POST /api/v1/jobs; add `name` and `tenant`.",
    )
    author = serializers.SerializerMethodField(
        help_text="User who saved it; null if `tenant` is null."
    )
    changed_at = serializers.DateTimeField()

    def get_tenant(self, template: JobTemplate) -> str | None:
        return template.tenant.name if self._known(template) else None

    def get_author(self, template: JobTemplate) -> str | None:
        return template.author_name if self._known(template) else None

    def _known(self, template: JobTemplate) -> bool:
        names: Any = self.context["names"]
        return template.tenant.name in names
