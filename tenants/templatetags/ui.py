"""Formats of the pages: icons, GPU amounts, durations, times, bars."""

import re
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django import template
from django.http import QueryDict
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()

MILLI = 1000
MINUTE, HOUR, DAY = 60, 3600, 86400


@register.simple_tag
def icon(name: str) -> SafeString:
    """An icon of the vendored sprite, hidden from screen readers: text always stands beside it."""
    return format_html(
        '<svg class="icon" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        static("vendor/icons.svg"),
        name,
    )


@register.filter
def gpus(milli: int | None) -> str:
    """Milli-GPU as GPUs: 8000 → "8", 500 → "0.5", 1234000 → "1,234"."""
    if milli is None:
        return "–"
    whole, rest = divmod(milli, MILLI)
    if rest == 0:
        return f"{whole:,}"
    return f"{milli / MILLI:,.3f}".rstrip("0")


@register.filter
def number(count: int) -> str:
    """A count as people read it: 1234 → "1,234"."""
    return f"{count:,}"


@register.filter
def gpu_count(milli: int) -> str:
    """Milli-GPU in a sentence: 8000 → "8 GPUs", 500 → "0.5 GPU", 0 → "no GPU"."""
    if not milli:
        return "no GPU"
    return f"{gpus(milli)} GPU{'s' if milli > MILLI else ''}"


@register.filter
def cores(milli: int) -> str:
    """Milli-CPU as CPUs, to a tenth: 64000 → "64", 31850 → "31.9"."""
    return f"{milli / MILLI:,.1f}".removesuffix(".0")


@register.filter
def gib(mib: int) -> str:
    """MiB as GiB, to a tenth: 2097152 → "2,048"."""
    return f"{mib / 1024:,.1f}".removesuffix(".0")


# Words that are not written in small letters.
WORDS = {
    "gpu": "GPU",
    "gpus": "GPUs",
    "cpu": "CPU",
    "nic": "NIC",
    "nics": "NICs",
    "numa": "NUMA",
    "mib": "MiB",
    "id": "ID",
}


@register.filter
def words(code: str) -> str:
    """A code as words: "FragmentedCapacity" → "Fragmented capacity", "QUOTA_LOST" → "Quota lost",
    "freeGpus" and "free_gpus" → "Free GPUs"."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", code).replace("_", " ").lower()
    text = " ".join(WORDS.get(w, w) for w in spaced.split())
    return text[:1].upper() + text[1:]


@register.filter
def short_model(name: str) -> str:
    """A GPU type for tight places: without the vendor, "NVIDIA-L40S" → "L40S"."""
    return name.removeprefix("NVIDIA-")


@register.filter
def last_part(key: str) -> str:
    """The last part of a key with slashes: "superspine-1/spine-01/leaf-0001" → "leaf-0001"."""
    return key.rpartition("/")[2]


@register.filter
def get(mapping: dict[str, object], key: str) -> object:
    return mapping.get(key)


@register.filter
def whole(count: int) -> int:
    """Whole GPUs as milli-GPU."""
    return count * MILLI


@register.filter
def minus(value: int, other: int) -> int:
    return value - other


@register.filter
def duration(seconds: float | timedelta | None) -> str:
    """A span in at most two units: "42 s", "7 min 5 s", "3 h 12 min", "2 d 4 h"."""
    if seconds is None:
        return "–"
    total = int(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
    total = max(total, 0)
    for unit, below, names in ((DAY, HOUR, "d h"), (HOUR, MINUTE, "h min"), (MINUTE, 1, "min s")):
        if total >= unit:
            large, small = names.split()
            rest = (total % unit) // below
            return f"{total // unit} {large}" + (f" {rest} {small}" if rest else "")
    return f"{total} s"


def _at(at: datetime, text: str) -> SafeString:
    """A <time> element of this text, whose title is the exact instant in UTC."""
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        at.isoformat(),
        at.strftime("%Y-%m-%d %H:%M:%S"),
        text,
    )


@register.filter
def ago(at: datetime | None) -> SafeString | str:
    """How long ago, as a <time> element whose title is the exact instant in UTC."""
    if at is None:
        return "never"
    span = (timezone.now() - at).total_seconds()
    text = "just now" if 0 <= span < 2 else f"{duration(span)} ago"
    if span < 0:
        text = f"in {duration(-span)}"
    return _at(at, text)


@register.filter
def expected(at: datetime) -> SafeString | str:
    """When something is expected, as `ago` writes it; one whose time has passed is overdue."""
    late = (timezone.now() - at).total_seconds()
    if late < 1:
        return ago(at)
    return _at(at, f"overdue by {duration(late)}")


@register.filter
def expected_in(at: datetime | None, as_of: datetime) -> SafeString | str:
    """When something is expected, counted from the instant that it was worked out for."""
    if at is None:
        return "later than was looked"
    span = (at - as_of).total_seconds()
    return _at(at, "at once" if span < 1 else f"in {duration(span)}")


@register.filter
def is_past(at: datetime) -> bool:
    return (timezone.now() - at).total_seconds() >= 1


@register.filter
def percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{100 * ratio:.1f} %"


@register.simple_tag(takes_context=True)
def query(context: template.Context, **changes: object) -> str:
    """The page's own query string with some parameters changed (None removes one)."""
    params: QueryDict = context["request"].GET.copy()
    for name, value in changes.items():
        if value in (None, ""):
            params.pop(name, None)
        else:
            params[name] = str(value)
    return "?" + urlencode(sorted(params.items()))


