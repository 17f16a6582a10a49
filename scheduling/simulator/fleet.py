"""Fleets: the nodes of a cluster, from an inventory or from a list of machines.

Pure: text or plain mappings in, `FleetNode` values out. The embedded cluster makes Kubernetes nodes
of them, a simulation engine nodes. scheduling/simcluster/README.md documents the format of
inventories.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduling.engine.cluster.facts import MAX_GPUS
from scheduling.engine.native import copied_by_fields
from scheduling.engine.types import PART_OF_GPU
from scheduling.simulator.rows import filled_rows

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAX_NODES = 100_000
MAX_CPU_MILLI, MAX_MEMORY_MIB, MAX_EXTENDED = 1 << 24, 1 << 30, 1 << 30  # of one node


class FleetError(ValueError):
    """An inventory that cannot be used; the message names the field and what it must be."""


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One machine.

    `gpu_memory_mib` is per GPU. Network groups are unique names or "". `extended`: amounts of
    extended resources other than GPUs.
    """

    name: str
    pool: str
    gpu_model: str = ""
    gpus: int = 0
    gpu_memory_mib: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    max_pods: int = 110
    nics: int = 0
    extended: Mapping[str, int] = field(default_factory=dict, hash=False)
    link_model: str = ""
    leaf: str = ""
    spine: str = ""
    superspine: str = ""
    hyper_node: str = ""
    zone: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    taints: tuple[tuple[str, str, str], ...] = ()

    @property
    def gives_shares(self) -> bool:
        """Whether pods can get a part of one of its GPUs; not if these are parts already."""
        return not PART_OF_GPU.search(self.gpu_model)


@dataclass(frozen=True, slots=True)
class Fleet:
    """`name` identifies the fleet; the nodes are in order."""

    name: str
    nodes: tuple[FleetNode, ...]

    @property
    def gpus(self) -> int:
        return sum(n.gpus for n in self.nodes)


copied_by_fields(FleetNode, Fleet)


# --- inventories ------------------------------------------------------------------------------
def parse_inventory(document: object) -> Fleet:
    """Return the fleet that an inventory describes.

    Args: document: what a YAML or JSON reader returns for an inventory file.

    Raises: FleetError: a field is missing, unknown or out of range.
    """
    top = _Fields(document, "inventory")
    name = top.text("name")
    superspine = top.text("superspine", "superspine-1")
    pools = top.items("pools")
    top.finish()
    nodes: list[FleetNode] = []
    seen: set[str] = set()
    network = _Network(superspine)
    for at, pool in enumerate(pools):
        where = f"pools[{at}]"
        fields = _Fields(pool, where)
        pool_name = fields.text("name")
        if pool_name in seen:
            raise FleetError(f"{where}.name: {pool_name!r} is used by another pool; rename one")
        seen.add(pool_name)
        nodes += _expand_pool(pool_name, fields, network)
        if len(nodes) > MAX_NODES:
            raise FleetError(f"{where}.count: a fleet has at most {MAX_NODES} nodes")
    if not nodes:
        raise FleetError("pools: a fleet needs at least one pool with nodes")
    return Fleet(name, tuple(nodes))


class _Network:
    """Gives out leaf and spine numbers across the pools of a fleet."""

    def __init__(self, superspine: str) -> None:
        self.superspine = superspine
        self._leaves = 0
        self._spines = 0

    def groups(self, count: int, per_leaf: int, leaves_per_spine: int) -> Iterator[tuple[str, str]]:
        """Yield (leaf, spine) of each of `count` nodes; a pool starts on a new leaf and spine."""
        for i in range(count):
            if i % per_leaf == 0:
                self._leaves += 1
                if i % (per_leaf * leaves_per_spine) == 0:
                    self._spines += 1
            yield f"leaf-{self._leaves:04d}", f"spine-{self._spines:02d}"


