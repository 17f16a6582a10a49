"""Device allocation for claims: a table of cases, and random cases checked against brute force."""

import itertools
import random
from fractions import Fraction

import pytest
from msgspec.structs import replace

from scheduling.engine.types import NodeExpression, Toleration
from scheduling.kube.dra.allocation import (
    NodeDevices,
    OfferedDevice,
    TooComplex,
    allocate,
    nodes_of,
)
from scheduling.kube.dra.facts import (
    ClaimAsks,
    Constraint,
    Consumed,
    DeviceAsk,
    DeviceFacts,
    DeviceId,
    DeviceTaint,
    GivenDevice,
)
from tests.cases import seeds

D = "d.example.com"
BROKEN = DeviceTaint("broken", "", "NoExecute")
TOLERATES = (Toleration("broken", "Exists"),)


def device(name, kind="gpu", *, numa=0, taints=(), slices=0, admin=None):
    consumes = (Consumed("memory", "slices", Fraction(slices)),) if slices else ()
    attributes = {f"{D}/kind": kind, f"{D}/numa": numa}
    return DeviceFacts(name, attributes, {}, taints, consumes)


def offers(*devices, updating=(), slices=None, nodes=None):
    counters = {} if slices is None else {(D, "p", "memory", "slices"): Fraction(slices)}
    local = nodes is None
    found = [OfferedDevice(DeviceId(D, "p", d.name), d, local, nodes or ()) for d in devices]
    return NodeDevices(found, updating, counters)


def fits_among(of):
    kinds = {offer.id: offer.facts.attributes[f"{D}/kind"] for offer in of.devices}
    return lambda ask, device: ask.device_class in ("any", kinds[device])


def ask(count=1, kind="gpu", name="r", **more):
    return (DeviceAsk(name, kind, (), count, **more),)


def got(of, *claims, taken=()):
    taken = {DeviceId(D, "p", name) for name in taken}
    found = allocate(claims, of, taken, fits_among(of))
    return found and [" ".join(given.device.device for given in claim) for claim in found]


def claim(*requests, constraints=()):
    return ClaimAsks(requests, constraints)


