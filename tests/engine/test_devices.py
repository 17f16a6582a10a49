"""Device tables: optimal by brute force, NICs on the nearest path, choices explained in words."""

from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.devices.links import LINK_MODELS, Link, matrix_of, parse_matrix
from scheduling.engine.devices.nics import nics_for
from scheduling.engine.devices.tables import describe, link_problem, table_for
from scheduling.engine.types import Device, Nic, Node
from tests.cases import examples


def node(gpus=8, nics=8, link_model="", halves=True, bad_nics=()):
    def numa(i, n):
        return 2 * i // n if halves else 0

    return Node(
        name="n",
        devices=tuple(Device(index=i, numa=numa(i, gpus), memory_mib=80_000) for i in range(gpus)),
        nics=tuple(
            Nic(index=i, numa=numa(i, nics), healthy=i not in bad_nics) for i in range(nics)
        ),
        link_model=link_model,
    )


def mask(*indices):
    return sum(1 << i for i in indices)


def bits(m):
    return tuple(i for i in range(m.bit_length()) if m >> i & 1)


def joined(matrix, numa, chosen):
    """The rule as written: sum of bandwidths, then pairs on one NUMA node."""
    pairs = list(combinations(chosen, 2))
    return (
        sum(matrix[i][j] for i, j in pairs),
        sum(numa[i] == numa[j] for i, j in pairs),
    )


def brute_force(matrix, numa, free, count):
    """Return the first set, in index order, that no other set beats."""
    best, best_rank = None, None
    for chosen in combinations(free, count):
        rest = [i for i in free if i not in chosen]
        rank = joined(matrix, numa, chosen) + joined(matrix, numa, rest)
        if best_rank is None or rank > best_rank:
            best, best_rank = chosen, rank
    return best


RING = "X,NV2,SYS,NV1;NV2,X,NV1,SYS;SYS,NV1,X,NV2;NV1,SYS,NV2,X"


@pytest.mark.parametrize("link_model", [*LINK_MODELS, RING, ""])
@pytest.mark.parametrize("halves", [True, False])
def test_every_free_mask_and_request_is_optimal(link_model, halves):
    gpus = len(matrix_of(link_model, (0,) * (4 if link_model in ("pcie-4", RING) else 8)))
    table = table_for(node(gpus, link_model=link_model, halves=halves))
    for free in range(1 << gpus):
        indices = bits(free)
        for count in range(1, gpus + 1):
            want = brute_force(table.matrix, table.numa, indices, count)
            assert table.best(free, count) == (0 if want is None else mask(*want)), (free, count)


@settings(max_examples=examples(60))
@given(st.data())
def test_any_node_of_one_to_sixteen_gpus_is_optimal(data):
    gpus = data.draw(st.integers(1, 16))
    numa = tuple(data.draw(st.lists(st.integers(0, 3), min_size=gpus, max_size=gpus)))
    devices = tuple(Device(index=i, numa=numa[i]) for i in range(gpus))
    table = table_for(Node(name="n", devices=devices))
    free = data.draw(st.integers(0, (1 << gpus) - 1))
    count = data.draw(st.integers(1, gpus))
    want = brute_force(table.matrix, numa, bits(free), count)
    assert table.best(free, count) == (0 if want is None else mask(*want))


def test_requests_that_cannot_be_met_give_the_empty_mask():
    table = table_for(node())
    assert table.best(0, 1) == 0
    assert table.best(0b11, 3) == 0
    assert table.best(0xFF, 0) == 0
    assert table.best(0xFF, 9) == 0


def test_one_gpu_comes_from_the_already_broken_half():
    table = table_for(node(link_model="numa-8"))
    assert bits(table.best(mask(0, 2, 4, 5, 6, 7), 1)) == (0,)
    assert bits(table.best(mask(0, 1, 2, 3, 5), 1)) == (5,)


def test_pairs_of_a_cube_mesh_take_the_double_links():
    table = table_for(node(link_model="hybrid-cube-mesh-8"))
    assert table.matrix[0][3] == Link.NV2
    assert bits(table.best(0xFF, 2)) == (0, 3)
    assert bits(table.best(0xFF, 4)) == (0, 1, 2, 3)


def test_nodes_of_one_model_share_a_table():
    assert table_for(node(link_model="numa-8")) is table_for(node(link_model="numa-8"))
    assert table_for(node(link_model="numa-8")) is not table_for(node(link_model="nvswitch-8"))
    assert nics_for(node()) is nics_for(node(bad_nics=(3,)))


