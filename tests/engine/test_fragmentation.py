"""The fragmentation gradient agrees with a reference of plain loops, and keeps GPUs usable."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.placement.leftover import leftover_table
from scheduling.engine.placement.strategies.fragmentation import (
    COVER,
    SCARCE,
    FragmentationGradient,
    PodShape,
    Potential,
    TypicalMix,
)
from tests.cases import examples
from tests.engine.fleet import cluster_of, gpu_node, job_of, nodes_of, place, pods

SHAPES = [
    PodShape(4000, 1, 1000),
    PodShape(2000, 1, 810),
    PodShape(6000, 1, 470),
    PodShape(1000, 1, 160),
    PodShape(0, 1, 320),
    PodShape(9000, 2, 1000),
    PodShape(16000, 4, 1000, 0b01),
    PodShape(3000, 1, 1000, 0b10),
    PodShape(8000, 0, 0),
]


class Choice(NamedTuple):
    """A node's number and its GPUs: one GPU for a share, otherwise the lowest free ones."""

    node: int
    devices: tuple[int, ...]


class Chooser:
    """Places pods one by one where the gradient loses least, and learns from arrivals: it relearns
    whenever their number has doubled."""

    def __init__(self, cpu, free, model):
        self.cpu, self.free, self.model = np.array(cpu), np.array(free), np.array(model)
        self.capacity, self.mix = int(self.free.sum()), TypicalMix()
        self.arrivals, self.next = 0, 1
        self.gradient = FragmentationGradient(self.cpu, self.free, self.model, self.potential())

    def potential(self):
        return Potential(self.mix, self.cpu, self.free, self.model, self.capacity)

    def arrived(self, shape):
        self.mix.arrived(shape)
        self.arrivals += 1
        if self.arrivals >= self.next:
            self.next *= 2
            self.gradient.judge_by(self.potential())

    def choose(self, shape, usable=None):
        """Return None if the pod fits nowhere."""
        scores = self.gradient.scores(shape)
        gain = scores.gain if usable is None else np.where(usable, scores.gain, -np.inf)
        node = int(gain.argmax())
        if gain[node] == -np.inf:
            return None
        if shape.is_share:
            return Choice(node, (int(scores.device[node]),))
        return Choice(node, tuple(np.flatnonzero(self.free[node] == 1000)[: shape.gpus].tolist()))

    def book(self, shape, choice, sign):
        self.cpu[choice.node] -= sign * shape.cpu_milli
        for device in choice.devices:
            self.free[choice.node, device] -= sign * shape.gpu_milli
        self.gradient.note(choice.node)


