"""Devices that several claims share, each with a part of the capacity: tables of cases, and
random cases checked against brute force."""

import itertools
import random
from fractions import Fraction

import pytest

from scheduling.engine.types import Node
from scheduling.kube.dra.allocation import NodeDevices, OfferedDevice, allocate
from scheduling.kube.dra.capacity import consumed_of, part_of
from scheduling.kube.dra.facts import (
    Capacity,
    ClaimAsks,
    ClassFacts,
    Constraint,
    Consumed,
    DeviceAsk,
    DeviceClaimFacts,
    DeviceFacts,
    DeviceId,
    GivenDevice,
    PodClaim,
    RequestPolicy,
    SliceFacts,
)
from scheduling.session.devices.books import NOBODY, DeviceBooks
from scheduling.session.devices.demand import DeviceRefusal
from tests.cases import seeds

D = "d.example.com"


def F(number):
    return Fraction(str(number))


def policy(default=None, values=(), least=None, most=None, step=None):
    amounts = (None if n is None else F(n) for n in (least, most, step))
    return RequestPolicy(None if default is None else F(default), tuple(map(F, values)), *amounts)


STEPS = policy(10, least=5, most=30, step=10)
TABLE = [
    ("all of it", None, None, 40),
    ("what is asked for", None, 7, 7),
    ("more than there is", None, 41, None),
    ("the default", policy(10), None, 10),
    ("the default is for who asks for nothing", policy(10), 7, 7),
    ("one of the values", policy(10, (10, 20)), 10, 10),
    ("the next of the values", policy(10, (10, 20)), 11, 20),
    ("beyond the values", policy(10, (10, 20)), 21, None),
    ("the least", policy(10, least=5), 1, 5),
    ("any size from the least on", policy(10, least=5), 6.5, 6.5),
    ("a step", STEPS, 15, 15),
    ("the next step", STEPS, 15.5, 25),
    ("beyond the most after rounding", STEPS, 26, None),
    ("the most", policy(10, least=5, most=30), 30, 30),
    ("beyond the most", policy(10, least=5, most=30), 31, None),
    ("all of it, where no default is", policy(values=(10, 20)), None, None),
]


@pytest.mark.parametrize(
    ("of", "asked", "found"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE]
)
def test_a_request_takes(of, asked, found):
    device = DeviceFacts("g", capacity={"memory": Capacity(F(40), of)})
    wanted = () if asked is None else (("memory", F(asked)),)
    assert consumed_of(device, wanted) == (None if found is None else (("memory", F(found)),))


def test_a_capacity_that_a_device_has_not_cannot_be_had():
    device = DeviceFacts("g", capacity={"memory": Capacity(F(40))})
    assert consumed_of(device, ((f"{D}/memory", F(1)),)) is None
    assert consumed_of(DeviceFacts("g"), (("memory", F(1)),)) is None
    assert consumed_of(DeviceFacts("g"), ()) == ()


def test_the_part_is_that_of_the_capacity_of_which_it_is_most():
    device = DeviceFacts("g", capacity={"memory": Capacity(F(40)), "cores": Capacity(F(100))})
    assert part_of(device, (("cores", F(50)), ("memory", F(10)))) == Fraction(1, 2)
    assert part_of(DeviceFacts("g"), ()) == 1


# --- which devices --------------------------------------------------------------------------------
def gpu(name, memory=40, *, several=True, numa=0, counters=0, of=None):
    consumes = (Consumed("set", "slots", F(counters)),) if counters else ()
    return DeviceFacts(
        name,
        {f"{D}/numa": numa},
        {"memory": Capacity(F(memory), of)},
        consumes=consumes,
        several=several,
    )


def offers(*devices, slots=None):
    counters = {} if slots is None else {(D, "p", "set", "slots"): F(slots)}
    return NodeDevices([OfferedDevice(DeviceId(D, "p", d.name), d) for d in devices], (), counters)


def ask(memory=None, count=1, name="r", **more):
    wanted = () if memory is None else (("memory", F(memory)),)
    return (DeviceAsk(name, "any", (), count, capacity=wanted, **more),)


def claim(*requests, constraints=()):
    return ClaimAsks(requests, constraints)


def got(of, *claims, used=(), taken=()):
    by_others = {DeviceId(D, "p", name): {"memory": F(n)} for name, n in dict(used).items()}
    whole = {DeviceId(D, "p", name) for name in taken}
    found = allocate(claims, of, whole, lambda ask, device: True, by_others)
    return found and [" ".join(_said(given) for given in each) for each in found]


