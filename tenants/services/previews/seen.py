"""Previews in the audit trail, limited to the jobs and tenants that the reader may see."""

from collections.abc import Container

from tenants.models import AuditRecord
from tenants.services.previews.kept import Document

JOBS = ("starts", "stops", "impossible")


def preview_seen(record: AuditRecord, visible: Container[str]) -> Document | None:
    """Return what was predicted before the change of a record and what happened after it (None =
    not over yet); None when nobody previewed it."""
    preview = record.preview
    if preview is None:
        return None
    happened = preview.happened
    return {
        "as_of": preview.as_of,
        "told": _seen(preview.told, visible),
        "happened": _seen(happened, visible) if happened else None,
    }


def _seen(document: Document, visible: Container[str]) -> Document:
    seen = dict(document)
    for name in JOBS:
        if name in seen:
            seen[name] = [_job(one, visible) for one in seen[name]]
    if "loans" in seen:
        seen["loans"] = [
            one | ({} if one["lender"] in visible else {"lender": ""})
            for one in seen["loans"]
            if one["borrower"] in visible
        ]
    if "borrowed" in seen:
        seen["borrowed"] = [one for one in seen["borrowed"] if one["tenant"] in visible]
    return seen


def _job(one: Document, visible: Container[str]) -> Document:
    hidden = {"job": None, "name": None, "tenant": None}
    return one if one["tenant"] in visible else one | hidden
