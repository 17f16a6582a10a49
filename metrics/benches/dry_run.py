"""`manage.py bench dry_run`: what a dry run of a submission costs, on 12,500 nodes.

2,000 jobs run and 1,000 wait. Measured is the whole answer, of a clock: by a state that is made of
the rows, and by the state that a process keeps current meanwhile, which forecasts beside.
"""

import os
import tempfile
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from django.db import connection

from metrics.benches.preview import fill
from metrics.benches.stage import MODEL, own_database
from scheduling.models import Cluster, Job
from scheduling.queries.rehearsal import rehearse_job
from scheduling.queries.whatif import line
from scheduling.services.forecasts import process
from scheduling.services.jobs.submit import submit_job
from tenants.models import User

ASKED, KEPT_WITHIN_S = 40, 300.0
DOCUMENT = {"name": "new", "tenant": "one", "gpu_type": MODEL, "gpus": 8, "replicas": 4}


class _Nothing:
    """Is answered by whoever keeps the state."""

    def answer(self, _kept: object) -> bool:
        return True


def run() -> dict[str, float]:
    """Seconds of a clock: the median, and the worst of twenty."""
    with tempfile.TemporaryDirectory() as folder, own_database(Path(folder)):
        ops = User.objects.create(username="bench", is_operator=True)
        fill()
        job = submit_job(ops, DOCUMENT, dry_run=True)
        began = time.monotonic()
        rehearse_job(ops, job)
        by_rows = time.monotonic() - began
        connection.close()
        keeper = get_context("fork").Process(target=process.keep, args=[os.getpid()], daemon=True)
        keeper.start()
        try:
            kept = _is_kept(Cluster.objects.get().pk)
            spent = sorted(_asked(ops, job) for _ in range(ASKED))
        finally:
            keeper.kill()
            keeper.join()
    return {
        "by_rows_s": by_rows,
        "until_kept_s": kept,
        "kept_s": median(spent),
        "kept_p95_s": spent[ASKED * 95 // 100 - 1],
    }


def _is_kept(cluster_id: int) -> float:
    began = time.monotonic()
    while time.monotonic() < began + KEPT_WITHIN_S:
        with suppress(line.Away, line.Crowded):
            if line.ask(cluster_id, _Nothing()):
                return time.monotonic() - began
        time.sleep(0.2)
    raise RuntimeError(f"no state was kept within {KEPT_WITHIN_S:.0f} s")


def _asked(viewer: User, job: Job) -> float:
    began = time.monotonic()
    rehearse_job(viewer, job)
    return time.monotonic() - began
