"""A replay of the history of `blocked_head`."""

from metrics.replays import services
from tests.metrics import rows

NODES = tuple(f"n{i:03}" for i in range(4))


def asked(cluster, operator, *, until=1200, **change):
    return services.create_replay(
        operator, cluster, since=rows.at(0), until=rows.at(until), **change
    )
