"""The tree of the scale-out network, checked while nodes come and go.

Groups are identified by their full path (superspine/spine/leaf), because many label families only
number the groups inside their parent. If a family's values are unique, each must have one parent; a
node that contradicts the others keeps its own path and gets a problem.
"""

from collections import Counter
from collections.abc import Sequence

from scheduling.engine.types import DEFAULT_LEVELS
from scheduling.kube.seam import Sourced
from scheduling.kube.translate.labels import UNIQUE

Claim = tuple[str, str]  # (level, value)


class TopologyTree:
    """The parents that nodes claim for each group."""

    def __init__(self) -> None:
        self._parents: dict[Claim, Counter[str]] = {}
        self._claims: dict[str, tuple[tuple[Claim, str], ...]] = {}

    def place(
        self, node: str, values: Sequence[Sourced | None]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the keys of the node's groups, nearest first ("" = unknown), and contradictions.

        `values`: one per level of DEFAULT_LEVELS, nearest first.
        """
        self.forget(node)
        keys = []
        for at, own in enumerate(values):
            path = [str(above.value) for above in reversed(values[at:]) if above is not None]
            keys.append("/".join(path) if own is not None else "")
        claims = tuple(
            ((DEFAULT_LEVELS[at], str(own.value)), keys[at + 1])
            for at, own in enumerate(values[:-1])
            if own is not None and own.source in UNIQUE and keys[at + 1]
        )
        problems = tuple(
            f"{level} {value!r} is under {usual!r} on other nodes, but under {parent!r} here"
            for (level, value), parent in claims
            if (usual := self._usual(level, value, parent)) != parent
        )
        for claim, parent in claims:
            self._parents.setdefault(claim, Counter())[parent] += 1
        if claims:
            self._claims[node] = claims
        return tuple(keys), problems

    def forget(self, node: str) -> None:
        """Forget the node's claims: it is gone, or its labels changed."""
        for claim, parent in self._claims.pop(node, ()):
            parents = self._parents[claim]
            parents[parent] -= 1
            if not parents[parent]:
                del parents[parent]
            if not parents:
                del self._parents[claim]

    def _usual(self, level: str, value: str, default: str) -> str:
        parents = self._parents.get((level, value))
        return parents.most_common(1)[0][0] if parents else default
