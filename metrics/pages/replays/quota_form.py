"""The quotas of a replay as a form: what each tenant is guaranteed of each GPU type, and whether it
is isolated."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms

from metrics.replays import quotas
from scheduling.engine.types import Sharing
from scheduling.pages.tenants.tenants import in_tree_order
from tenants.forms import Fields
from tenants.models import GpuType, Tenant
from tenants.services.typed_gpus import typed_milli
from tenants.templatetags.ui import gpus

PATTERN = "quota_{}"
MODE_PATTERN = "isolated_{}"


class GpuAmount(forms.CharField):
    """GPUs as people write them, in milli-GPU; empty = None."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        try:
            return typed_milli(text) if text else None
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None


def text_of(document: quotas.Document | None) -> str:
    """Write the guarantee as people type it."""
    return "" if document is None else gpus(document["guaranteed"]).replace(",", "")


@dataclass(frozen=True, slots=True)
class QuotaNow:
    """The current quota of one tenant for one GPU type; None = there is none."""

    tenant: str
    gpu_type: str
    now: quotas.Document | None

    @property
    def is_isolated(self) -> bool:
        return self.now is not None and self.now["mode"] == Sharing.ISOLATED

    @property
    def text(self) -> str:
        return text_of(self.now)

    def changed(self, guaranteed: int, *, isolated: bool) -> dict[str, Any] | None:
        """Return the document with these values; a shared quota keeps its limits. None = no
        change."""
        mode = Sharing.ISOLATED if isolated else Sharing.SHARED
        if self.now and (guaranteed, mode) == (self.now["guaranteed"], self.now["mode"]):
            return None
        kept = {} if isolated or self.now is None else self.now
        return {
            "tenant": self.tenant,
            "gpu_type": self.gpu_type,
            "guaranteed": guaranteed,
            "mode": mode.value,
            "borrow_limit": kept.get("borrow_limit"),
            "lend_limit": kept.get("lend_limit"),
        }


@dataclass(frozen=True, slots=True)
class PlacedQuota:
    """A cell on the page."""

    cell: QuotaNow
    guaranteed: forms.BoundField
    isolated: forms.BoundField

    @property
    def edited(self) -> bool:
        typed = str(self.guaranteed.value() or "").strip()
        return (typed, bool(self.isolated.value())) != (self.cell.text, self.cell.is_isolated)

    @property
    def errors(self) -> list[str]:
        return [*self.guaranteed.errors, *self.isolated.errors]


@dataclass(frozen=True, slots=True)
class QuotaFormRow:
    tenant: Tenant
    depth: int
    places: list[PlacedQuota]


class QuotaGrid:
    """The cells of all tenants for the GPU types of a cluster, and their form fields."""

    def __init__(self, models: Collection[str]) -> None:
        """`models`: the cluster's GPU types; those on which quota is given get a column."""
        self.types = list(
            GpuType.objects.filter(name__in=models).order_by("name").values_list("name", flat=True)
        )
        self._tenants = in_tree_order(list(Tenant.objects.all()))
        now = quotas.stored()
        self.cells = [
            QuotaNow(tenant.name, name, quotas.document_of(found) if found else None)
            for tenant, _ in self._tenants
            for name in self.types
            for found in [now.get((tenant.name, name))]
        ]

    def add_to(self, form: Fields) -> None:
        for i, cell in enumerate(self.cells):
            attrs = {"inputmode": "decimal", "autocomplete": "off", "placeholder": "none"}
            attrs["aria-label"] = f"{cell.tenant} {cell.gpu_type} guaranteed GPUs"
            amount = GpuAmount(required=False, widget=forms.TextInput(attrs=attrs))
            form.add(PATTERN.format(i), amount)
            form.add(MODE_PATTERN.format(i), forms.BooleanField(label="isolated", required=False))

    def initial(self, instead: Sequence[quotas.Document] = ()) -> dict[str, Any]:
        """Return fields with the current quotas, or those in `instead`."""
        others = {(one["tenant"], one["gpu_type"]): one for one in instead}
        found: dict[str, Any] = {}
        for i, cell in enumerate(self.cells):
            document = others.get((cell.tenant, cell.gpu_type), cell.now)
            isolated = document is not None and document["mode"] == Sharing.ISOLATED
            found |= {PATTERN.format(i): text_of(document), MODE_PATTERN.format(i): isolated}
        return found

    def faults(self, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield (field, error) of incomplete cells."""
        for i, cell in enumerate(self.cells):
            name = PATTERN.format(i)
            if name in data and data[name] is None:
                if cell.now is not None:
                    yield name, "Write 0 to guarantee none."
                elif data[MODE_PATTERN.format(i)]:
                    yield name, "Write the number of guaranteed GPUs."

    def asked(self, data: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        """Return {number of the cell: document} for cells that differ from the current quota."""
        found = {}
        for i, cell in enumerate(self.cells):
            amount = data[PATTERN.format(i)]
            if amount is not None:
                document = cell.changed(amount, isolated=data[MODE_PATTERN.format(i)])
                if document is not None:
                    found[i] = document
        return found

    def rows(self, form: Fields) -> list[QuotaFormRow]:
        width = len(self.types)
        return [
            QuotaFormRow(
                tenant,
                depth,
                [
                    PlacedQuota(
                        self.cells[i], form[PATTERN.format(i)], form[MODE_PATTERN.format(i)]
                    )
                    for i in range(number * width, (number + 1) * width)
                ],
            )
            for number, (tenant, depth) in enumerate(self._tenants)
        ]
