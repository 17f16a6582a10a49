"""How the GPUs of a node are connected: a matrix of link classes per node model.

A matrix is n × n; entry (i, j) is the class of the best path between GPUs i and j, in the terms of
`nvidia-smi topo -m`. A node of up to 16 GPUs names its matrix (`Node.link_model`) or declares it in
the same terms: rows separated by ";", entries by ",", "X" on the diagonal, e.g.
"X,NV2,SYS,SYS;NV2,X,SYS,SYS;SYS,SYS,X,NV2;SYS,SYS,NV2,X". Paper 3.3.5, intra-node topology.
"""

from collections.abc import Sequence
from enum import IntEnum

MAX_DEVICES = 16


class Link(IntEnum):
    """The path between two GPUs; the value is its one-way bandwidth in GB/s, rounded."""

    SYS = 8  # between NUMA nodes
    NODE = 16  # inside a NUMA node, between PCIe host bridges
    PHB = 18  # one PCIe host bridge
    PXB = 20  # several PCIe switches
    PIX = 24  # one PCIe switch
    NV1 = 25  # NVn: n bonded NVLinks, 25 GB/s each
    NV2 = 50
    NV3 = 75
    NV4 = 100
    NV6 = 150
    NV8 = 200
    NV12 = 300
    NV18 = 450


LinkMatrix = tuple[tuple[int, ...], ...]

# DGX-1 with V100, as printed by `nvidia-smi topo -m`: six NVLinks per GPU, two quads.
_HYBRID_CUBE_MESH = (
    "X,NV1,NV1,NV2,NV2,SYS,SYS,SYS;NV1,X,NV2,NV1,SYS,NV2,SYS,SYS;"
    "NV1,NV2,X,NV2,SYS,SYS,NV1,SYS;NV2,NV1,NV2,X,SYS,SYS,SYS,NV1;"
    "NV2,SYS,SYS,SYS,X,NV1,NV1,NV2;SYS,NV2,SYS,SYS,NV1,X,NV2,NV1;"
    "SYS,SYS,NV1,SYS,NV1,NV2,X,NV2;SYS,SYS,SYS,NV1,NV2,NV1,NV2,X"
)


def grouped(groups: Sequence[int], inside: Link, across: Link) -> LinkMatrix:
    """Return the matrix of GPUs with these group numbers; the diagonal is 0."""
    n = len(groups)
    return tuple(
        tuple(0 if i == j else int(inside if groups[i] == groups[j] else across) for j in range(n))
        for i in range(n)
    )


def parse_matrix(text: str) -> LinkMatrix:
    """Read a declared matrix; raise ValueError that names the wrong row and column."""
    rows = [row.split(",") for row in text.split(";")]
    n = len(rows)
    if not 1 < n <= MAX_DEVICES:
        raise ValueError(f"a link matrix has 2 to {MAX_DEVICES} rows, this one has {n}")
    matrix = [[0] * n for _ in rows]
    for i, row in enumerate(rows):
        if len(row) != n:
            raise ValueError(f"row {i} of the link matrix has {len(row)} entries instead of {n}")
        for j, raw in enumerate(row):
            word = raw.strip().upper()
            if (word == "X") != (i == j) or (i != j and word not in Link.__members__):
                known = ", ".join(Link.__members__)
                raise ValueError(
                    f"row {i}, column {j} of the link matrix is {raw.strip()!r}; "
                    f"use X on the diagonal and one of {known} elsewhere"
                )
            matrix[i][j] = 0 if i == j else int(Link[word])
    for i in range(n):
        for j in range(i):
            if matrix[i][j] != matrix[j][i]:
                raise ValueError(f"the link matrix disagrees with itself on GPUs {j} and {i}")
    return tuple(map(tuple, matrix))


LINK_MODELS: dict[str, LinkMatrix] = {
    "nvswitch-8": grouped((0,) * 8, Link.NV18, Link.NV18),
    "numa-8": grouped((0, 0, 0, 0, 1, 1, 1, 1), Link.NODE, Link.SYS),
    "pcie-4": grouped((0, 0, 1, 1), Link.PIX, Link.SYS),
    "hybrid-cube-mesh-8": parse_matrix(_HYBRID_CUBE_MESH),
}


def matrix_of(link_model: str, numa: Sequence[int]) -> LinkMatrix:
    """Return the matrix of a node whose GPU i is on NUMA node `numa[i]`.

    "" = unknown model: GPUs on one NUMA node count as better connected. Raise ValueError if the
    model is neither known nor a readable matrix, or is for another number of GPUs.
    """
    n = len(numa)
    if not link_model:
        return grouped(numa, Link.NODE, Link.SYS)
    matrix = LINK_MODELS.get(link_model)
    if matrix is None:
        if ";" not in link_model:
            known = ", ".join(LINK_MODELS)
            raise ValueError(f"unknown link model {link_model!r}; known are {known}")
        matrix = parse_matrix(link_model)
    if len(matrix) != n:
        raise ValueError(f"link model {link_model!r} is for {len(matrix)} GPUs, the node has {n}")
    return matrix
