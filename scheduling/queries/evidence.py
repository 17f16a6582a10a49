"""The sentence and numbers behind a reason, as people read them.

Times are shown as times, and other jobs by name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.urls import reverse
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

from scheduling.engine.reasons.after import ITS_REASON
from scheduling.engine.verdict import PREEMPTS_FROM, PROTECTED_UNTIL
from scheduling.models import Job
from scheduling.queries import selectors
from tenants.templatetags.ui import expected, gpus, when, words

# Numbers in seconds since 1970.
TIMES = frozenset({"not_before", "starts_at", "avoided_until", PROTECTED_UNTIL, PREEMPTS_FROM})
JOB_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


@dataclass(frozen=True, slots=True)
class JobNames:
    """Jobs that the reader may see, and arrays, each by its first job."""

    jobs: Mapping[str, Job] = field(default_factory=dict)
    arrays: Mapping[str, Job] = field(default_factory=dict)

    def link(self, job_id: str) -> SafeString | None:
        if job := self.jobs.get(job_id):
            return format_html('<a href="{}">{}</a>', reverse("job", args=[job_id]), job.name)
        if first := self.arrays.get(job_id):
            url = f"{reverse('jobs')}?array={job_id}"
            return format_html('<a href="{}">the array of {}</a>', url, first.name)
        return None

    def linked(self, text: str) -> SafeString:
        """Return a sentence with job ids replaced by links."""
        parts: list[str] = []
        end = 0
        for found in JOB_ID.finditer(text):
            parts.append(conditional_escape(text[end : found.start()]))
            parts.append(self.link(found[0]) or found[0])
            end = found.end()
        parts.append(conditional_escape(text[end:]))
        return mark_safe("".join(parts))


def names_in(user: Any, texts: list[str]) -> JobNames:
    """Return the jobs and arrays whose ids are in the texts."""
    ids = {found for text in texts for found in JOB_ID.findall(text)}
    if not ids:
        return JobNames()
    rows = selectors.visible_jobs(user).prefetch_related(None)
    return JobNames(
        {str(row.pk): row for row in rows.filter(id__in=ids)},
        {str(row.array_id): row for row in rows.filter(array_id__in=ids, array_index=0)},
    )


@dataclass(frozen=True, slots=True)
class EvidenceNumber:
    """A number behind a reason, as plain text; `name` is its key in the evidence."""

    name: str
    label: str
    text: str


def numbers_of(evidence: Mapping[str, Any]) -> list[EvidenceNumber]:
    """Return the evidence as text: milli-GPU as GPUs, seconds since 1970 as times in UTC."""
    return [
        EvidenceNumber(
            name, _label(name), gpus(value) if name.endswith("_milli") else _plain(name, value)
        )
        for name, value in evidence.items()
        if name != "remedies"
    ]


def _label(name: str) -> str:
    # The engine counts milli-GPU, people count GPUs.
    return words(f"{name.removesuffix('milli')}gpus") if name.endswith("_milli") else words(name)


def _plain(name: str, value: Any) -> str:
    if name in TIMES:
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)


def shown(evidence: Mapping[str, Any], names: JobNames) -> list[tuple[str, str]]:
    """Return (label, value) of each number behind a reason."""
    return [
        (_label(name), gpus(value) if name.endswith("_milli") else _value(name, value, names))
        for name, value in evidence.items()
    ]


def _value(name: str, value: Any, names: JobNames) -> str:
    if name in TIMES:
        at = datetime.fromtimestamp(value, UTC)
        return expected(at) if name == "starts_at" else when(at)
    text = words(value) if name == ITS_REASON else _plain(name, value)
    if JOB_ID.fullmatch(text):
        return names.link(text) or "a job you may not see"
    return text
