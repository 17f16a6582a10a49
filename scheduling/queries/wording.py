"""Words for the state of a job, for why it waits, and for a policy, on pages and in refusals."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.engine.states import JobState
from scheduling.engine.verdict import Reason
from scheduling.models import Job
from scheduling.policy.document import SHARES
from scheduling.policy.settings import differing, settings_of
from tenants.templatetags.ui import DAY, HOUR, MINUTE, duration, words

STATE_WORDS: dict[str, str] = {
    JobState.PENDING: "Waiting",
    JobState.QUOTA_RESERVED: "Waiting, quota held",
    JobState.ADMITTED: "Starting",
    JobState.RUNNING: "Running",
    JobState.SUCCEEDED: "Succeeded",
    JobState.FAILED: "Failed",
    JobState.CANCELLED: "Cancelled",
}


def state_words(state: str, gpu_milli: int) -> str:
    """Return the words for a state of a job or array; only jobs that ask for GPUs hold quota."""
    if state == JobState.QUOTA_RESERVED and not gpu_milli:
        state = JobState.PENDING
    return STATE_WORDS[state]


def in_state(state: str) -> str:
    """Return a state inside a sentence: "cancelled"."""
    return STATE_WORDS[state].lower()


def reason_words(job: Job, reason: str, evidence: Mapping[str, Any]) -> str:
    """Return a job's reason in words.

    One code may cover two cases that differ for people: a hold and a dependency, a back-off and a
    start time.
    """
    if reason == Reason.ON_HOLD and "jobs" in evidence:
        return "Waits for other jobs"
    if reason == Reason.BACKING_OFF and job.start_not_before is not None:
        until = evidence.get("not_before", 0)
        if abs(until - job.start_not_before.timestamp()) < 1:
            return "Not yet due"
    return words(reason)


def policy_words(policy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (label, value) of every field of a policy as `policies.effective` gives it."""
    return [
        (words(name.removesuffix("_s")), duration(value))
        if name.endswith("_s")
        else (words(name), value_words(value))
        for name, value in policy.items()
    ]


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting of a policy (`scheduling.policy.settings`) that differs, in words."""

    key: str
    name: str
    before: str
    after: str


def policy_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return the settings in which two whole policies differ."""
    was, then = settings_of(before), settings_of(after)
    return [
        Difference(
            key,
            setting_name(key),
            setting_words(key, was.get(key)),
            setting_words(key, then.get(key)),
        )
        for key in differing(was, then)
    ]


def setting_name(key: str) -> str:
    field, _, part = key.partition(".")
    match field:
        case "strategies":
            return f"{part.capitalize()} strategy"
        case "spare_nodes":
            return f"Spare nodes of {part}"
        case "preemption":
            return f"Preemption: {part}"
    return words(field.removesuffix("_s"))


def setting_words(key: str, value: Any) -> str:
    """Return a setting's value in words, unique to it; None = the policy does not name it."""
    if key.startswith("spare_nodes."):
        return str(value or "none")
    if value is None:
        return "–"
    if key == "shards":
        return "; ".join(map(_shard_words, value)) or "none"
    if key in SHARES:
        return f"{100 * value:.12g} %"
    return exact_duration(value) if key.endswith("_s") else value_words(value)


def exact_duration(seconds: float) -> str:
    """Return a span as `duration` writes it, or in seconds if that would drop a part."""
    rest = seconds % (HOUR if seconds >= DAY else MINUTE if seconds >= HOUR else 1)
    return f"{seconds:,.13g} s" if rest else duration(seconds)


def _shard_words(shard: Mapping[str, Any]) -> str:
    parts = [*shard.get("gpu_models", ()), *shard.get("groups", ())]
    return f"{shard['name']}: {', '.join(parts)}" if parts else f"{shard['name']}: all others"


def value_words(value: Any) -> str:
    """Return a policy's value, or a fact about a node, without JSON syntax."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        named = (each["name"] if isinstance(each, dict) else str(each) for each in value)
        return ", ".join(named) or "none"
    return str(value)
