"""The most important fact about a job now, as the headline of its page."""

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from scheduling.engine.states import HOLDING, JobState
from scheduling.engine.verdict import NEVER
from scheduling.models import Job
from scheduling.queries.explain import Start
from scheduling.queries.start_words import start_words
from scheduling.queries.starts import ToldStart
from scheduling.queries.wording import STATE_WORDS
from scheduling.templatetags.jobs import is_held, is_waiting, ran
from tenants.templatetags.ui import duration

# Estimates that are only a lower bound.
AT_LEAST = ("earliest", "forecast")


@dataclass(frozen=True, slots=True)
class Headline:
    """`text`: "Starts in 20–35 min", "Overdue", "Ran 3 h of 12 h". `tone`: "wait" or "bad" if
    somebody may have to act, else "". `share`: the part of its run time that has passed, 0..1; None
    if unknown."""

    text: str
    tone: str = ""
    share: float | None = None


def headline(job: Job, told: ToldStart | None, start: Start | None) -> Headline:
    """Return a job's headline. For a waiting job, `told` is the forecaster's estimate and `start`
    what the scheduler knows."""
    if not is_waiting(job):
        return _of_one_that_has_started(job)
    if is_held(job):
        return Headline("On hold", "wait")
    if job.reason in NEVER:
        return Headline("Will not start as it is", "bad")
    if told and told.p50:
        return Headline("Overdue", "wait") if told.overdue else _starts(start_words(told).short)
    if told and told.earliest:
        return _starts(start_words(told).short)
    if start is None or start.at is None:
        return Headline("Waiting")
    return _starts_at(start.at, at_least=start.basis in AT_LEAST)


def _starts(when: str) -> Headline:
    return Headline(f"Starts {when}")


def _starts_at(at: datetime, *, at_least: bool) -> Headline:
    left = (at - timezone.now()).total_seconds()
    if left > 0:
        return _starts(f"in {duration(left)}" + (" or later" if at_least else ""))
    # It may start from then on, but nothing said that it would.
    return Headline("Waiting") if at_least else Headline("Overdue", "wait")


def _of_one_that_has_started(job: Job) -> Headline:
    word, seconds = STATE_WORDS[job.state], ran(job)
    if job.state not in HOLDING:
        tone = "bad" if job.state == JobState.FAILED else ""
        return Headline(f"{word} after {duration(seconds)}" if seconds else word, tone)
    if seconds is None:
        return Headline(word)
    asked = min(filter(None, (job.declared_s, job.run_limit_s)), default=None)
    if not asked:
        return Headline(f"Ran {duration(seconds)}")
    if seconds > asked:
        word = "declared" if asked == job.declared_s else "allowed"
        return Headline(f"Ran {duration(seconds)}, {duration(asked)} {word}", "wait", 1.0)
    return Headline(f"Ran {duration(seconds)} of {duration(asked)}", share=seconds / asked)