@pytest.mark.parametrize(
    ("link_model", "words"),
    [
        ("nvswitch-9", "unknown link model 'nvswitch-9'; known are nvswitch-8"),
        ("pcie-4", "is for 4 GPUs, the node has 8"),
        ("X,NV2;NV1,X", "disagrees with itself on GPUs 0 and 1"),
        ("X,NV2;NV2", "row 1 of the link matrix has 1 entries instead of 2"),
        ("X,NV2;FAST,X", "row 1, column 0 of the link matrix is 'FAST'"),
        ("NV1,NV2;NV2,X", "row 0, column 0 of the link matrix is 'NV1'"),
        (";".join(["X"] * 17), "2 to 16 rows, this one has 17"),
    ],
)
def test_unusable_link_models_are_named_and_placement_goes_on(link_model, words):
    bad = node(link_model=link_model)
    assert words in link_problem(bad)
    assert table_for(bad) is table_for(node())


def test_usable_link_models_have_no_problem():
    assert link_problem(node()) == ""
    assert link_problem(node(4, link_model=RING)) == ""
    assert parse_matrix("x, nv2; nv2 ,X") == ((0, 50), (50, 0))


@pytest.mark.parametrize("devices", [17, 56, 112, 256])
def test_of_more_devices_than_a_table_covers_the_first_free_ones_are_taken(devices):
    table = table_for(node(devices))
    assert table is table_for(node(devices))
    assert bits(table.best((1 << devices) - 1, 2)) == (0, 1)
    assert bits(table.best(mask(3, 9, devices - 2, devices - 1), 3)) == (3, 9, devices - 2)
    assert table.best((1 << devices) - 1, devices) == (1 << devices) - 1
    assert (table.best(mask(1, devices - 1), 3), table.best(mask(5), 0)) == (0, 0)
    assert describe(node(devices), (0, 1)) == "GPUs 0-1, one NUMA node"
    assert describe(node(devices), (0, devices - 1)) == f"GPUs 0,{devices - 1}, 2 NUMA nodes"
    declared = node(devices, link_model="nvswitch-8")
    assert (
        link_problem(declared) == f"link model 'nvswitch-8' is for 8 GPUs, the node has {devices}"
    )
    assert table_for(declared) is table


def test_nics_follow_their_gpus():
    eight = nics_for(node())
    assert eight.pair((4, 5, 6, 7), 0xFF) == (4, 5, 6, 7)
    assert eight.pair((4, 5, 6, 7), 0xFF, 4) == (4, 5, 6, 7)
    assert eight.pair((3,), 0xFF, 2) == (0, 3)
    two = nics_for(node(nics=2))
    assert two.pair((0, 1, 2, 3), 0b11) == (0,)
    assert two.pair((3, 4), 0b11) == (0, 1)


def test_unhealthy_and_taken_nics_are_passed_over():
    sick = node(bad_nics=(5,))
    usable = 0xFF - mask(5)
    assert nics_for(sick).pair((5,), usable) == (4,)
    assert nics_for(sick).pair((4, 5), usable & ~mask(6), 2) == (4, 7)
    assert nics_for(sick).pair((0,), 0) == ()
    assert nics_for(sick).pair((0, 1), mask(7), 2) is None
    assert nics_for(node(nics=0)).pair((0,), 0) == ()


@settings(max_examples=examples(80))
@given(st.data())
def test_counted_nics_have_the_shortest_paths(data):
    """With as many GPUs as NICs requested, no assignment has a smaller sum of distances."""
    gpus, nics = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    server = node(gpus, nics)
    usable = data.draw(st.integers(1, (1 << nics) - 1))
    count = data.draw(st.integers(1, min(gpus, usable.bit_count())))
    devices = tuple(sorted(data.draw(st.permutations(range(gpus)))[:count]))
    switches = min(gpus, nics)

    def distance(gpu, nic):
        if server.devices[gpu].numa != server.nics[nic].numa:
            return 2
        return int(gpu * switches // gpus != nic * switches // nics)

    def cost(chosen):
        return min(
            sum(distance(g, n) for g, n in zip(devices, order, strict=True))
            for order in permutations(chosen)
        )

    got = nics_for(server).pair(devices, usable, count)
    assert len(set(got)) == count
    assert cost(got) == min(cost(c) for c in combinations(bits(usable), count))


def test_choices_in_words():
    halves = node(link_model="numa-8")
    assert describe(halves, (4, 5, 6, 7), (4, 5, 6, 7)) == "GPUs 4-7, one NUMA node, NICs 4-7"
    assert describe(halves, (3,), (3,)) == "GPU 3, NIC 3"
    assert describe(halves, (2,), milli=300) == "0.3 of GPU 2"
    assert describe(halves, (0, 1, 5)) == "GPUs 0-1,5, 2 NUMA nodes"
    mesh = node(link_model="hybrid-cube-mesh-8", nics=0)
    assert describe(mesh, (0, 3)) == "GPUs 0,3, joined by NVLink, one NUMA node"