@register.simple_tag(takes_context=True)
def query_without(context: template.Context, *names: str) -> str:
    """The page's own query string without these parameters."""
    return query(context, **dict.fromkeys(names))


@register.inclusion_tag("parts/no_filters.html", takes_context=True)
def no_filters(context: template.Context) -> dict[str, object]:
    """Says of a page without filters that it has none of the parameters in its address. Pages that
    have filters name those themselves, as `unknown`; others name what they take, as `takes`."""
    request, takes = context["request"], context.get("takes") or ()
    names = [] if "unknown" in context else [name for name in request.GET if name not in takes]
    kept = urlencode({name: request.GET[name] for name in takes if name in request.GET})
    return {"names": names, "path": f"{request.path}?{kept}" if kept else request.path}


# No template: a page has hundreds of them.
USEBAR = (
    '<svg class="usebar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" '
    'focusable="false"><rect class="track" x="0" y="0" width="{track}" height="8"></rect>'
    '<rect class="own" x="0" y="0" width="{own}" height="8"></rect>'
    '<rect class="lent" x="{own}" y="0" width="{lent}" height="8"></rect>'
    '<rect class="borrowed" x="{promised}" y="0" width="{borrowed}" height="8"></rect>{mark}</svg>'
)
USEBAR_MARK = '<line class="mark" x1="{0}" x2="{0}" y1="-2" y2="10"></line>'


def bar_milli(used: int, guaranteed: int, borrowed: int = 0, lent: int = 0) -> int:
    """How long such a bar is, in milli-GPU: what is guaranteed, or own use and what is lent where
    that is more, and what is borrowed."""
    return max(guaranteed, max(used - borrowed, 0) + lent) + borrowed


@register.simple_tag
def usebar(
    used: int, guaranteed: int, borrowed: int = 0, lent: int = 0, full: int = 0
) -> SafeString:
    """A bar of own use, lent and idle quota and borrowed GPUs, all in milli-GPU, with a marker
    at what is guaranteed. `used` includes what is borrowed. `full`: what the whole width stands
    for, where several bars have one scale; else each fills it. The numbers stand beside it as
    text, so it is hidden from screen readers."""
    own = max(used - borrowed, 0)
    length = bar_milli(used, guaranteed, borrowed, lent)
    scale = 100 / (full or length) if length else 0
    mark = format_html(USEBAR_MARK, round(guaranteed * scale, 2)) if guaranteed else ""
    widths = {"own": own, "lent": lent, "promised": length - borrowed, "borrowed": borrowed}
    shown = {name: round(milli * scale, 2) for name, milli in widths.items()}
    shown["track"] = shown["promised"] if full else 100
    return format_html(USEBAR, mark=mark, **shown)


@register.inclusion_tag("parts/spark.html")
def spark(values: list[float | None], label: str) -> dict[str, object]:
    """A line of the values over time, scaled to their own range; nothing below two values."""
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return {"points": ""}
    low, high = min(known), max(known)
    span = (high - low) or 1
    step = 100 / (len(known) - 1)
    points = " ".join(
        f"{i * step:.1f},{20 - 18 * (v - low) / span:.1f}" for i, v in enumerate(known)
    )
    return {"points": points, "label": label}
