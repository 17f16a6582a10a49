"""Engine nodes for a run: from a fleet, from a size like 1000x8, or from a recorded network."""

import re

from numpy.random import PCG64, Generator

from scheduling.engine.types import Device, Nic, Node, Taint
from scheduling.simulator.fleet import Fleet, FleetError, FleetNode, listed

GPU_MODEL, GPU_MEMORY_MIB = "H100", 81_920
LEAF_SIZE = 8
NETWORK_GPUS = 8  # per machine, because a recorded network does not say
MAX_SIZE = 100_000


def engine_nodes(fleet: Fleet) -> tuple[Node, ...]:
    """Return the nodes of a fleet as the engine sees them, in the fleet's order."""
    return tuple(_engine_node(n) for n in fleet.nodes)


def _engine_node(n: FleetNode) -> Node:
    halves = max(1, n.gpus // 2)
    nic_halves = max(1, n.nics // 2)
    return Node(
        name=n.name,
        gpu_model=n.gpu_model,
        devices=tuple(
            Device(i, numa=i // halves if n.gpus > 1 else 0, memory_mib=n.gpu_memory_mib)
            for i in range(n.gpus)
        ),
        nics=tuple(
            Nic(i, f"nic-{i}", numa=i // nic_halves if n.nics > 1 else 0) for i in range(n.nics)
        ),
        topology=(n.leaf, n.spine, n.superspine),
        hyper_node=n.hyper_node,
        labels=dict(n.labels),
        taints=tuple(Taint(key, value, effect) for key, value, effect in n.taints),
        cpu_milli=n.cpu_milli,
        memory_mib=n.memory_mib,
        max_pods=n.max_pods,
        extended=dict(n.extended),
        link_model=n.link_model,
        zone=n.zone,
        gives_shares=n.gives_shares,
    )


def _machine(name: str, gpus: int, place: tuple[str, str, str]) -> FleetNode:
    """Return a machine of the usual make; `place`: its leaf, spine and superspine."""
    leaf, spine, superspine = place
    return FleetNode(
        name=name,
        pool="pool",
        gpu_model=GPU_MODEL,
        gpus=gpus,
        gpu_memory_mib=GPU_MEMORY_MIB,
        cpu_milli=16_000 * gpus,
        memory_mib=200_000 * gpus,
        nics=gpus,
        leaf=leaf,
        spine=spine,
        superspine=superspine,
    )


def sized(text: str) -> Fleet:
    """Return a fleet of a size, "1000x8" = 1,000 nodes of 8 GPUs, in the calibrated topology.

    Leaves have LEAF_SIZE nodes, one in ten fewer (5/8 to 7/8 of that); spines have 250-360 nodes;
    there is one superspine. Raises FleetError for a text that is no size.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]?)", text)
    if match is None or int(match[1]) > MAX_SIZE or int(match[2]) > 16:
        raise FleetError(
            f"{text!r} is no size of a fleet; write NODESxGPUS, e.g. 1000x8 "
            f"(at most {MAX_SIZE} nodes of 16 GPUs)"
        )
    count, gpus = int(match[1]), int(match[2])
    rng = Generator(PCG64(0))
    nodes: list[FleetNode] = []
    leaf = spine = 0
    spine_left = int(rng.integers(250, 361))
    while len(nodes) < count:
        size = LEAF_SIZE
        if rng.random() < 0.1:
            size = int(rng.integers(5, 8))
        if spine_left < size:
            spine, spine_left = spine + 1, int(rng.integers(250, 361))
        size = min(size, count - len(nodes))
        for _ in range(size):
            nodes.append(
                _machine(
                    f"node-{len(nodes):05}",
                    gpus,
                    (f"spine-{spine}/leaf-{leaf}", f"spine-{spine}", "superspine-0"),
                )
            )
        leaf, spine_left = leaf + 1, spine_left - size
    return Fleet(text, tuple(nodes))


def recorded_network(text: str) -> Fleet:
    """Return a fleet on a recorded three-layer Clos network: a CSV of ip, DSW, PSW, ASW.

    ASW (leaf) names repeat across PSWs (spines), so a leaf is named by both. Raises FleetError
    naming line and column.
    """
    wanted = ("ip", "DSW", "PSW", "ASW")
    nodes, seen = [], set[str]()
    first_seen: dict[str, tuple[str, int]] = {}  # switch -> its column and line
    for line, row in listed(text, wanted):
        for column in wanted:
            if not row[column]:
                raise FleetError(f"line {line}, column {column}: is empty")
        ip, core, spine, leaf = (row[c] for c in wanted)
        for column in wanted[1:]:
            switch = row[column]
            earlier, at = first_seen.setdefault(switch, (column, line))
            if earlier != column:
                raise FleetError(
                    f"line {line}, column {column}: {switch} stands in column {earlier} on line "
                    f"{at}; a switch on two levels makes a loop of the topology"
                )
        if ip in seen:
            raise FleetError(f"line {line}, column ip: {ip} appears twice")
        seen.add(ip)
        place = f"{spine}/{leaf}", spine, core
        nodes.append(_machine(f"host-{ip.replace('.', '-')}", NETWORK_GPUS, place))
    if not nodes:
        raise FleetError("the network file has no hosts")
    return Fleet("network", tuple(nodes))