class Reference:
    """The rule as written, one node and one shape at a time."""

    def __init__(self, cpu, free, model):
        self.cpu, self.free, self.model = list(cpu), [list(f) for f in free], list(model)
        self.capacity = sum(map(sum, free))
        self.counts, self.arrivals, self.next = {}, 0, 1
        self.refresh()

    def arrived(self, shape):
        self.counts[shape] = self.counts.get(shape, 0) + 1
        self.arrivals += 1
        if self.arrivals >= self.next:
            self.next *= 2
            self.refresh()

    def refresh(self):
        gpu = {s: n for s, n in self.counts.items() if s.gpus}
        total, covered, self.typical = sum(gpu.values()), 0, {}
        for shape in sorted(gpu, key=lambda s: (-gpu[s], s)):
            if covered < COVER * total:
                self.typical[shape] = gpu[shape] / total
                covered += gpu[shape]
        shares = {}
        for s, w in self.typical.items():
            if s.is_share:
                shares[s.gpu_milli] = shares.get(s.gpu_milli, 0) + w
        self.leftover = leftover_table(shares)
        self.price = {}
        for s, w in self.typical.items():
            room = s.milli * sum(
                self.copies(s, self.cpu[n], self.free[n], self.model[n])
                for n in range(len(self.cpu))
            )
            self.price[s] = w / (room / self.capacity + SCARCE)

    @staticmethod
    def copies(s, cpu, free, model):
        if not s.models >> model & 1:
            return 0
        if s.is_share:
            pods = sum(f // s.gpu_milli for f in free)
        else:
            pods = sum(f == 1000 for f in free) // s.gpus
        return min(pods, cpu // s.cpu_milli) if s.cpu_milli else pods

    def potential(self, cpu, free, model):
        room = sum(p * s.milli * self.copies(s, cpu, free, model) for s, p in self.price.items())
        blocked = sum(
            w * sum(free)
            for s, w in self.typical.items()
            if s.models >> model & 1 and s.cpu_milli > cpu
        )
        waste = sum(self.leftover[f] for f in free if f < 1000)
        return 0.1 * room - blocked - 10 * waste

    def gains(self, shape):
        """Return (gain, node, devices) of every node where the pod fits."""
        for n, (cpu, free, model) in enumerate(zip(self.cpu, self.free, self.model, strict=True)):
            if cpu < shape.cpu_milli or not shape.models >> model & 1:
                continue
            if shape.is_share:
                fits = [d for d, f in enumerate(free) if f >= shape.gpu_milli]
                fits.sort(key=lambda d: (free[d], d))
                devices = tuple(fits[:1])
            else:
                devices = tuple(d for d, f in enumerate(free) if f == 1000)[: shape.gpus]
            if len(devices) < shape.gpus:
                continue
            after = [f - shape.gpu_milli * (d in devices) for d, f in enumerate(free)]
            gain = self.potential(cpu - shape.cpu_milli, after, model)
            yield gain - self.potential(cpu, free, model), n, devices

    def book(self, shape, choice, sign):
        self.cpu[choice.node] -= sign * shape.cpu_milli
        for d in choice.devices:
            self.free[choice.node][d] -= sign * shape.gpu_milli


CLUSTER = (
    [16000, 30000, 96000, 8000, 30000],
    [[1000, 1000, 0, 0], [1000] * 4, [1000] * 4, [1000, 0, 0, 0], [1000] * 4],
    [0, 0, 1, 1, 0],
)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, len(SHAPES) - 1), st.booleans()), max_size=40))
def test_every_choice_is_the_one_of_the_written_rule(steps):
    ours, reference = Chooser(*CLUSTER), Reference(*CLUSTER)
    held = []
    for number, leaves in steps:
        shape = SHAPES[number]
        ours.arrived(shape)
        reference.arrived(shape)
        choice = ours.choose(shape)
        gains = sorted(reference.gains(shape), key=lambda g: -g[0])
        if choice is None:
            assert not gains
        else:
            mine = next(g for g in gains if g[1] == choice.node)
            assert mine[2] == choice.devices
            # Weights are rounded to 1/1024, so nearly equal nodes count as equal.
            assert mine[0] >= gains[0][0] - 0.5
            ours.book(shape, choice, 1)
            reference.book(shape, choice, 1)
            held.append((shape, choice))
        if leaves and held:
            gone = held.pop(0)
            ours.book(*gone, -1)
            reference.book(*gone, -1)
        assert ours.free.tolist() == reference.free
        assert ours.cpu.tolist() == reference.cpu


@settings(max_examples=examples(30))
@given(st.lists(st.integers(0, len(SHAPES) - 1), min_size=1, max_size=30))
def test_kept_scores_equal_scores_from_nothing(numbers):
    ours = Chooser(*CLUSTER)
    for number in numbers:
        ours.arrived(SHAPES[number])
        choice = ours.choose(SHAPES[number])
        if choice:
            ours.book(SHAPES[number], choice, 1)
    kept = [ours.choose(shape) for shape in SHAPES]
    ours.gradient._scores.clear()
    assert [ours.choose(shape) for shape in SHAPES] == kept


def arrive(gradient, *shapes):
    for shape in shapes * 8:
        gradient.arrived(shape)


def test_a_share_fills_the_gap_that_fits_it():
    gradient = Chooser([64000] * 3, [[530, 1000], [1000, 1000], [680, 1000]], [0] * 3)
    big, small = PodShape(1000, 1, 470), PodShape(1000, 1, 320)
    arrive(gradient, big, small, PodShape(1000, 1, 650))
    assert gradient.choose(PodShape(1000, 1, 650)) == Choice(2, (0,))
    assert gradient.choose(big) == Choice(0, (0,))


