"""For which blocked jobs nodes are kept if run times are only learned.

Places on several nodes seldom come free together, so a job that needs several nodes waits behind
all jobs that fit on less. A place on one node comes free by itself, and the first job in the order
gets it. Keeping nodes for such a job helps it little, and if what runs there outlives its learned
run time, all jobs behind it wait, too. A job that fits on one node therefore becomes the head of
its pool only once it starves: once it has waited for its learned run time, times the number of such
jobs that its pools can hold side by side.
"""

import math

from scheduling.engine.admission.candidates import pools_wanted
from scheduling.engine.queue.job import JobRecord
from scheduling.engine.state import SchedulerState
from scheduling.engine.types import MILLI


def leads_from(state: SchedulerState, record: JobRecord) -> float:
    """Return when a job that waits for places becomes a head.

    -inf: at once, for example because it declares its run time or none was learned.
    """
    job = record.job
    learned_s, since = record.learned_s, record.waits_since
    if job.declared_s is not None or learned_s is None or since is None or job.without_gpus:
        return -math.inf
    if needs_several(state, record):
        return -math.inf
    gpus = sum([state.pools.capacity(model) for model in pools_wanted(state, record)])
    return since + learned_s * gpus * MILLI / max(_needs_milli(record), 1)


def needs_several(state: SchedulerState, record: JobRecord) -> bool:
    """Return whether the smallest part of the job that can start needs more than one node.

    It is compared with the GPUs of the largest node in its pools.
    """
    models = pools_wanted(state, record)
    node = max([state.pools.largest_node(model) for model in models], default=0)
    return _needs_milli(record) > node * MILLI


def _needs_milli(record: JobRecord) -> int:
    return sum([s.least * s.milli_per_pod for s in record.job.pod_sets])
