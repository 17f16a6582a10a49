"""The form for what jobs of a cluster may name."""

from collections.abc import Mapping
from typing import Any

from django import forms

from scheduling.job_fields.definition import JobDocument
from scheduling.job_fields.parts import limits_of
from scheduling.pages.form_fields import NameLines
from scheduling.services.jobs.permitted import MOST_NAMES, SWITCHES, effective_rules
from tenants.errors import DomainError
from tenants.forms import Fields

DEFAULTS = effective_rules({})
LISTS = (
    *("denied_tolerations", "denied_annotations", "denied_labels", "denied_env"),
    *("capabilities", "denied_runtime_classes", "denied_priority_classes"),
)


def names(label: str, what: str, default: str = "") -> NameLines:
    told = f"{what} Default: {', '.join(DEFAULTS[default])}" if default else what
    return NameLines(label=label, most=MOST_NAMES, help_text=told, show_hidden_initial=True)


def switch(label: str, what: str = "") -> forms.BooleanField:
    return forms.BooleanField(label=label, required=False, show_hidden_initial=True, help_text=what)


class RulesForm(Fields):
    """The current rules. Only changed fields are saved, so that other people's changes stay."""

    denied_tolerations = names(
        "Refused tolerations",
        "Taint keys.",
        "denied_tolerations",
    )
    toleration_of_everything = switch(
        "Allow tolerations without a key",
        "They tolerate every taint, also that of cordoned nodes",
    )
    any_service_account = switch("Any service account of the namespace")
    service_accounts = names(
        "Only these service accounts",
        "Used only if the box above is not checked. Empty: none.",
    )
    max_priority = forms.IntegerField(
        label="Highest priority",
        required=False,
        show_hidden_initial=True,
        min_value=limits_of(JobDocument, "priority")[0],
        max_value=limits_of(JobDocument, "priority")[1],
        help_text="Jobs with a higher priority are refused; a tenant may have a lower limit. "
        "Empty: no limit",
    )
    denied_annotations = names(
        "Refused annotations",
        "They could give a pod networks or devices that Kant does not count.",
        "denied_annotations",
    )
    denied_labels = names(
        "Refused labels",
        "NAME, or NAME=VALUE.",
        "denied_labels",
    )
    denied_env = names(
        "Refused variables",
        "Also those from secrets. Some make the runtime give a pod more GPUs.",
        "denied_env",
    )
    host_network = switch("Pods of jobs may use the network of their node")
    privileged = switch(
        "Containers may be privileged, or without a seccomp profile",
        "They can then do on the node what its administrators can",
    )
    capabilities = names(
        "Capabilities that containers may add",
        "As Kubernetes writes them, without CAP_.",
        "capabilities",
    )
    denied_runtime_classes = names("Refused runtime classes", "Names.")
    denied_priority_classes = names(
        "Refused priority classes",
        "They decide how late a node under pressure evicts a pod.",
        "denied_priority_classes",
    )

    def __init__(self, rules: Mapping[str, Any], data: Any = None) -> None:
        """`rules`: all current rules, from `effective_rules`."""
        self._rules = dict(rules)
        accounts = rules["service_accounts"]
        initial = {name: "\n".join(rules[name]) for name in LISTS} | {
            **{name: rules[name] for name in SWITCHES},
            "max_priority": rules["max_priority"],
            "any_service_account": accounts is None,
            "service_accounts": "\n".join(accounts or ()),
        }
        super().__init__(data, initial=initial)

    @property
    def switches_of_containers(self) -> list[forms.BoundField]:
        return [self[name] for name in ("host_network", "privileged")]

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = self.cleaned_data
        if data.get("any_service_account") and data.get("service_accounts"):
            text = (
                "Any service account is allowed. Clear that checkbox to allow only these, or "
                "leave this empty."
            )
            self.add_error("service_accounts", text)
        return data

    def document(self) -> dict[str, Any]:
        """Return the rules as `Cluster.job_rules`; those equal to the defaults are left out and
        follow them."""
        rules, data = dict(self._rules), self.cleaned_data
        for name in self.changed_data:
            if name not in ("any_service_account", "service_accounts"):
                rules[name] = data[name]
        if {"any_service_account", "service_accounts"} & {*self.changed_data}:
            any_one = data["any_service_account"]
            rules["service_accounts"] = None if any_one else data["service_accounts"]
        return {name: value for name, value in rules.items() if value != DEFAULTS[name]}

    def show(self, error: DomainError) -> None:
        """Show each error at its field; errors about other settings of the cluster go above the
        form."""
        for fault in error.errors:
            name = fault.field.removeprefix("job_rules.")
            if name in self.fields:
                self.add_error(name, fault.detail)
            else:
                self.add_error(None, f"{fault.field} of the cluster: {fault.detail}")
        if not error.errors:
            self.add_error(None, error.detail)
