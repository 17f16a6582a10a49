"""What the nodes of each GPU model could hold if they were empty; `never` is based on it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from scheduling.engine.cluster.constraints import lasting
from scheduling.engine.types import BEYOND, MILLI, NO_GPUS, Node, PodSetSpec

# What a node has besides GPUs: milli-CPU, MiB of memory, NICs, extended resources.
_Beside = tuple[int, int, int, tuple[tuple[str, int], ...]]


class Pools:
    """Sizes of the nodes of each GPU model, updated by deltas.

    `version` grows when sizes change, or which pods a node admits.
    """

    def __init__(self) -> None:
        self.version = 0
        self._models: tuple[str, ...] = ()
        self._models_at = -1
        self.model_of: dict[str, str] = {}
        self._size_of: dict[str, tuple[str, int, int, _Beside]] = {}
        self._admits: dict[str, tuple[object, ...]] = {}  # by node: facts that decide admission
        # Names of a node's groups: at each topology level, narrowest first, then its hyper-node.
        self.groups_of: dict[str, tuple[str, ...]] = {}
        self._in_group: dict[tuple[str, int], Counter[str]] = {}
        self._sizes: dict[str, Counter[tuple[int, int]]] = {}  # (GPUs, MiB of the smallest GPU)
        self._beside: dict[str, Counter[_Beside]] = {}
        self._without_gpus: dict[str, _Beside] = {}  # by node

    def copy(self) -> "Pools":
        """Return an independent copy."""
        twin = Pools()
        twin.version, twin._models, twin._models_at = self.version, self._models, self._models_at
        twin.model_of, twin._size_of = self.model_of.copy(), self._size_of.copy()
        twin._admits, twin.groups_of = self._admits.copy(), self.groups_of.copy()
        twin._in_group = {key: counts.copy() for key, counts in self._in_group.items()}
        twin._sizes = {model: counts.copy() for model, counts in self._sizes.items()}
        twin._beside = {model: counts.copy() for model, counts in self._beside.items()}
        twin._without_gpus = self._without_gpus.copy()
        return twin

    def upsert(self, node: Node) -> None:
        size = (
            node.gpu_model,
            len(node.devices),
            node.gpu_memory_mib,
            _beside(node),
        )
        groups = (*node.topology, node.hyper_node)
        admits = (
            *(node.labels, lasting(node.taints), node.max_pods),
            *(node.gives_shares, node.gpu_parts),
        )
        same = self._size_of.get(node.name) == size and self.groups_of[node.name] == groups
        if same and self._admits[node.name] == admits:
            return
        self.remove(node.name)
        self._admits[node.name] = admits
        self.model_of[node.name] = node.gpu_model
        self._size_of[node.name] = size
        self.groups_of[node.name] = groups
        for at, group in enumerate(groups):
            if group:
                self._in_group.setdefault((node.gpu_model, at), Counter())[group] += size[1]
        if node.devices:
            self._sizes.setdefault(node.gpu_model, Counter())[size[1:3]] += 1
            self._beside.setdefault(node.gpu_model, Counter())[size[3]] += 1
        elif node.without_gpus:
            self._without_gpus[node.name] = size[3]
        self.version += 1

    def remove(self, name: str) -> None:
        """Forget a node, but keep its `model_of`: bookings there still count against the model."""
        size = self._size_of.pop(name, None)
        if size is None:
            return
        del self._admits[name]
        self._without_gpus.pop(name, None)
        model, gpus, memory, beside = size
        for at, group in enumerate(self.groups_of.pop(name)):
            if group:
                self._in_group[model, at][group] -= gpus
        if gpus:
            _take_out(self._sizes, model, (gpus, memory))
            _take_out(self._beside, model, beside)
        self.version += 1

    def models(self) -> tuple[str, ...]:
        """Return the GPU models of the cluster, sorted, without GPUs of unknown model."""
        if self._models_at != self.version:
            known = tuple(sorted(model for model in self._sizes if model != NO_GPUS))
            self._models_at, self._models = self.version, known
        return self._models

    def without_gpus(self) -> tuple[int, int, int]:
        """Return totals of the nodes without GPUs: their number, milli-CPU, MiB of memory."""
        beside = self._without_gpus.values()
        return len(beside), sum(b[0] for b in beside), sum(b[1] for b in beside)

    def capacity(self, model: str) -> int:
        """Return the number of GPUs installed."""
        return sum(gpus * n for (gpus, _), n in self._sizes.get(model, {}).items())

    def largest_node(self, model: str) -> int:
        """Return the number of GPUs of the largest node."""
        return max((gpus for gpus, _ in self._sizes.get(model, ())), default=0)

    def largest_group(self, model: str, at: int) -> int:
        """Return the number of GPUs of the largest group at level number `at`."""
        return max(self._in_group.get((model, at), Counter()).values(), default=0)

    def most_beside(self, model: str) -> Mapping[str, int]:
        """Return the most that any node has of each resource besides GPUs.

        Keys are names of fields of a pod set, or of extended resources.
        """
        most: dict[str, int] = {}
        for cpu, memory, nics, extended in self._beside.get(model, ()):
            amounts = {"cpu_milli": cpu, "memory_mib": memory, "nics": nics, **dict(extended)}
            most.update({name: max(n, most.get(name, 0)) for name, n in amounts.items()})
        return most

    def milli_per_pod(self, s: PodSetSpec, model: str) -> int:
        """Return the GPU-milli that quota counts for one pod, rounded down.

        A share by memory counts as on the smallest GPU that can hold it; 0 if none can.
        """
        return self.exactly_per_pod(s, model) // BEYOND

    def exactly_per_pod(self, s: PodSetSpec, model: str) -> int:
        """Return what quota counts for one pod, in billionths of a GPU-milli, rounded down.

        A share by memory counts as on the smallest GPU that can hold it, so that placement never
        takes more than quota has allowed; 0 if none can.
        """
        if not s.gpu_memory_mib:
            return s.milli_per_pod * BEYOND
        fitting = [m for _, m in self._sizes.get(model, ()) if m >= s.gpu_memory_mib]
        if not fitting:
            return 0
        return max(s.gpu_memory_mib * MILLI * BEYOND // min(fitting), BEYOND)

    def least_per_pod(self, s: PodSetSpec, model: str) -> int:
        """Return the GPU-milli that must at least be free for one pod; 0 if no GPU can hold it.

        A share by memory counts as on the largest GPU, rounded down. `milli_per_pod` always
        suffices, but less may do.
        """
        if not s.gpu_memory_mib:
            return s.milli_per_pod
        largest = max((m for _, m in self._sizes.get(model, ())), default=0)
        if largest < s.gpu_memory_mib:
            return 0
        return max(s.gpu_memory_mib * MILLI // largest, 1)

    def unlike(self, model: str) -> bool:
        """Whether GPUs of the model differ in memory, so that shares by memory differ, too."""
        sizes = self._sizes.get(model, ())
        return len(sizes) > 1 and len({memory for _, memory in sizes}) > 1

    def pods_at_most(self, s: PodSetSpec, model: str) -> int:
        """Return how many pods of the set fit the empty pool, by GPUs alone."""
        sizes = self._sizes.get(model, Counter())
        if s.gpu_memory_mib:
            return sum(
                gpus * min(memory // s.gpu_memory_mib, MILLI) * n
                for (gpus, memory), n in sizes.items()
            )
        if s.gpu_milli < MILLI:
            return sum(gpus * (MILLI // s.gpu_milli) * n for (gpus, _), n in sizes.items())
        return sum(gpus // s.gpus * n for (gpus, _), n in sizes.items())


def _beside(node: Node) -> _Beside:
    extended = tuple(sorted(node.extended.items())) if node.extended else ()
    return node.cpu_milli, node.memory_mib, len(node.nics), extended


def _take_out(counted: dict[str, Counter[Any]], model: str, key: object) -> None:
    counted[model][key] -= 1
    if not counted[model][key]:
        del counted[model][key]
    if not counted[model]:
        del counted[model]
