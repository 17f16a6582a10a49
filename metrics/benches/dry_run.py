"""`manage.py bench dry_run`: what a dry run of a submission costs, on 12,500 nodes.

2,000 jobs run and 1,000 wait. Measures the wall-clock time of a whole answer, from a state built
from the rows, and from a state that another process keeps current while it also computes forecasts.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

from metrics.benches.preview import fill, keeper
from metrics.benches.stage import MODEL, own_database
from scheduling.models import Job
from scheduling.queries.rehearsal import rehearse_job
from scheduling.services.jobs.submit import submit_job
from tenants.models import User

ASKED = 40
DOCUMENT = {"name": "new", "tenant": "one", "gpu_type": MODEL, "gpus": 8, "replicas": 4}


def run() -> dict[str, float]:
    """Return wall-clock seconds: the median, and the 95th percentile of twenty."""
    with tempfile.TemporaryDirectory() as folder, own_database(Path(folder)):
        ops = User.objects.create(username="bench", is_operator=True)
        fill()
        job = submit_job(ops, DOCUMENT, dry_run=True)
        began = time.monotonic()
        rehearse_job(ops, job)
        by_rows = time.monotonic() - began
        with keeper() as kept:
            spent = sorted(_asked(ops, job) for _ in range(ASKED))
    return {
        "by_rows_s": by_rows,
        "until_kept_s": kept,
        "kept_s": median(spent),
        "kept_p95_s": spent[ASKED * 95 // 100 - 1],
    }


def _asked(viewer: User, job: Job) -> float:
    began = time.monotonic()
    rehearse_job(viewer, job)
    return time.monotonic() - began
