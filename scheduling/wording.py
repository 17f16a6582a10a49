"""What people read for the state of a job and for why it waits, and for a
policy, on pages and in refusals."""

from collections.abc import Mapping
from typing import Any

from scheduling.engine.states import JobState
from scheduling.engine.verdict import Reason
from scheduling.models import Job
from tenants.templatetags.ui import duration, words

STATE_WORDS: dict[str, str] = {
    JobState.PENDING: "Waiting",
    JobState.QUOTA_RESERVED: "Waiting, quota held",
    JobState.ADMITTED: "Starting",
    JobState.RUNNING: "Running",
    JobState.SUCCEEDED: "Succeeded",
    JobState.FAILED: "Failed",
    JobState.CANCELLED: "Cancelled",
}


def in_state(state: str) -> str:
    """A state inside a sentence: "cancelled"."""
    return STATE_WORDS[state].lower()


def reason_words(job: Job, reason: str, evidence: Mapping[str, Any]) -> str:
    """A reason of a job as it was told. One code is for two cases that differ to people: a hold
    and a dependency, a back-off and a start time."""
    if reason == Reason.ON_HOLD and "jobs" in evidence:
        return "Waits for other jobs"
    if reason == Reason.BACKING_OFF and job.start_not_before is not None:
        until = evidence.get("not_before", 0)
        if abs(until - job.start_not_before.timestamp()) < 1:
            return "Not yet due"
    return words(reason)


def policy_words(policy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, value) of every field of a policy as `policies.effective` gives it."""
    return [
        (words(name.removesuffix("_s")), duration(value))
        if name.endswith("_s")
        else (words(name), value_words(value))
        for name, value in policy.items()
    ]


def value_words(value: Any) -> str:
    """A value of a policy, or a fact about a node, without the signs of JSON."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        named = (each["name"] if isinstance(each, dict) else str(each) for each in value)
        return ", ".join(named) or "none"
    return str(value)
