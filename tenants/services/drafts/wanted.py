"""What a quota in a draft shall be, of what was typed."""

from collections.abc import Mapping
from typing import Any

from tenants.errors import Invalid
from tenants.models import DraftCell, Quota, QuotaMode
from tenants.services.drafts.cell_text import fields_typed, named_terms
from tenants.services.quota_terms import COLUMNS, LIMITS, TITLES, QuotaTerms, with_fields
from tenants.services.typed_gpus import as_typed, typed_milli

TERMS = ("mode", *LIMITS)  # that may be edited beside the guarantee


def typed_in(cell: DraftCell) -> dict[str, str]:
    """The fields of the quota that the edit sets, as typed."""
    return fields_of(cell.typed, cell.terms)


def fields_of(text: str, terms: Mapping[str, str]) -> dict[str, str]:
    """The fields that a text of a cell sets with the mode and limits beside it; a text that cannot
    be read is all of the guarantee."""
    try:
        fields = fields_typed(text)
    except ValueError:
        fields = {"guaranteed": text}
    return {"guaranteed": fields["guaranteed"], **terms, **fields}


def terms_beside(text: str, terms: Mapping[str, str]) -> dict[str, str]:
    """Of mode and limits those about which the text of the cell says nothing."""
    named = named_terms(text)
    isolated = LIMITS if named.get("mode") == QuotaMode.ISOLATED else ()
    return {name: term for name, term in terms.items() if name not in {*named, *isolated}}


def fault_of(text: str) -> str:
    """Why a text of a cell cannot be read, with the remedy; "" where it can."""
    try:
        fields_typed(text)
    except ValueError as error:
        return str(error)
    return ""


def wanted(cell: DraftCell) -> dict[str, Any]:
    """The fields of the quota that the edit sets, in milli-GPU. Raises Invalid (by field) where
    one cannot be read."""
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
    """Whether the edit makes the quota another than it is, or cannot be read."""
    return makes_another(quota, cell.typed, cell.terms)


def makes_another(quota: Quota | None, text: str, terms: Mapping[str, str]) -> bool:
    """Whether the text of a cell, with the mode and limits beside it, makes a quota another than it
    is, or cannot be read."""
    try:
        wished = with_fields(quota, _read(text, terms))
    except Invalid:
        return True
    return quota is None or wished != QuotaTerms.of(quota)


def terms_typed(quota: Quota | None) -> dict[str, str]:
    """Mode and limits of a quota as somebody would type them."""
    row = quota or Quota()
    limits = {name: as_typed(getattr(row, COLUMNS[name])) for name in LIMITS}
    return {"mode": str(row.mode), **limits}


def terms_in_words(terms: Mapping[str, str], quota: Quota | None) -> list[str]:
    """What an edit makes of mode and limits, where that is another than now: "Mode Isolated"."""
    now, words = terms_typed(quota), []
    for name in TERMS:  # a database may give them in another order than they were written
        text = terms.get(name)
        if text is not None and text != now[name]:
            said = QuotaMode(text).label if name == "mode" else text or "no limit"
            words.append(f"{TITLES[name]} {said}")
    return words
