"""Form fields that parse policy settings."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from django import forms

from scheduling.pages.form_fields import MAX_TEXT
from scheduling.policy.document import MAX_ENTRIES, MAX_SECONDS
from tenants import texts

UNITS = {"seconds": 1, "minutes": 60, "hours": 3600}
SHORTEST = Decimal("0.01")


class Span(forms.DecimalField):
    """A time in a unit of UNITS; its value and its initial value are in seconds."""

    def __init__(self, label: str, unit: str, **kwargs: Any) -> None:
        self.unit_s = UNITS[unit]
        super().__init__(
            label=f"{label}, {unit}",
            min_value=0,
            max_value=MAX_SECONDS // self.unit_s,
            decimal_places=2,
            **kwargs,
        )

    def clean(self, value: Any) -> float:
        return float(super().clean(value) * self.unit_s)

    def typed(self, seconds: float) -> Decimal:
        """Write seconds in the unit, as people type them."""
        shortest = SHORTEST if seconds else Decimal(0)
        rounded = round(Decimal(str(seconds)) / self.unit_s, 2)
        return Decimal(f"{max(shortest, rounded).normalize():f}")


class Percent(forms.DecimalField):
    """A share typed in percent; its value and its initial value are from 0 to 1."""

    def __init__(self, label: str, **kwargs: Any) -> None:
        super().__init__(
            label=f"{label}, %", min_value=0, max_value=100, decimal_places=4, **kwargs
        )

    def clean(self, value: Any) -> float:
        return float(super().clean(value) / 100)

    def typed(self, share: float) -> Decimal:
        """Write a share in percent, as people type it."""
        return Decimal(f"{(Decimal(str(share)) * 100).normalize():f}")


class ShardLines(forms.CharField):
    """The shards of a cluster, one per line, as `shards` of a policy."""

    widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})
    rule = "NAME; GPU TYPES; GROUPS"

    def __init__(self, **kwargs: Any) -> None:
        # Not stripped, so that line numbers are those that people see.
        super().__init__(required=False, max_length=MAX_TEXT, strip=False, **kwargs)

    def clean(self, value: Any) -> list[dict[str, Any]]:
        lines = super().clean(value).split("\n")
        found = [_shard(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if len(found) > MAX_ENTRIES:
            raise forms.ValidationError(texts.no_longer_than(MAX_ENTRIES, "lines"))
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return self.clean(initial) != self.clean(data)
        except forms.ValidationError:
            return True

    @staticmethod
    def typed(shards: Iterable[Mapping[str, Any]]) -> str:
        """Write shards as people type them."""
        lines = ([s["name"], ", ".join(s["gpu_models"]), ", ".join(s["groups"])] for s in shards)
        return "\n".join("; ".join(parts).rstrip("; ") for parts in lines)


def _shard(number: int, line: str) -> dict[str, Any]:
    name, *more = (part.strip() for part in line.split(";"))
    if not name or len(more) > 2:
        raise forms.ValidationError(f"Line {number}: write {ShardLines.rule}.")
    models, groups = (part.replace(",", " ").split() for part in [*more, "", ""][:2])
    return {"name": name, "gpu_models": models, "groups": groups}
