"""Which fields of a quota somebody else has changed while it was being edited."""

from collections.abc import Mapping
from dataclasses import dataclass

from tenants.models import QuotaMode
from tenants.services.moves.typed import TITLES as PLACE_TITLES
from tenants.services.quota_terms import COLUMNS, LIMITS, NAMES, QuotaTerms
from tenants.services.quota_terms import TITLES as QUOTA_TITLES
from tenants.services.typed_gpus import as_typed

TITLES = {**QUOTA_TITLES, **PLACE_TITLES}


@dataclass(frozen=True, slots=True)
class FieldConflict:
    """A field of a quota or tenant with conflicting values, in words.

    `mine`: the edit's value; None = the edit does not set it. `theirs`: the value that somebody
    else set; None = the quota is gone. `base`: the value when the edit began; None = there was
    none, or it is unknown.
    """

    field: str
    mine: str | None
    theirs: str | None
    base: str | None

    @property
    def told(self) -> str:
        """E.g. “May borrow: theirs 4, yours no limit, 8 when you began.”"""
        mine = "you left it" if self.mine is None else f"yours {self.mine}"
        began = "" if self.base is None else f", {self.base} when you began"
        return f"{TITLES[self.field]}: theirs {self.theirs or 'removed'}, {mine}{began}."


def field_conflicts(
    mine: Mapping[str, str], theirs: QuotaTerms | None, base: QuotaTerms | None
) -> list[FieldConflict]:
    """Return the fields that somebody else changed, or that the edit sets to another value than
    theirs. `mine`: the fields that the edit sets, as typed."""
    found = []
    for name in NAMES:
        said = FieldConflict(name, _mine(name, mine), _said(name, theirs), _said(name, base))
        changed = said.base is not None and said.base != said.theirs
        if changed or said.mine not in (None, said.theirs):
            found.append(said)
    return found


def _mine(name: str, mine: Mapping[str, str]) -> str | None:
    if name in LIMITS and mine.get("mode") == QuotaMode.ISOLATED:
        return _typed(name, "")  # an isolated quota has no limits
    return _typed(name, mine[name]) if name in mine else None


def _said(name: str, terms: QuotaTerms | None) -> str | None:
    if terms is None:
        return None
    value = getattr(terms, name)
    return _typed(name, value if name == "mode" else as_typed(value))


def _typed(name: str, text: str) -> str:
    if name == "mode":
        return str(QuotaMode(text).label) if text in QuotaMode.values else text
    text = text.strip()
    return "no limit" if name in LIMITS and not text else text


def order_typed(guaranteed_milli: int, terms: Mapping[str, str | int | None]) -> dict[str, str]:
    """Return the fields that an order sets, as a person would type them."""
    amounts = {
        name: str(value) if name == "mode" else as_typed(value if isinstance(value, int) else None)
        for name, value in terms.items()
        if name in COLUMNS
    }
    return {"guaranteed": as_typed(guaranteed_milli), **amounts}