def _said(given):
    if given.consumed is None:
        return given.device.device
    return f"{given.device.device}:{dict(given.consumed)['memory']}"


TWO = offers(gpu("a"), gpu("b"))
DISTINCT = (Constraint((), f"{D}/numa", distinct=True),)
CASES = [
    ("two claims on one", TWO, [claim(ask(20)), claim(ask(20))], {}, ["a:20", "a:20"]),
    ("the third on the next", TWO, [claim(ask(20))] * 3, {}, ["a:20", "a:20", "b:20"]),
    ("all of them together", TWO, [claim(ask(30))] * 3, {}, None),
    ("two requests on one", TWO, [claim(ask(10), ask(30, name="s"))], {}, ["a:10 a:30"]),
    ("two of one request are two devices", TWO, [claim(ask(10, 2))], {}, ["a:10 b:10"]),
    ("three of one request", TWO, [claim(ask(10, 3))], {}, None),
    ("what others have counts", TWO, [claim(ask(20))], {"a": 21}, ["b:20"]),
    ("what others leave", TWO, [claim(ask(20))], {"a": 20}, ["a:20"]),
    ("without a size all of it", TWO, [claim(ask()), claim(ask(1))], {}, ["a:40", "b:1"]),
    ("the first gives way", TWO, [claim(ask(10)), claim(ask(40)), claim(ask(30))], {"b": 10}, None),
    (
        "the first is put where the second leaves room",
        TWO,
        [claim(ask(10)), claim(ask(40))],
        {"b": 10},
        ["b:10", "a:40"],
    ),
    ("all of those with room", TWO, [claim(ask(20, None))], {"a": 30}, ["b:20"]),
    (
        "distinct",
        offers(gpu("a"), gpu("b"), gpu("c", numa=1)),
        [claim(ask(10), ask(10, name="s"), constraints=DISTINCT)],
        {},
        ["a:10 c:10"],
    ),
    (
        "one that one claim has whole",
        offers(gpu("a", several=False), gpu("b")),
        [claim(ask(10)), claim(ask(10))],
        {},
        ["a", "b:10"],
    ),
    ("one that is too small", offers(gpu("a", 5, several=False)), [claim(ask(10))], {}, None),
    (
        "counters are taken once",
        offers(gpu("a", counters=3), gpu("b", counters=3), slots=3),
        [claim(ask(10))] * 4,
        {},
        ["a:10"] * 4,
    ),
    (
        "and not by the second device",
        offers(gpu("a", counters=3), gpu("b", counters=3), slots=3),
        [claim(ask(30))] * 2,
        {},
        None,
    ),
    (
        "and were taken by others",
        offers(gpu("a", counters=3), slots=0),
        [claim(ask(30))],
        {"a": 10},
        ["a:30"],
    ),
]


@pytest.mark.parametrize(
    ("of", "claims", "used", "found"), [r[1:] for r in CASES], ids=[r[0] for r in CASES]
)
def test_claims_get_parts(of, claims, used, found):
    assert got(of, *claims, used=used) == found


def test_what_a_claim_has_whole_is_not_shared():
    assert got(TWO, claim(ask(1)), taken=("a",)) == ["b:1"]


# --- against brute force --------------------------------------------------------------------------
def fits_somehow(of, claims, used):
    """Return whether some choice of devices leaves room on each of them."""
    slots = [(n, a) for n, each in enumerate(claims) for (a,) in each.requests]
    options = [itertools.combinations(of.devices, a.amount) for _, a in slots]
    for chosen in itertools.product(*(list(each) for each in options)):
        pairs = [(n, a, o) for (n, a), part in zip(slots, chosen, strict=True) for o in part]
        if _leaves_room(claims, pairs, used):
            return True
    return False


def _leaves_room(claims, pairs, used):
    left = {}
    for _, a, offer in pairs:
        consumed = consumed_of(offer.facts, a.capacity)
        if consumed is None:
            return False
        [(_, amount)] = consumed
        capacity = offer.facts.capacity["memory"].value
        if not offer.facts.several:
            amount = capacity
        before = left.get(offer.id, capacity - used.get(offer.id, {}).get("memory", 0))
        left[offer.id] = before - amount
    if any(amount < 0 for amount in left.values()):
        return False
    for n, each in enumerate(claims):
        for rule in each.constraints:
            mine = [o.facts.attributes[rule.attribute] for m, _, o in pairs if m == n]
            if len(set(mine)) < len(mine):
                return False
    return True


POLICIES = (None, policy(2), policy(2, (2, 4, 6)), policy(1, least=1, most=5, step=2))


