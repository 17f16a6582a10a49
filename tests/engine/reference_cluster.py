"""The cluster state of the naive placement reference: bookings, summed up on every question.

Node order and topology are computed anew for every question.
"""

import math
from fractions import Fraction

from scheduling.engine.cluster.columns import OtherPod
from scheduling.engine.cluster.facts import sane
from scheduling.engine.cluster.lifetimes import outlook
from scheduling.engine.types import MILLI, Node, PodPlacement, PodSetSpec


def bit_positions(mask):
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def size_of(memory, s):
    """Return the share of a device with this memory that a pod takes, in thousandths."""
    if not s.gpu_memory_mib:
        return Fraction(s.gpu_milli)
    return max(Fraction(MILLI * s.gpu_memory_mib, memory), Fraction(1))


class Cluster:
    """Nodes by name, pods by (job, pod set, ordinal), foreign pods by uid."""

    def __init__(self, levels):
        self.levels = levels
        self.nodes: dict[str, Node] = {}
        self.pods: dict[tuple, tuple[PodPlacement, PodSetSpec]] = {}
        self.others: dict[str, OtherPod] = {}
        self.now = 0.0
        self.times: dict[str, tuple[float, float | None]] = {}

    def upsert_node(self, node):
        self.nodes[node.name] = sane(node)

    # --- what is free -----------------------------------------------------------------------
    def on(self, node):
        return [(p, s) for p, s in self.pods.values() if p.node == node.name]

    def used(self, node):
        used = {}
        for p, _ in self.on(node):
            for device in p.devices:
                used[device] = used.get(device, 0) + p.milli
        return used

    def exact(self, node):
        """Return what is left of each device in use, whole or in part, in thousandths."""
        memory = min((d.memory_mib for d in node.devices), default=0)
        used = {}
        for p, s in self.on(node):
            part = Fraction(p.milli)
            if memory >= s.gpu_memory_mib > 0:
                part = max(part, size_of(memory, s))
            for device in p.devices:
                used[device] = used.get(device, 0) + part
        return {device: MILLI - part for device, part in used.items()}

    def free_devices(self, node):
        used = self.used(node)
        return [d.index for d in node.devices if d.healthy and d.index not in used]

    def partial(self, node):
        healthy = {d.index for d in node.devices if d.healthy}
        left = {d: math.floor(m) for d, m in self.exact(node).items()}
        return {d: m for d, m in left.items() if d in healthy and m > 0}

    def remainders(self, node):
        """Return what partly used devices have left beyond whole thousandths, where not zero."""
        healthy = {d.index for d in node.devices if d.healthy}
        memory = min((d.memory_mib for d in node.devices), default=0)
        found = {d: (m % 1) * memory for d, m in self.exact(node).items() if d in healthy and m > 0}
        return {d: m for d, m in found.items() if m}

    def free(self, node):
        taken = sum(other.gpus for other in self.others.values() if other.node == node.name)
        return max(len(self.free_devices(node)) - taken - node.unnamed_unhealthy, 0)

    def idle(self, node):
        """Whether nobody holds a GPU of the node."""
        held = any(d.index in self.used(node) for d in node.devices)
        return not held and not any(
            other.gpus for other in self.others.values() if other.node == node.name
        )

    def left(self, node):
        """Return the CPU, memory, pods, extended resources and NICs that are left."""
        cpu, memory, pods = node.cpu_milli, node.memory_mib, node.max_pods
        extended, nics = dict(node.extended), {n.index for n in node.nics if n.healthy}
        for p, s in self.on(node):
            cpu, memory, pods = cpu - s.cpu_milli, memory - s.memory_mib, pods - 1
            asked = dict(s.extended)
            if s.nics:
                nics -= set(p.nics)
                rails = [n.resource for n in node.nics if n.index in p.nics and n.resource]
                for name in set(rails):
                    asked[name] = max(asked.get(name, 0), rails.count(name))
            for name, amount in asked.items():
                extended[name] = extended.get(name, 0) - amount
        for other in self.others.values():
            if other.node == node.name:
                cpu, memory, pods = cpu - other.cpu_milli, memory - other.memory_mib, pods - 1
                for name, amount in other.extended.items():
                    extended[name] = extended.get(name, 0) - amount
        return cpu, memory, pods, extended, nics

    def free_nics(self, node):
        """Return NICs for a pod on its own: the first free ones of each resource."""
        *_, extended, nics = self.left(node)
        found = []
        for nic in sorted((n for n in node.nics if n.index in nics), key=lambda n: n.index):
            same = sum(n.resource == nic.resource for n in node.nics if n.index in found)
            if not nic.resource or same < extended.get(nic.resource, 0):
                found.append(nic.index)
        return found

    def room(self, node, s, milli):
        """Return how many pods of the set fit on the node as it is."""
        cpu, memory, pods, extended, _ = self.left(node)
        limits = [pods]
        if milli < MILLI:
            size = size_of(min(d.memory_mib for d in node.devices), s)
            partial, exact = self.partial(node), self.exact(node)
            limits.append(
                sum(exact[d] // size for d in partial) + self.free(node) * (MILLI // size)
            )
        elif s.gpus:
            limits.append(self.free(node) // s.gpus)
        if s.cpu_milli:
            limits.append(cpu // s.cpu_milli)
        if s.memory_mib:
            limits.append(memory // s.memory_mib)
        if s.nics:
            limits.append(len(self.free_nics(node)) // s.nics)
        limits += [extended.get(k, 0) // v for k, v in s.extended.items() if v]
        return max(min(limits), 0) if node.schedulable else 0

    def outlook(self, node):
        """Return the outlook of the pods that held their places before this job was considered."""
        keys = [k for k, (p, _) in self.pods.items() if p.node == node.name]
        jobs = [key[0] for key in keys if isinstance(key[2], int)]
        return outlook([self.times.get(job, (self.now, None)) for job in jobs], self.now)

    # --- topology ---------------------------------------------------------------------------
    def paths(self):
        paths = {name: ["=" + name] for name in sorted(self.nodes)}
        for at in range(len(self.levels)):
            said = [(name, self.nodes[name].topology[at : at + 1]) for name in paths]
            said = [(name, group) for name, (group,) in said if group]
            if not at:
                paths.update((name, [group]) for name, group in said)
                continue
            parent = {paths[name][-1]: group for name, group in reversed(said)}
            for path in paths.values():
                path.append(parent.get(path[-1], path[-1]))
        return paths

    def ordered(self):
        paths = self.paths()
        return sorted(
            self.nodes.values(), key=lambda n: (paths[n.name][::-1], n.hyper_node, n.name)
        )

    def group(self, node, level):
        if level == "hyper-node":
            return node.hyper_node
        return self.paths()[node.name][self.levels.index(level)]

    def small_gpus(self, leaf, model):
        """Return the GPUs of a model (rounded up) that pods smaller than a node hold in a leaf."""
        milli = 0
        for node in self.nodes.values():
            if self.group(node, self.levels[0]) == leaf and node.gpu_model == model:
                for p, _ in self.on(node):
                    if p.milli * len(p.devices) < len(node.devices) * MILLI:
                        milli += p.milli * len(p.devices)
        return -(-milli // MILLI)
