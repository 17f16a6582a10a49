"""Which blocked jobs nodes are kept for where run times are only learned.

Places on several nodes have to be gathered: they seldom come free together, so a job that needs
them waits behind all that fit on less. A place on one node comes free by itself, and the job that
is first in order gets it. To keep nodes for such a job helps it little, and all behind it wait for
as long as what runs there outlives its learned run time. So a job that fits on one node is the head
of its pool only once it starves: once it has waited for as many of its run times as jobs like it
fit into its pools beside each other.
"""

import math

from scheduling.engine.admission.candidates import pools_wanted
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import MILLI


def leads_from(state: SchedulerState, record: JobRecord) -> float:
    """When a job that waits for places is led as a head: -inf = at once, as where it declares its
    run time, or nothing was learned of it."""
    job = record.job
    learned_s, since = record.learned_s, record.waits_since
    if job.declared_s is not None or learned_s is None or since is None or job.without_gpus:
        return -math.inf
    if needs_several(state, record):
        return -math.inf
    gpus = sum([state.pools.capacity(model) for model in pools_wanted(state, record)])
    return since + learned_s * gpus * MILLI / max(_needs_milli(record), 1)


def needs_several(state: SchedulerState, record: JobRecord) -> bool:
    """Whether the least of a job that starts needs more GPUs than the largest node has that it may
    use."""
    models = pools_wanted(state, record)
    node = max([state.pools.largest_node(model) for model in models], default=0)
    return _needs_milli(record) > node * MILLI


def _needs_milli(record: JobRecord) -> int:
    return sum([s.least * s.milli_per_pod for s in record.job.pod_sets])