@pytest.mark.parametrize("seed", seeds(600))
def test_parts_are_found_where_there_are_some(seed):
    rng = random.Random(seed)
    of = offers(
        *(
            gpu(
                f"x{n}",
                rng.randint(6, 9),
                several=rng.random() < 0.8,
                numa=rng.randrange(3),
                of=rng.choice(POLICIES),
            )
            for n in range(rng.randint(1, 4))
        )
    )
    used = {
        o.id: {"memory": F(rng.randint(0, 6))}
        for o in of.devices
        if o.facts.several and rng.random() < 0.3
    }
    claims = [
        claim(
            *(
                ask(rng.choice((None, 1, 2, 3, 4, 5)), rng.choice((1, 1, 2)), name=f"r{n}")
                for n in range(rng.choice((1, 1, 2)))
            ),
            constraints=DISTINCT if rng.random() < 0.2 else (),
        )
        for _ in range(rng.randint(1, 3))
    ]
    found = allocate(claims, of, set(), lambda ask, device: True, used)
    assert (found is not None) == fits_somehow(of, claims, used)
    if found is not None:
        by_id = {o.id: o for o in of.devices}
        asks = [{a.name: a for (a,) in each.requests} for each in claims]
        pairs = [
            (n, asks[n][g.request], by_id[g.device]) for n, of_n in enumerate(found) for g in of_n
        ]
        assert _leaves_room(claims, pairs, used)
        for n, a, o in pairs:
            mine = [g for g in found[n] if (g.request, g.device) == (a.name, o.id)]
            assert len(mine) == 1
            told = consumed_of(o.facts, a.capacity) if o.facts.several else None
            assert mine[0].consumed == told


# --- the books ------------------------------------------------------------------------------------
def books(*devices):
    found = DeviceBooks()
    found.inventory.node_seen(Node("n"))
    found.seen(ClassFacts("any", "class"))
    found.seen(SliceFacts("s", "slice", D, "n", 1, 1, devices, node="n"))
    return found


def real_gpu(name, memory=40, **more):
    device = gpu(name, memory, **more)
    attributes = {**device.attributes, f"{D}/productName": "H100"}
    return DeviceFacts(name, attributes, device.capacity, several=device.several)


def seen(of, name, *requests, given=None, reserved_for=()):
    facts = DeviceClaimFacts("home", name, name, claim(*requests), given, reserved_for=reserved_for)
    of.seen(facts)
    return facts


def demand(of, *names):
    return of.demand("home", "pod", [PodClaim(name, name) for name in names])


def test_parts_that_claims_have_come_back_with_them():
    of = books(gpu("a"))
    node, device = of.inventory.nodes["n"], DeviceId(D, "n", "a")
    given = (GivenDevice("r", device, consumed=(("memory", F(30)),)),)
    other = seen(of, "other", ask(30), given=given)
    seen(of, "mine", ask(20))
    before = of.stamp_of("n")
    assert of.choose(demand(of, "mine"), node, NOBODY) is None
    assert of.suffices(demand(of, "mine"), node, {"other"})
    assert of.holders(node) == ["other"]
    of.gone(other)
    assert of.stamp_of("n") != before
    [chosen] = of.choose(demand(of, "mine"), node, NOBODY)
    assert chosen.given == (GivenDevice("r", device, consumed=(("memory", F(20)),)),)
    of.assume(chosen, ("job", 1, 0, 0))
    seen(of, "late", ask(30))
    assert of.choose(demand(of, "late"), node, NOBODY) is None
    of.drop("mine")
    assert of.choose(demand(of, "late"), node, NOBODY) is not None


def test_quota_counts_the_part():
    of = books(real_gpu("a"), real_gpu("b", 80))
    seen(of, "quarter", ask(10))
    seen(of, "whole", ask())
    found = demand(of, "quarter")
    # The largest part that the smaller GPU offers.
    assert (found.gpus, found.gpu_milli, found.models) == (1, 250, ("H100",))
    assert not found.exact
    assert demand(of, "whole").gpu_milli == 1000


def test_a_pod_has_one_part_of_a_gpu():
    of = books(real_gpu("a"), real_gpu("b"))
    seen(of, "two", ask(10, 2))
    seen(of, "one", ask(10))
    seen(of, "other", ask())
    for names in (("two",), ("one", "other")):
        with pytest.raises(DeviceRefusal, match="a part of one GPU, and no other GPU"):
            demand(of, *names)


def test_a_part_that_no_device_has_is_told():
    of = books(real_gpu("a"))
    seen(of, "large", ask(41))
    with pytest.raises(DeviceRefusal, match="no device of the cluster matches request r"):
        demand(of, "large")
