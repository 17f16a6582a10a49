"""What a blocked job with a known start will need of quota and of the limits of jobs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

# GPU-milli by (tenant, GPU model, whether it is non-preemptible).
Over = Counter[tuple[str, str, bool]]


@dataclass(slots=True, eq=False)
class Hold:
    """The needs of a blocked job that starts `at` with `demand` (GPU-milli by GPU model).

    - `over`: what will have been given back by then, as planned; `jobs`: how many jobs of each
      tenant will have ended.
    - `non_preemptible`: the job cannot be preempted.
    - `borrows`: it will borrow; `by_right`: it must not borrow, because it passes a job that will.
    - `limited`: the tenants at and above its own with a limit of running jobs, and these limits.

    A job that starts behind it and is over by then is added to `over`, so it does not change what
    will be held at that time.
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
