"""What a quota in a draft shall be, of what was typed."""

from typing import Any

from tenants.errors import Invalid
from tenants.models import DraftCell, Quota, QuotaMode
from tenants.services.quota_terms import COLUMNS, LIMITS, TITLES, QuotaTerms, with_fields
from tenants.services.typed_gpus import as_typed, typed_milli

TERMS = ("mode", *LIMITS)  # that may be edited beside the guarantee


def typed_in(cell: DraftCell) -> dict[str, str]:
    """The fields of the quota that the edit sets, as typed."""
    return {"guaranteed": cell.typed, **cell.terms}


def wanted(cell: DraftCell) -> dict[str, Any]:
    """The fields of the quota that the edit sets, in milli-GPU. Raises Invalid (by field) where
    one cannot be read."""
    found = dict[str, Any]()
    for name, text in typed_in(cell).items():
        if name == "mode" or (name in LIMITS and not text.strip()):
            found[name] = text or None
            continue
        try:
            found[name] = typed_milli(text)
        except ValueError as error:
            raise Invalid.field(name, str(error)) from None
    return found


def is_edit(cell: DraftCell, quota: Quota | None) -> bool:
    """Whether the edit makes the quota another than it is, or cannot be read."""
    try:
        terms = with_fields(quota, wanted(cell))
    except Invalid:
        return True
    return quota is None or terms != QuotaTerms.of(quota)


def terms_typed(quota: Quota | None) -> dict[str, str]:
    """Mode and limits of a quota as somebody would type them."""
    row = quota or Quota()
    limits = {name: as_typed(getattr(row, COLUMNS[name])) for name in LIMITS}
    return {"mode": str(row.mode), **limits}


def terms_in_words(cell: DraftCell, quota: Quota | None) -> list[str]:
    """What the edit makes of mode and limits, where that is another than now: "Mode Isolated"."""
    now, words = terms_typed(quota), []
    for name, text in cell.terms.items():
        if text != now[name]:
            said = QuotaMode(text).label if name == "mode" else text or "no limit"
            words.append(f"{TITLES[name]} {said}")
    return words