GPUS = offers(*(device(f"g{n}", numa=n // 2) for n in range(4)), device("n0", "nic", numa=1))
BY_NUMA = (Constraint((), f"{D}/numa"),)
OTHER_NUMA = (Constraint((), f"{D}/numa", distinct=True),)

TABLE = [
    ("so many", GPUS, [claim(ask(2))], (), ["g0 g1"]),
    ("what others have is left out", GPUS, [claim(ask(2))], ("g0", "g2"), ["g1 g3"]),
    ("too few", GPUS, [claim(ask(3))], ("g0", "g2"), None),
    ("all of a class", GPUS, [claim(ask(None))], (), ["g0 g1 g2 g3"]),
    ("all, but one is taken", GPUS, [claim(ask(None))], ("g3",), None),
    ("all of none", GPUS, [claim(ask(None, "fpga"))], (), None),
    ("two requests", GPUS, [claim(ask(1), ask(1, "nic", name="n"))], (), ["g0 n0"]),
    (
        "the first gives way to the second",
        GPUS,
        [claim(ask(1, "any"), ask(4, name="g"))],
        (),
        ["n0 g0 g1 g2 g3"],
    ),
    ("two claims", GPUS, [claim(ask(2)), claim(ask(2))], (), ["g0 g1", "g2 g3"]),
    ("two claims, all or none", GPUS, [claim(ask(2)), claim(ask(3))], (), None),
    ("alike", GPUS, [claim(ask(2), constraints=BY_NUMA)], ("g0",), ["g2 g3"]),
    (
        "alike over requests",
        GPUS,
        [claim(ask(1), ask(1, "nic"), constraints=BY_NUMA)],
        (),
        ["g2 n0"],
    ),
    ("alike, too many", GPUS, [claim(ask(3), constraints=BY_NUMA)], (), None),
    ("distinct", GPUS, [claim(ask(2), constraints=OTHER_NUMA)], (), ["g0 g2"]),
    ("distinct, too many", GPUS, [claim(ask(3), constraints=OTHER_NUMA)], (), None),
    (
        "a constraint of one request",
        GPUS,
        [claim(ask(2, name="a"), ask(1, name="b"), constraints=(Constraint(("a",), f"{D}/numa"),))],
        (),
        ["g0 g1 g2"],
    ),
    (
        "an attribute that no device has",
        GPUS,
        [claim(ask(1), constraints=(Constraint((), f"{D}/none"),))],
        (),
        None,
    ),
    (
        "the first alternative that fits",
        GPUS,
        [claim((*ask(2, "nic", name="r/a"), *ask(2, name="r/b"), *ask(1, name="r/c")))],
        (),
        ["g0 g1"],
    ),
    (
        "a constraint counts for alternatives",
        GPUS,
        [
            claim(
                ask(1, "nic", name="n"),
                ask(1, name="r/a"),
                constraints=(Constraint(("n", "r"), f"{D}/numa"),),
            )
        ],
        (),
        ["n0 g2"],
    ),
    (
        "admin access to what others have",
        GPUS,
        [claim(ask(4, admin=True))],
        ("g0",),
        ["g0 g1 g2 g3"],
    ),
    (
        "admin access keeps from others of the pod",
        GPUS,
        [claim(ask(3, admin=True)), claim(ask(2))],
        (),
        None,
    ),
    ("tainted", offers(device("g0", taints=(BROKEN,))), [claim(ask())], (), None),
    (
        "tolerated",
        offers(device("g0", taints=(BROKEN,))),
        [claim(ask(tolerations=TOLERATES))],
        (),
        ["g0"],
    ),
    (
        "another effect",
        offers(device("g0", taints=(DeviceTaint("broken", "", "None"),))),
        [claim(ask())],
        (),
        ["g0"],
    ),
    (
        "all, but one is tainted",
        offers(device("g0"), device("g1", taints=(BROKEN,))),
        [claim(ask(None))],
        (),
        None,
    ),
    (
        "of what they share",
        offers(*(device(f"g{n}", slices=n + 1) for n in range(4)), slices=5),
        [claim(ask(2))],
        (),
        ["g0 g1"],
    ),
    (
        "more than they share",
        offers(*(device(f"g{n}", slices=2) for n in range(4)), slices=5),
        [claim(ask(3))],
        (),
        None,
    ),
    (
        "all while a pool is updated",
        offers(device("g0"), updating=("q",)),
        [claim(ask(None))],
        (),
        None,
    ),
    (
        "some while a pool is updated",
        offers(device("g0"), updating=("q",)),
        [claim(ask())],
        (),
        ["g0"],
    ),
    (
        "more than a claim may have",
        offers(*(device(f"g{n}") for n in range(40))),
        [claim(ask(33))],
        (),
        None,
    ),
]


@pytest.mark.parametrize(
    ("of", "claims", "taken", "found"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE]
)
def test_claims_get(of, claims, taken, found):
    assert got(of, *claims, taken=taken) == found


def test_many_devices_that_are_alike_are_tried_once():
    of = offers(*(device(f"g{n}", numa=n % 2) for n in range(32)))
    assert got(of, claim(ask(16), ask(1, "nic"))) is None
    assert got(of, claim(ask(17), constraints=BY_NUMA)) is None


def test_a_search_without_end_is_given_up():
    of = offers(*(device(f"g{n}", numa=n) for n in range(32)))
    with pytest.raises(TooComplex):
        got(of, claim(ask(16), ask(16, name="s"), ask(1, "nic"), constraints=OTHER_NUMA))


def test_where_an_allocation_holds():
    zone = ((NodeExpression("zone", "In", ("a",)),),)
    given = [GivenDevice("r", DeviceId(D, "p", "g0"))]
    assert nodes_of(given, offers(device("g0"))) is None
    assert nodes_of(given, offers(device("g0"), nodes=zone)) == zone
    assert nodes_of(given, offers(device("g0"), nodes=())) == ()
    bound = replace(device("g0"), binds_to_node=True)
    assert nodes_of(given, offers(bound, nodes=())) is None


# --- against brute force --------------------------------------------------------------------------
def by_trying(of, claims, taken):
    """Return whether any assignment gives devices to all claims."""
    slots = [(n, of_request) for n, each in enumerate(claims) for of_request in each.requests]
    for choice in itertools.product(*(of_request for _, of_request in slots)):
        if _by_trying(of, claims, [(n, a) for (n, _), a in zip(slots, choice, strict=True)], taken):
            return True
    return False


def _by_trying(of, claims, asks, taken):
    fits = fits_among(of)

    def sets_for(each):
        wanted = [o for o in of.devices if fits(each, o.id)]
        if each.amount is None:
            return [tuple(wanted)] if wanted else []
        return itertools.combinations(wanted, each.amount)

    for chosen in itertools.product(*(list(sets_for(each)) for _, each in asks)):
        if _is_right(of, claims, asks, chosen, taken):
            return True
    return False


def _is_right(of, claims, asks, chosen, taken):
    pairs = [(n, a, o) for (n, a), part in zip(asks, chosen, strict=True) for o in part]
    if len({o.id for _, _, o in pairs}) < len(pairs):
        return False
    if any(o.id in taken and not a.admin for _, a, o in pairs):
        return False
    if any(o.facts.taints and not a.tolerations for _, a, o in pairs):
        return False
    if sum(c.amount for _, _, o in pairs for c in o.facts.consumes) > of.counters.get(
        (D, "p", "memory", "slices"), 0
    ):
        return False
    for n, each in enumerate(claims):
        for rule in each.constraints:
            mine = [
                o.facts.attributes[rule.attribute]
                for m, a, o in pairs
                if m == n and (not rule.requests or a.name.partition("/")[0] in rule.requests)
            ]
            if len(set(mine)) != (len(mine) if rule.distinct else min(len(mine), 1)):
                return False
    return True


def any_ask(rng, name):
    count = rng.choice((1, 1, 2, 3, None))
    kind = rng.choice(("gpu", "gpu", "nic", "any"))
    tolerations = TOLERATES if rng.random() < 0.3 else ()
    return DeviceAsk(name, kind, (), count, tolerations=tolerations)


def any_claim(rng, names):
    names = names[: rng.randint(1, 2)]
    requests = [
        (any_ask(rng, n),)
        if rng.random() < 0.7
        else (any_ask(rng, f"{n}/x"), any_ask(rng, f"{n}/y"))
        for n in names
    ]
    rules = []
    if rng.random() < 0.6:
        requests_of = rng.choice(((), (rng.choice(names),)))
        rules.append(Constraint(requests_of, f"{D}/numa", distinct=rng.random() < 0.4))
    return claim(*requests, constraints=tuple(rules))


@pytest.mark.parametrize("seed", seeds(600))
def test_devices_are_found_where_there_are_some(seed):
    rng = random.Random(seed)
    of = offers(
        *(
            device(
                f"x{n}",
                rng.choice(("gpu", "gpu", "nic")),
                numa=rng.randrange(3),
                taints=(BROKEN,) if rng.random() < 0.15 else (),
                slices=rng.choice((0, 0, 1, 2)),
            )
            for n in range(rng.randint(1, 6))
        ),
        slices=rng.randint(0, 4),
    )
    claims = [any_claim(rng, names) for names in ("ab", "cd")[: rng.randint(1, 2)]]
    taken = {o.id for o in of.devices if rng.random() < 0.2}
    found = allocate(claims, of, taken, fits_among(of))
    assert (found is not None) == by_trying(of, claims, taken)
    if found is not None:
        by_id = {o.id: o for o in of.devices}
        named = {a.name: a for each in claims for part in each.requests for a in part}
        pairs = [(named[g.request], by_id[g.device]) for given in found for g in given]
        assert all(fits_among(of)(a, o.id) for a, o in pairs)
        asks = [(n, named[g.request]) for n, given in enumerate(found) for g in given]
        assert _is_right(of, claims, asks, [[o] for _, o in pairs], taken)
