"""What people read for the state of a job, on pages and in refusals."""

from scheduling.engine.states import JobState

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
