"""Asking without deciding: why every waiting job waits, and where it stands in the queue."""

from scheduling.engine.admission.candidates import candidates, fits_by_count
from scheduling.engine.admission.out_of_service import with_what_it_lacks, within_reach
from scheduling.engine.admission.start import Failed, place_on, why_failed
from scheduling.engine.placement import PlacementFailure, explain
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState
from scheduling.engine.statement import Statement
from scheduling.engine.verdict import Reason, Verdict


def reasons(state: SchedulerState) -> dict[str, tuple[int, Verdict]]:
    """{job: (position in the queue from 1, its reason with today's numbers)}.

    Numbers of failed placements are worked out anew, once for each shape; jobs that wait for
    another reason keep what the last cycle told them. Jobs on hold or backing off stand nowhere.
    """
    anew: dict[object, Verdict | None] = {}
    told: dict[str, tuple[int, Verdict]] = {}
    order = sorted(key for eq_class in state.queue.eq_classes for key in eq_class.jobs)
    for position, (*_, job_id) in enumerate(order, 1):
        record = state.jobs[job_id]
        verdict = record.verdict
        if verdict is None:
            continue
        if verdict.reason in _PLACEMENT and record.eq_class is not None:
            reach = within_reach(state, record)
            alike = (*record.eq_class.key[1:], bool(reach))
            if alike not in anew:
                why = why_not_placed(state, record)
                anew[alike] = with_what_it_lacks(state, record, why) if why and not reach else why
            verdict = anew[alike] or verdict
        told[job_id] = (position, verdict)
    return told


_PLACEMENT = frozenset(
    {Reason.INSUFFICIENT_GPUS, Reason.FRAGMENTED_CAPACITY, Reason.INSUFFICIENT_CPU_OR_MEMORY}
)


def why_not_placed(state: SchedulerState, record: JobRecord) -> Verdict | None:
    """Why the job cannot be placed right now; None when it can, or quota forbids to try."""
    tried: list[Failed] = []
    for candidate in candidates(state, record, frozenset()):
        failure: PlacementFailure | None = None
        if fits_by_count(state, candidate):
            statement = Statement(state.cluster)
            placed = place_on(statement, state, candidate, frozenset(record.avoided_nodes))
            statement.rollback()
            if not isinstance(placed, PlacementFailure):
                return None
            failure = placed
        tried.append((candidate, failure))
    return why_failed(
        state,
        record,
        tried,
        frozenset(),
        lambda candidate, failure: explain(
            state.cluster, candidate.job, failure, record.avoided_nodes
        ),
    )