def _expand_pool(name: str, fields: "_Fields", network: _Network) -> Iterator[FleetNode]:
    count = fields.integer("count", 1, MAX_NODES)
    model = fields.text("gpu_model", "")
    gpus = fields.integer("gpus", 0, MAX_GPUS, 0)
    if bool(model) != bool(gpus):
        raise FleetError(f"{fields.where}: gpu_model and gpus must be given together")
    common: dict[str, Any] = {
        "gpu_memory_mib": fields.integer("gpu_memory_mib", 0, 1 << 24, 0),
        "cpu_milli": fields.integer("cpu_milli", 1, MAX_CPU_MILLI),
        "memory_mib": fields.integer("memory_mib", 1, MAX_MEMORY_MIB),
        "max_pods": fields.integer("max_pods", 1, 10_000, 110),
        "nics": fields.integer("nics", 0, 64, 0),
        "extended": fields.amounts("extended"),
        "link_model": fields.text("link_model", ""),
        "zone": fields.choice("zone", ("", "inference"), ""),
        "labels": fields.labels("labels"),
        "taints": _taints(fields),
    }
    per_leaf = fields.integer("nodes_per_leaf", 1, MAX_NODES, 8)
    per_spine = fields.integer("leaves_per_spine", 1, MAX_NODES, 32)
    per_hyper_node = fields.integer("nodes_per_hyper_node", 0, MAX_NODES, 0)
    fields.finish()
    for i, (leaf, spine) in enumerate(network.groups(count, per_leaf, per_spine)):
        yield FleetNode(
            name=f"{name}-{i:05d}" if count > 9999 else f"{name}-{i:04d}",
            pool=name,
            gpu_model=model,
            gpus=gpus,
            leaf=leaf,
            spine=spine,
            superspine=network.superspine,
            hyper_node=f"{name}-domain-{i // per_hyper_node:03d}" if per_hyper_node else "",
            **common,
        )


def _taints(fields: "_Fields") -> tuple[tuple[str, str, str], ...]:
    out = []
    for at, taint in enumerate(fields.items("taints", ())):
        one = _Fields(taint, f"{fields.where}.taints[{at}]")
        out.append((one.text("key"), one.text("value", ""), one.choice("effect", EFFECTS)))
        one.finish()
    return tuple(out)


_MISSING: Any = object()


