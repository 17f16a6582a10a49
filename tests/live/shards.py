"""A cluster of two spines divided between two shards, and which shard has what."""

from collections import defaultdict

import yaml

from metrics.benches import stage
from scheduling.models import Job, NodeRecord

NODES = 8  # two spines of four nodes each
NORTH, SOUTH = "north", "south"


def of_two_spines(folder):
    """Return the fleet file of the cluster."""
    path = stage.inventory(folder / "fleet.yaml", NODES)
    document = yaml.safe_load(path.read_text())
    document["pools"][0] |= {"nodes_per_leaf": 2, "leaves_per_spine": 2}
    path.write_text(yaml.safe_dump(document))
    return path


def spines(world):
    """Return the spines by their full paths, as Kant names groups."""
    labels = [n["metadata"]["labels"] for n in world.call("GET", "/api/v1/nodes")["items"]]
    levels = [f"network.topology.nvidia.com/{level}" for level in ("core", "spine")]
    return sorted({"/".join(found[level] for level in levels) for found in labels})


def divide(world, **policy):
    shards = [{"name": NORTH, "groups": spines(world)[:1]}, {"name": SOUTH}]
    world.set_policy(shards=shards, **policy)


def nodes_by_scope():
    found = defaultdict(set)
    for name, scope in NodeRecord.objects.values_list("name", "scope"):
        found[scope].add(name)
    return found


def scope_of(job):
    return Job.objects.get(pk=job.pk).scope
