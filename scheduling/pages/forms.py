"""The forms that change a job and a tenant's limits, and how forms show errors."""

from collections.abc import Mapping
from typing import Any

from django import forms

from scheduling.engine.states import WAITING
from scheduling.job_fields.definition import JobDocument, PodSetDocument
from scheduling.job_fields.parts import MINUTES, limits_of
from scheduling.kube.translate.manifests import VOLUME_SOURCES
from scheduling.models import Job, PodSet
from scheduling.pages.asked import asked, asked_of, read
from scheduling.services.jobs.resizing import may_be_resized
from tenants.errors import DomainError
from tenants.forms import Fields
from tenants.models import MAX_MIN_RUNTIME_S, Tenant
from tenants.services.tenant_terms import LIMITS as TENANT_LIMITS
from tenants.services.tenant_terms import MAX_JOBS

# Field of the document → its form field, where the names differ.
SHOWN_AS = {
    "gpu_milli": "gpus",
    "gpu_types": "gpu_type",
    **{f.name: n for s in (JobDocument, PodSetDocument) for n, f in asked_of(s).items()},
    "min_runtime_s": "min_runtime_min",
    "preferred_level": "required_level",
    **dict.fromkeys(VOLUME_SOURCES, "resource"),
}
DAMAGED = "The form is damaged. Load the page again."


def in_minutes(seconds: float | None) -> str | None:
    """Write seconds as minutes, as people do."""
    return None if seconds is None else MINUTES.write(seconds)