class _Fields:
    """Reads the fields of one mapping and names the field in every error."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise FleetError(f"{where}: must be a mapping of fields")
        self.where = where
        self._value = dict(value)

    def _take(self, field_name: str, default: Any) -> Any:
        value = self._value.pop(field_name, default)
        if value is _MISSING:
            raise FleetError(f"{self.where}.{field_name}: is required")
        return value

    def text(self, field_name: str, default: Any = _MISSING) -> str:
        value = self._take(field_name, default)
        if not isinstance(value, str) or (default is _MISSING and not value):
            raise FleetError(f"{self.where}.{field_name}: must be a text, not {value!r}")
        return value

    def choice(self, field_name: str, allowed: tuple[str, ...], default: Any = _MISSING) -> str:
        value = self.text(field_name, default)
        if value not in allowed:
            names = ", ".join(repr(a) for a in allowed)
            raise FleetError(f"{self.where}.{field_name}: must be one of {names}, not {value!r}")
        return value

    def integer(self, field_name: str, least: int, most: int, default: Any = _MISSING) -> int:
        value = self._take(field_name, default)
        if type(value) is not int or not least <= value <= most:
            raise FleetError(
                f"{self.where}.{field_name}: must be a whole number from {least} to {most}, "
                f"not {value!r}"
            )
        return value

    def items(self, field_name: str, default: Any = _MISSING) -> list[object]:
        value = self._take(field_name, default)
        if not isinstance(value, list | tuple):
            raise FleetError(f"{self.where}.{field_name}: must be a list, not {value!r}")
        return list(value)

    def labels(self, field_name: str) -> dict[str, str]:
        value = self._take(field_name, {})
        good = isinstance(value, Mapping) and all(
            isinstance(k, str) and isinstance(v, str) for k, v in value.items()
        )
        if not good:
            raise FleetError(f"{self.where}.{field_name}: must map label names to texts")
        return dict(value)

    def amounts(self, field_name: str) -> dict[str, int]:
        value = self._take(field_name, {})
        good = isinstance(value, Mapping) and all(
            isinstance(k, str) and "/" in k and type(v) is int and 0 <= v <= MAX_EXTENDED
            for k, v in value.items()
        )
        if not good:
            raise FleetError(
                f"{self.where}.{field_name}: must map names such as vendor.com/card to whole "
                f"numbers from 0 to {MAX_EXTENDED}"
            )
        return dict(value)

    def finish(self) -> None:
        """Refuse fields that nobody read: a misspelt field would otherwise be ignored."""
        if self._value:
            raise FleetError(f"{self.where}.{next(iter(self._value))}: is not a known field")


# --- lists of machines ------------------------------------------------------------------------
def listed(text: str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line and cells by column of each row of a CSV; "" where a cell is missing.

    Raises: FleetError: the text is no CSV, or one of the columns is missing.
    """
    rows = filled_rows(io.StringIO(text, newline=""), FleetError)
    first, cells = next(rows, (1, []))
    header = [cell.strip() for cell in cells]
    missing = [c for c in columns if c not in header]
    if missing:
        raise FleetError(
            f"line {first}: the columns {', '.join(columns)} are needed, {missing[0]!r} is missing"
        )
    for line, cells in rows:
        given = dict(zip(header, map(str.strip, cells), strict=False))
        yield line, {**dict.fromkeys(columns, ""), **given}


OPENB_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
# Machines per leaf; the list says nothing of the network.
OPENB_PER_LEAF = 32


def parse_openb(text: str) -> Fleet:
    """Return the fleet of an openb node list (alibaba/clusterdata, cluster-trace-gpu-v2023).

    Raises: FleetError: a column is missing or a value is not a number; names the line.
    """
    rows = [_openb_row(row, line) for line, row in listed(text, OPENB_COLUMNS)]
    if not rows:
        raise FleetError("line 2: the list has no machines")
    rows.sort(key=lambda r: (r.gpu_model, r.name))
    groups = _Network("superspine-1").groups(len(rows), OPENB_PER_LEAF, 16)
    nodes = tuple(
        FleetNode(
            name=r.name,
            pool=r.pool,
            gpu_model=r.gpu_model,
            gpus=r.gpus,
            cpu_milli=r.cpu_milli,
            memory_mib=r.memory_mib,
            leaf=leaf,
            spine=spine,
            superspine="superspine-1",
        )
        for r, (leaf, spine) in zip(rows, groups, strict=True)
    )
    names = {n.name for n in nodes}
    if len(names) != len(nodes):
        raise FleetError("sn: two machines have the same name")
    return Fleet("openb", tuple(sorted(nodes, key=lambda n: n.name)))


def _openb_row(row: Mapping[str, str], line: int) -> FleetNode:
    def whole(column: str, most: int) -> int:
        text = row[column] or "0"
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) > most:
            raise FleetError(
                f"line {line}, {column}: must be a whole number from 0 to {most}, not {text!r}"
            )
        return int(text)

    if not row["sn"]:
        raise FleetError(f"line {line}, sn: a machine needs a name")
    gpus, model = whole("gpu", MAX_GPUS), row["model"]
    if bool(gpus) != bool(model):
        raise FleetError(f"line {line}, model: a machine with GPUs needs a model, one without none")
    return FleetNode(
        name=row["sn"],
        pool=model or "cpu",
        gpu_model=model,
        gpus=gpus,
        cpu_milli=whole("cpu_milli", MAX_CPU_MILLI),
        memory_mib=whole("memory_mib", MAX_MEMORY_MIB),
    )
