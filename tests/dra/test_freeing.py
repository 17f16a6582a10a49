"""The choice of holders whose devices must be freed, checked against trying all sets of holders."""

import random
from itertools import combinations

import pytest

from scheduling.engine.types import Node
from scheduling.kube.dra.facts import (
    ClaimAsks,
    ClassFacts,
    Constraint,
    DeviceAsk,
    DeviceClaimFacts,
    DeviceFacts,
    DeviceId,
    GivenDevice,
    SliceFacts,
)
from scheduling.kube.seam import OwnClaim
from scheduling.session.devices.books import DeviceBooks, uid_of_new
from scheduling.session.devices.freeing import Freeing
from tests.cases import seeds

D = "d.example.com"


def books_of(rng):
    """Return the books of one node and claims that hold some of its devices."""
    books = DeviceBooks()
    books.inventory.node_seen(Node("n"))
    books.seen(ClassFacts("any", "class"))
    devices = [
        DeviceFacts(f"x{n}", {f"{D}/numa": rng.randrange(2)}) for n in range(rng.randint(2, 6))
    ]
    books.seen(SliceFacts("s", "slice", D, "n", 1, 1, tuple(devices), node="n"))
    for device in devices:
        if rng.random() < 0.7:
            name = f"c{rng.randrange(4)}"
            before = books.claims.get(("home", name))
            given = (
                *(before.given if before else ()),
                GivenDevice("r", DeviceId(D, "n", device.name)),
            )
            asks = ClaimAsks(((DeviceAsk("r", "any"),),))
            books.seen(DeviceClaimFacts("home", name, name, asks, given, reserved_for=(name,)))
    return books


def any_asks(rng):
    amount = rng.choice((1, 2, 2, 3, None))
    numa = (Constraint((), f"{D}/numa"),) if rng.random() < 0.7 else ()
    if rng.random() < 0.3:
        alternatives = (DeviceAsk("r/a", "any", (), amount), DeviceAsk("r/b", "any", (), 2))
        return ClaimAsks((alternatives,), numa)
    return ClaimAsks(((DeviceAsk("r", "any", (), amount),),), numa)


@pytest.mark.parametrize("seed", seeds(200))
def test_the_smallest_sets_are_all_there_are(seed):
    rng = random.Random(seed)
    books, count = books_of(rng), rng.choice((1, 1, 2))
    new = DeviceClaimFacts("home", "new", uid_of_new("home", "new"), any_asks(rng))
    demand = books.demand("home", "", (), own=[(new, OwnClaim({}))])
    fixed = rng.choice(("", "c0"))  # the holders that stay
    node, holders = books.inventory.nodes["n"], books.holders(books.inventory.nodes["n"])
    freeing = Freeing(books)
    terms = books.nodes_for(demand)
    if terms is None:
        return  # the counts alone show it
    now = {"n"} if "n" in terms[0][0].values else set()
    found = freeing.nodes_of(
        demand, now, count, lambda claim: () if claim == fixed else ((claim, 0, 0),)
    )
    steps = found[0].steps if found else ((((),),) if now and count == 1 else ())
    movable = [claim for claim in holders if claim != fixed]
    for pods in range(1, count + 1):
        smallest = steps[pods - 1] if pods <= len(steps) else ()
        for size in range(len(movable) + 1):
            for gone in combinations(movable, size):
                keys = {(claim, 0, 0) for claim in gone}
                fits = books.suffices(demand, node, frozenset(gone), pods)
                assert fits == any(set(each) <= keys for each in smallest), (pods, gone, steps)
