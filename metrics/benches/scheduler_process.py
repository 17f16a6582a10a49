"""A scheduler on its own, for benches and crash tests.

Run as a module it leads the one active cluster of the database that the settings name, or some of
its shards, as the Celery worker does, woken by news of the cluster and by looking at the database.
It ends when its standard input does (also when its parent was killed) and then prints one JSON line
with its peak memory.
"""

import json
import os
import resource
import select
import sys
import time

import django

LOOK_S = 0.02


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kant.settings")
    django.setup()
    # Django has to be set up before its models can be imported.
    from scheduling.models import Cluster
    from scheduling.services.scheduler.cycle import scheduler

    cluster_id = Cluster.objects.get(is_active=True).pk
    scheduler.run(cluster_id)
    while not scheduler.led and not _parent_gone(0.1):
        scheduler.run(cluster_id)
    print("LEADING" if scheduler.led else "ENDED", flush=True)
    while not _parent_gone(0.0):
        scheduler.run(cluster_id)
        if len(scheduler.led) == 1:
            next(iter(scheduler.led.values())).session.wait_for_news(LOOK_S)
        else:
            time.sleep(LOOK_S)
    scheduler.stop()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": round(peak_mb, 1)}), flush=True)


def _parent_gone(wait_s: float) -> bool:
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


if __name__ == "__main__":
    main()
