"""When a job is expected to start, in a few words: "in 20–35 min"."""

import math
from dataclasses import dataclass

from django.utils import timezone

from scheduling.queries.starts import BASES, HitRate, ToldStart
from tenants.templatetags.ui import duration

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
SOON_S = 60.0  # how close to now counts as now
FEW = 5  # up to this many outcomes say nothing


@dataclass(frozen=True, slots=True)
class StartWords:
    """The expected start: `short`, and `more` in a sentence.

    `short`: "in 20–35 min", "in 3 d or later", "overdue", "–". `more`: what it is based on, or why
    there is no estimate.
    """

    short: str
    more: str


def start_words(told: ToldStart) -> StartWords:
    """Return the expected start of a waiting job in words."""
    now = timezone.now()
    if told.earliest is not None:
        left = (told.earliest - now).total_seconds()
        sentence = "Nine of ten such jobs do not start before that."
        return StartWords(f"in {_at_least(left)} or later", f"{sentence} {told.reason}")
    if told.p10 is None or told.p90 is None:
        return StartWords("–", told.reason)
    by = f"By {BASES[told.basis]}; its own run time: {told.text}."
    if told.overdue:
        late = duration((now - told.p90).total_seconds())
        at = f"{told.p90:%Y-%m-%d %H:%M} UTC"
        return StartWords("overdue", f"It was expected before {at}, {late} ago. {by}")
    low = (told.p10 - now).total_seconds()
    high = (told.p90 - now).total_seconds()
    return StartWords(span_words(low, high), f"Four of five such jobs start in this time. {by}")


def span_words(low: float, high: float) -> str:
    """Return a span of seconds from now as "in 20–35 min", widened to whole units.

    "within 5 min" if it may be at once.
    """
    unit, name = _unit(high)
    if high <= MINUTE:
        return "within 1 min"
    last = math.ceil(high / unit)
    first = math.floor(low / unit)
    if first < 1 and (low < SOON_S or unit == MINUTE):
        return f"within {last} {name}"
    if first < 1:
        return f"in less than {last} {name}"
    return f"in {first} {name}" if first == last else f"in {first}–{last} {name}"


def _at_least(seconds: float) -> str:
    unit, name = _unit(seconds)
    return f"{math.floor(seconds / unit)} {name}"


def _unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which a time of this length is given, and its name."""
    units = ((36 * HOUR, DAY, "d"), (1.5 * HOUR, HOUR, "h"))
    return next(((size, name) for least, size, name in units if seconds >= least), (MINUTE, "min"))


def record_words(rate: HitRate | None) -> str:
    """Return how often such estimates came true."""
    if rate is None or rate.starts < FEW:
        return "Too few such jobs have started to tell how often estimates hold."
    return (
        f"{rate.held} of {rate.starts} such estimates of jobs with {rate.sizes} held in the last "
        "30 days."
    )
