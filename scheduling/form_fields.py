"""Fields that read texts of people as the lists and mappings of a job document."""

import re
from typing import Any

from django import forms

from scheduling.services.faults import LIMITS
from tenants import texts

MAX_TEXT = 65_536


class Names(forms.CharField):
    """Names with spaces or commas between, at most so many, as a list."""

    def __init__(self, *, most: int, **kwargs: Any) -> None:
        self.most = most
        super().__init__(required=False, max_length=MAX_TEXT, **kwargs)

    def clean(self, value: Any) -> list[str]:
        found = re.findall(r"[^\s,]+", super().clean(value))
        if len(found) > self.most:
            raise forms.ValidationError(texts.no_longer_than(self.most, "names"))
        return found


class Pairs(forms.CharField):
    """Lines of NAME=VALUE, at most so many, as a mapping. Empty lines count for nothing."""

    widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})
    rule = "NAME=VALUE"

    def __init__(self, *, most: int, **kwargs: Any) -> None:
        self.most = most
        # The lines are counted as they are typed.
        super().__init__(required=False, max_length=MAX_TEXT, strip=False, **kwargs)

    def clean(self, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, line in enumerate(super().clean(value).split("\n"), 1):
            name, equals, text = line.strip().partition("=")
            if not (name or equals):
                continue
            pair = self.read(text)
            if not (name and equals and pair is not None):
                raise forms.ValidationError(f"Line {number}: write {self.rule}.")
            if name in found:
                raise forms.ValidationError(f"Line {number}: {name} is there already. Keep one.")
            found[name] = pair
        if len(found) > self.most:
            raise forms.ValidationError(texts.no_longer_than(self.most, "lines"))
        return found

    def read(self, text: str) -> Any:
        """What a text after the equals sign means; None where it means nothing."""
        return text


class SecretKeys(Pairs):
    """Lines of NAME=SECRET/KEY, as `env_from_secrets` of a pod set."""

    rule = "NAME=SECRET/KEY"

    def read(self, text: str) -> dict[str, str] | None:
        secret, _, key = text.partition("/")
        return {"secret": secret, "key": key} if secret and key else None


def gib(name: str, label: str, help_text: str = "") -> forms.DecimalField:
    """A field for an amount of memory in GiB, `name` as in LIMITS, where it is in MiB: so fine that
    every whole MiB can be said."""
    return forms.DecimalField(
        label=label,
        required=False,
        min_value=0,
        max_value=LIMITS[name][1] // 1024,
        decimal_places=4,
        help_text=help_text,
    )
