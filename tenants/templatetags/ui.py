"""Formats used on pages: icons, GPU amounts, durations, times, bars."""

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
    """Render an icon of the vendored sprite, hidden from screen readers because text always
    accompanies it."""
    return format_html(
        '<svg class="icon" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        static("vendor/icons.svg"),
        name,
    )


@register.filter
def gpus(milli: int | None) -> str:
    """Format milli-GPU as GPUs: 8000 → "8", 500 → "0.5", 1234000 → "1,234"."""
    if milli is None:
        return "–"
    whole, rest = divmod(milli, MILLI)
    if rest == 0:
        return f"{whole:,}"
    return f"{milli / MILLI:,.3f}".rstrip("0")


@register.filter
def number(count: int) -> str:
    """Format a count: 1234 → "1,234"."""
    return f"{count:,}"


@register.filter
def gpu_count(milli: int) -> str:
    """Format milli-GPU for a sentence: 8000 → "8 GPUs", 500 → "0.5 GPU", 0 → "no GPU"."""
    if not milli:
        return "no GPU"
    return f"{gpus(milli)} GPU{'s' if milli > MILLI else ''}"


@register.filter
def cores(milli: int) -> str:
    """Format milli-CPU as CPUs, to a tenth: 64000 → "64", 31850 → "31.9"."""
    return f"{milli / MILLI:,.1f}".removesuffix(".0")


@register.filter
def gib(mib: int) -> str:
    """Format MiB as GiB, to a tenth: 2097152 → "2,048"."""
    return f"{mib / 1024:,.1f}".removesuffix(".0")


# Words that are not all lower case.
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
    """Turn a code into words: "FragmentedCapacity" → "Fragmented capacity", "QUOTA_LOST" → "Quota
    lost", "freeGpus" and "free_gpus" → "Free GPUs"."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", code).replace("_", " ").lower()
    text = " ".join(WORDS.get(w, w) for w in spaced.split())
    return text[:1].upper() + text[1:]


@register.filter
def short_model(name: str) -> str:
    """Shorten a GPU type for narrow places by dropping the vendor: "NVIDIA-L40S" → "L40S"."""
    return name.removeprefix("NVIDIA-")


@register.filter
def last_part(key: str) -> str:
    """Return the last part of a key with slashes: "superspine-1/spine-01/leaf-0001" →
    "leaf-0001"."""
    return key.rpartition("/")[2]


@register.filter
def get(mapping: dict[str, object], key: str) -> object:
    return mapping.get(key)


@register.filter
def whole(count: int) -> int:
    """Convert whole GPUs to milli-GPU."""
    return count * MILLI


@register.filter
def minus(value: int, other: int) -> int:
    return value - other


@register.filter
def duration(seconds: float | timedelta | None) -> str:
    """Format a time span in at most two units: "42 s", "7 min 5 s", "3 h 12 min", "2 d 4 h"."""
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
    """Render a <time> element with this text; its title is the exact instant in UTC."""
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        at.isoformat(),
        at.strftime("%Y-%m-%d %H:%M:%S"),
        text,
    )


@register.filter
def ago(at: datetime | None) -> SafeString:
    """Render how long ago something happened, as a <time> element with the exact instant in UTC.

    Clocks of machines differ a little: what happened in the future happened just now.
    """
    if at is None:
        return SafeString("never")
    span = (timezone.now() - at).total_seconds()
    return _at(at, "just now" if span < 2 else f"{duration(span)} ago")


@register.filter
def when(at: datetime) -> SafeString:
    """Render an instant that may be past or to come, relative to now, as `ago` does."""
    span = (at - timezone.now()).total_seconds()
    return _at(at, f"in {duration(span)}") if span > 0 else ago(at)


@register.filter
def lasted(since: datetime) -> SafeString:
    """Render for how long something has been so, as a <time> element like that of `ago`."""
    return _at(since, duration(max(0.0, (timezone.now() - since).total_seconds())))


@register.filter
def expected(at: datetime) -> SafeString | str:
    """Render when something is expected, as `ago` does; a time in the past is overdue."""
    late = (timezone.now() - at).total_seconds()
    if late < 1:
        return when(at)
    return _at(at, f"overdue by {duration(late)}")


@register.filter
def expected_in(at: datetime | None, as_of: datetime) -> SafeString | str:
    """Render when something is expected, relative to the instant of the forecast."""
    if at is None:
        return "later than the preview looks"
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
    """Return the page's own query string with some parameters changed (None removes one)."""
    params: QueryDict = context["request"].GET.copy()
    for name, value in changes.items():
        if value in (None, ""):
            params.pop(name, None)
        else:
            params[name] = str(value)
    return "?" + urlencode(sorted(params.items()))


@register.simple_tag(takes_context=True)
def query_without(context: template.Context, *names: str) -> str:
    """Return the page's own query string without these parameters."""
    return query(context, **dict.fromkeys(names))


@register.inclusion_tag("parts/no_filters.html", takes_context=True)
def no_filters(context: template.Context) -> dict[str, object]:
    """On a page without filters, report query parameters that it does not have. Pages with filters
    report these themselves, as `unknown`; other pages list the parameters they take, as `takes`."""
    request, takes = context["request"], context.get("takes") or ()
    names = [] if "unknown" in context else [name for name in request.GET if name not in takes]
    kept = urlencode({name: request.GET[name] for name in takes if name in request.GET})
    return {"names": names, "path": f"{request.path}?{kept}" if kept else request.path}


# A string instead of a template, because a page has hundreds of these.
USEBAR = (
    '<svg class="usebar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" '
    'focusable="false"><rect class="track" x="0" y="0" width="{track}" height="8"></rect>'
    '<rect class="own" x="0" y="0" width="{own}" height="8"></rect>'
    '<rect class="lent" x="{own}" y="0" width="{lent}" height="8"></rect>'
    '<rect class="borrowed" x="{promised}" y="0" width="{borrowed}" height="8"></rect>{mark}</svg>'
)
USEBAR_MARK = '<line class="mark" x1="{0}" x2="{0}" y1="-2" y2="10"></line>'


def bar_milli(used: int, guaranteed: int, borrowed: int = 0, lent: int = 0) -> int:
    """Return the length of a use bar in milli-GPU: the guarantee (or own use plus lent, if that is
    more) plus what is borrowed."""
    return max(guaranteed, max(used - borrowed, 0) + lent) + borrowed


@register.simple_tag
def usebar(
    used: int, guaranteed: int, borrowed: int = 0, lent: int = 0, full: int = 0
) -> SafeString:
    """Render a bar of own use, lent and idle quota and borrowed GPUs, with a marker at the
    guarantee.

    All in milli-GPU; `used` includes what is borrowed. `full`: what the whole width stands for when
    several bars share a scale; otherwise each bar fills the width. The bar is hidden from screen
    readers because the numbers accompany it as text.
    """
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
    """Render the values over time as a line scaled to their own range; nothing for fewer than two
    values."""
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