class ChangeForm(Fields):
    """Changes to a job. Of a waiting job, its queue and more may change; of a running job, only its
    times and, where allowed, the number of its pods.

    Each field carries the value it was shown with. So only what the user changed is sent, even if
    somebody else has changed other values in between. `sized`: {name of the field: pod set whose
    count can change}.
    """

    queue = forms.ChoiceField(
        label="Queue",
        required=False,
        show_hidden_initial=True,
        help_text="The job keeps its submission time",
    )
    priority = asked(JobDocument, "priority", show_hidden_initial=True)
    declared_min = asked(
        JobDocument,
        "declared_s",
        show_hidden_initial=True,
        help_text="Expected, counted from its start. Empty: not declared",
    )
    limit_min = asked(JobDocument, "run_limit_s", show_hidden_initial=True)

    def __init__(self, job: Job, data: Any = None) -> None:
        super().__init__(
            data,
            prefix="change",
            initial={
                "queue": job.queue,
                "priority": job.priority,
                "declared_min": in_minutes(job.declared_s),
                "limit_min": in_minutes(job.run_limit_s),
            },
        )
        if job.state not in WAITING and self.add_prefix("priority") not in (data or {}):
            del self.fields["priority"]  # if an older page sends it, the service says why not
        self._offer_queues(job, data or {})
        self.sized: dict[str, str] = {}
        sets = list(job.pod_sets.all())
        for row in sets:
            name = f"pods_{row.index}"
            sent = self.add_prefix(name) in (data or {})
            if sent or may_be_resized(job, row):
                self.sized[name] = row.name
                label = "Pods" if len(sets) == 1 else f"Pods of {row.name}"
                self.add(name, _pods(job, row, label, required=sent))

    def _offer_queues(self, job: Job, data: Any) -> None:
        """Offer the queues of the job's tenant if the job may move to another one."""
        names = [job.queue]
        if job.state in WAITING or self.add_prefix("queue") in data:
            names = list(job.tenant.queues.order_by("name").values_list("name", flat=True))
        if len({*names, job.queue}) < 2:
            del self.fields["queue"]
            return
        choice = self.fields["queue"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = [(name, name) for name in dict.fromkeys((*names, job.queue))]

    def changes(self) -> dict[str, Any]:
        """Return the changes, keyed as in `services.job_changes`."""
        fields = asked_of(JobDocument)
        found: dict[str, Any] = {
            fields[name].name: read(fields[name], self.cleaned_data[name])
            for name in self.changed_data
            if name in fields
        }
        if self._resized:
            found["pod_sets"] = [
                {"name": self.sized[f], "count": self.cleaned_data[f]} for f in self._resized
            ]
        return found

    def show(self, error: DomainError) -> None:
        """Show each error at its field."""
        pods = {f"pod_sets.{i}.count": field for i, field in enumerate(self._resized)}
        show(self, error, SHOWN_AS | pods)

    @property
    def _resized(self) -> list[str]:
        return [field for field in self.changed_data if field in self.sized]


def _pods(job: Job, row: PodSet, label: str, *, required: bool) -> forms.IntegerField:
    least = row.min_count if job.gang and row.min_count else 1
    return forms.IntegerField(
        label=label,
        required=required,
        initial=row.count,
        show_hidden_initial=True,
        min_value=least,
        max_value=limits_of(PodSetDocument, "count")[1],
        help_text="" if job.state in WAITING else "If fewer, the last pods leave",
    )


def show(form: Fields, error: DomainError, shown_as: Mapping[str, str] = SHOWN_AS) -> None:
    """Show each error at its field, and those without one above the form."""
    for fault in error.errors:
        name = shown_as.get(fault.field, fault.field)
        form.add_error(name if name in form.fields else None, fault.detail)
    if not error.errors:
        form.add_error(None, error.detail)


def limit(label: str, help_text: str, least: int, most: int) -> forms.IntegerField:
    return forms.IntegerField(
        label=label,
        help_text=help_text,
        required=False,
        show_hidden_initial=True,
        min_value=least,
        max_value=most,
    )


class LimitsForm(Fields):
    """The limits on the jobs of a tenant and all below it; for operators also the minimum run
    time of these jobs and the namespace of their pods. Only changed fields are sent, as in
    ChangeForm."""

    max_running = limit("Run at once", "Empty: no limit", 0, MAX_JOBS)
    max_waiting = limit("Wait at once", "Empty: no limit", 0, MAX_JOBS)
    max_priority = limit(
        "Highest priority",
        "Jobs with a higher priority are refused. Empty: no limit",
        *limits_of(JobDocument, "priority"),
    )
    min_runtime_min = forms.DecimalField(
        label="Minimum run time, minutes",
        show_hidden_initial=True,
        required=False,
        min_value=0,
        max_value=MAX_MIN_RUNTIME_S // MINUTES.size,
        decimal_places=MINUTES.decimals,
    )
    namespace = forms.CharField(
        label="Namespace of their pods",
        required=False,
        empty_value=None,
        show_hidden_initial=True,
        max_length=63,
    )
    reason = forms.CharField(
        label="Reason", required=False, max_length=2000, help_text="Kept with the change"
    )

    def __init__(self, tenant: Tenant, data: Any = None, *, operator: bool) -> None:
        initial = {name: getattr(tenant, name) for name in (*TENANT_LIMITS, "namespace")}
        initial["min_runtime_min"] = in_minutes(tenant.min_runtime_s)
        super().__init__(data, initial=initial)
        if operator:
            above = f"that of {tenant.parent.name}" if tenant.parent else "that of the cluster"
            self.fields["namespace"].help_text = f"In Kubernetes. Empty: {above}"
            if not tenant.parent:
                above = "that of the cluster's policy"
            self.fields["min_runtime_min"].help_text = f"Empty: {above}"
        else:
            del self.fields["namespace"], self.fields["min_runtime_min"]

    def changes(self) -> dict[str, Any]:
        """Return the changes, keyed as in `tenants.services.tenants.FIELDS`."""
        found = {name: self.cleaned_data[name] for name in self.changed_data if name != "reason"}
        if "min_runtime_min" in found:
            least = found.pop("min_runtime_min")
            found["min_runtime_s"] = None if least is None else float(60 * least)
        return found
