"""What a draft's typed text means for a quota."""

from collections.abc import Mapping
from typing import Any

from tenants.errors import Invalid
from tenants.models import DraftCell, Quota, QuotaMode
from tenants.services.drafts.cell_text import fields_typed, named_terms
from tenants.services.quota_terms import COLUMNS, LIMITS, TITLES, QuotaTerms, with_fields
from tenants.services.typed_gpus import as_typed, typed_milli

TERMS = ("mode", *LIMITS)  # fields that may be edited besides the guarantee


def typed_in(cell: DraftCell) -> dict[str, str]:
    """Return the fields of the quota that the edit sets, as typed."""
    return fields_of(cell.typed, cell.terms)


def fields_of(text: str, terms: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that the text of a cell sets, together with the mode and limits next to it.
    A text that cannot be read counts as the guarantee."""
    try:
        fields = fields_typed(text)
    except ValueError:
        fields = {"guaranteed": text}
    return {"guaranteed": fields["guaranteed"], **terms, **fields}


def terms_beside(text: str, terms: Mapping[str, str]) -> dict[str, str]:
    """Keep the mode and limits that the text of the cell does not set itself."""
    named = named_terms(text)
    isolated = LIMITS if named.get("mode") == QuotaMode.ISOLATED else ()
    return {name: term for name, term in terms.items() if name not in {*named, *isolated}}


def fault_of(text: str) -> str:
    """Return why the text of a cell cannot be read, and how to fix it; "" if it can."""
    try:
        fields_typed(text)
    except ValueError as error:
        return str(error)
    return ""


def wanted(cell: DraftCell) -> dict[str, Any]:
    """Return the fields of the quota that the edit sets, in milli-GPU. Raises Invalid (by field)
    when one cannot be read."""
    return _read(cell.typed, cell.terms)


def _read(typed: str, terms: Mapping[str, str]) -> dict[str, Any]:
    if fault := fault_of(typed):
        raise Invalid.field("guaranteed", fault)
    found = dict[str, Any]()
    for name, text in fields_of(typed, terms).items():
        if name == "mode" or (name in LIMITS and not text.strip()):
            found[name] = text or None
            continue
        try:
            found[name] = typed_milli(text)
        except ValueError as error:
            raise Invalid.field(name, str(error)) from None
    return found


def is_edit(cell: DraftCell, quota: Quota | None) -> bool:
    """Return whether the edit changes the quota, or cannot be read."""
    return makes_another(quota, cell.typed, cell.terms)


def makes_another(quota: Quota | None, text: str, terms: Mapping[str, str]) -> bool:
    """Return whether the text of a cell, with the mode and limits next to it, changes the quota or
    cannot be read."""
    try:
        wished = with_fields(quota, _read(text, terms))
    except Invalid:
        return True
    return quota is None or wished != QuotaTerms.of(quota)


def terms_typed(quota: Quota | None) -> dict[str, str]:
    """Return mode and limits of a quota as a person would type them."""
    row = quota or Quota()
    limits = {name: as_typed(getattr(row, COLUMNS[name])) for name in LIMITS}
    return {"mode": str(row.mode), **limits}


def terms_in_words(terms: Mapping[str, str], quota: Quota | None) -> list[str]:
    """Return the mode and limits that an edit changes: "Mode Isolated"."""
    now, words = terms_typed(quota), []
    for name in TERMS:  # a database may return the keys in another order than they were written
        text = terms.get(name)
        if text is not None and text != now[name]:
            said = QuotaMode(text).label if name == "mode" else text or "no limit"
            words.append(f"{TITLES[name]} {said}")
    return words
