"""A scheduler on its own, for benches and crash tests.

Run as a module, it leads the only active cluster in the database of the settings, or some of its
shards, like the Celery worker does. News of the cluster wake it; in addition it checks the database
every so many seconds, given as its argument.

It ends when its standard input is closed (also when its parent was killed). Then it prints one JSON
line with its peak memory and, since it began to lead, its CPU seconds and the statements that it
sent to the database.
"""

import json
import os
import resource
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import django


def main(look_s: float) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kant.settings")
    django.setup()
    # Models can be imported only after Django is set up.
    from django.db import connection

    from scheduling.models import Cluster
    from scheduling.services.scheduler.cycle import scheduler

    cluster_id = Cluster.objects.get(is_active=True).pk
    scheduler.run(cluster_id)
    while not scheduler.led and not _parent_gone(0.1):
        scheduler.run(cluster_id)
    statements = Statements()
    connection.execute_wrappers.append(statements)
    cpu_from = time.process_time()
    print("LEADING" if scheduler.led else "ENDED", flush=True)
    while not _parent_gone(0.0):
        scheduler.run(cluster_id)
        if len(scheduler.led) == 1:
            next(iter(scheduler.led.values())).session.wait_for_news(look_s)
        else:
            time.sleep(look_s)
    cpu_s = time.process_time() - cpu_from
    counted = statements.count
    scheduler.stop()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {"peak_mb": round(peak_mb, 1), "cpu_s": cpu_s, "statements": counted}
    print(json.dumps(figures), flush=True)


class Statements:
    """Counts the statements executed on a connection; an executemany counts once."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, execute: Callable[..., Any], *given: Any) -> Any:
        self.count += 1
        return execute(*given)


def _parent_gone(wait_s: float) -> bool:
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


if __name__ == "__main__":
    main(float(sys.argv[1]))