def test_models_that_few_pods_can_avoid_are_kept_for_them():
    """Both nodes are alike, but only the second can serve the pods that insist on its model."""
    gradient = Chooser([64000] * 2, [[1000] * 8] * 2, [0, 1])
    arrive(gradient, PodShape(1000, 1, 1000), PodShape(1000, 1, 1000, 0b10))
    assert gradient.choose(PodShape(1000, 1, 1000)).node == 0


def test_cpu_is_kept_where_gpus_are_left():
    """A pod without GPUs goes where the GPUs are already taken."""
    gradient = Chooser([16000] * 2, [[1000] * 2, [0, 0]], [0, 0])
    arrive(gradient, PodShape(8000, 1, 1000), PodShape(8000, 0, 0))
    assert gradient.choose(PodShape(8000, 0, 0)) == Choice(1, ())


def test_what_fits_nowhere_has_no_place():
    gradient = Chooser([4000, 4000], [[1000], [500]], [0, 1])
    assert gradient.choose(PodShape(1000, 2, 1000)) is None
    assert gradient.choose(PodShape(5000, 1, 100)) is None
    assert gradient.choose(PodShape(1000, 1, 600, 0b10)) is None
    assert gradient.choose(PodShape(1000, 1, 600), np.array([False, True])) is None
    assert gradient.choose(PodShape(1000, 1, 500), np.array([False, True])) == Choice(1, (0,))


def test_equal_nodes_go_to_the_first():
    gradient = Chooser([8000] * 5, [[1000] * 2] * 5, [0] * 5)
    arrive(gradient, PodShape(1000, 1, 1000), PodShape(1000, 1, 300))
    assert gradient.choose(PodShape(1000, 1, 300)) == Choice(0, (0,))
    assert gradient.choose(PodShape(1000, 2, 1000)) == Choice(0, (0, 1))


@pytest.mark.parametrize(
    "shape", [PodShape(1000, 1, 1000), PodShape(1000, 1, 300), PodShape(0, 0, 0)]
)
def test_it_decides_before_anything_has_arrived(shape):
    gradient = Chooser([8000], [[1000]], [0])
    assert gradient.choose(shape).node == 0


def shape_of(gpus, milli, cpu_milli):
    return pods(1, gpus, gpu_milli=milli, cpu_milli=cpu_milli)


def test_a_copy_of_the_cluster_places_as_the_cluster_whatever_has_changed_since_it_learned():
    state = cluster_of(*(gpu_node(f"n{i}", gpus=4, cpu_milli=16_000) for i in range(4)))
    asked = [(2, 1000, 4000), (1, 500, 4000), (1, 1000, 1000), (4, 1000, 1000)]
    asked += [(1, 1000, 4000), (1, 700, 4000), (1, 1000, 4000)]
    for i, shape in enumerate(asked):
        place(state, job_of(f"j{i}", shape_of(*shape)), "fragmentation")
    twin, job = state.copy(), job_of("x", shape_of(1, 1000, 4000))
    assert place(state, job, "fragmentation") == place(twin, job, "fragmentation")


def test_a_node_larger_than_what_was_learned_is_judged_too():
    state = cluster_of(gpu_node("small", gpus=2))
    place(state, job_of("a", pods(1, 1)), "fragmentation")
    place(state, job_of("b", pods(1, 1)), "fragmentation")
    state.upsert_node(gpu_node("large", gpus=8))
    assert nodes_of(place(state, job_of("c", pods(1, 8)), "fragmentation")) == ["large"]


def test_a_node_whose_cpu_is_overcommitted_is_worth_a_number():
    """Foreign pods may request more than a node has left."""
    mix = TypicalMix()
    mix.arrived(PodShape(0, 1, 1000, 1), 3)
    mix.arrived(PodShape(4000, 1, 500), 3)
    nodes = np.array([-500, 8000]), np.array([[1000, 1000]] * 2), np.array([1, 0])
    gradient = FragmentationGradient(*nodes, Potential(mix, *nodes, 4000))
    gains = gradient.scores(PodShape(0, 1, 1000, 1)).gain
    assert np.isfinite(gains[1])
    assert gains[0] == -np.inf
