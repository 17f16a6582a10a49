"""What a blocked job whose start is known will need of quota, and of the limits of jobs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

# By tenant, GPU model and whether it cannot be preempted: GPU-milli.
Over = Counter[tuple[str, str, bool]]


@dataclass(slots=True, eq=False)
class Hold:
    """The job starts `at` with `demand` (GPU-milli by GPU model). By then what is `over` will have
    been given back, and so many jobs of each tenant have ended (`jobs`), as declared.
    `non_preemptible`: it cannot be preempted. `borrows`: it will borrow then; `by_right`: it must
    not, as it passes a job that will. `limited`: the tenants at and above its own that may run only
    so many jobs at once, and how many.

    Whoever starts behind it and is over by then is added to what is over: what is held then
    does not change by it.
    """

    job_id: str
    tenant: str
    demand: Mapping[str, int]
    non_preemptible: bool
    at: float
    borrows: bool = False
    by_right: bool = False
    limited: dict[str, int] = field(default_factory=dict)
    over: Over = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
