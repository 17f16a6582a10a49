"""What others' names for network levels mean: node labels and tiers. Pure."""

from collections.abc import Mapping

from msgspec import Struct

from scheduling.engine.placement.request import HYPER_NODE
from scheduling.engine.types import DEFAULT_LEVELS
from scheduling.kube.seam import AskedLevel, AskedTier
from scheduling.kube.translate.labels import TABLE, LabelSource, label_table, reads_as_it_is
from scheduling.kube.workloads.contradiction import Contradicts

# Nearest first.
LEVELS = (HYPER_NODE, *DEFAULT_LEVELS)
LEAF = 1  # index of the leaf in LEVELS
HOSTNAME = "kubernetes.io/hostname"


class LevelNames(Struct, frozen=True):
    """Names of network levels.

    - `of_label`: levels by label.
    - `left_out`: labels that an object lists as levels but Kant has no level for, each with the
      next wider level, "" = none.
    - `by`: the object that defines the levels, "" = Kant's own table and the operator.
    - `of_tier`: levels of HyperNodes, the lowest tier first, "" = no level is left for it.
    - `tier_names`: tiers by name.
    """

    of_label: Mapping[str, str]
    left_out: Mapping[str, str] = {}
    by: str = ""
    of_tier: Mapping[int, str] = {}
    tier_names: Mapping[str, int] = {}

    def meant(self, asked: AskedLevel | AskedTier) -> str:
        """Return the level that is meant. Raises Contradicts for an unknown one."""
        if isinstance(asked, AskedTier):
            return self._of_tier(asked)
        label = asked.label
        if label in self.of_label:
            return self.of_label[label]
        if not asked.required and label == HOSTNAME:
            return DEFAULT_LEVELS[0]  # a wish for one node implies one for a leaf
        if not asked.required and label in self.left_out:
            return self.left_out[label]
        if label == HOSTNAME:
            raise Contradicts(
                asked.field,
                f"{HOSTNAME} is no network level: Kant does not place all pods of a gang on one "
                "node. Name a wider level.",
            )
        raise Contradicts(asked.field, f"Kant knows no network level by the label {label}; {self}")

    def _of_tier(self, asked: AskedTier) -> str:
        tier = self.tier_names.get(asked.name) if asked.name else asked.tier
        if tier is None:
            names = ", ".join(sorted(self.tier_names)) or "none"
            raise Contradicts(
                asked.field, f"No HyperNode has a tier of the name {asked.name}; names are {names}."
            )
        if not self.of_tier:
            by = (
                f"{self.by} says which levels there are" if self.by else "there are none that count"
            )
            raise Contradicts(
                asked.field,
                f"Kant knows no tiers of HyperNodes ({by}). Say {', '.join(LEVELS)} in the "
                "annotation kant.io/required-level or kant.io/preferred-level instead.",
            )
        within = [each for each in self.of_tier if each <= tier]
        level = self.of_tier[within[-1]] if within else ""
        if level or not asked.required:
            return level or (LEVELS[0] if not within else "")
        tiers = ", ".join(f"{each} ({of})" for each, of in self.of_tier.items() if of)
        raise Contradicts(asked.field, f"It is {tier}; tiers that Kant has levels for are {tiers}.")

    def __str__(self) -> str:
        known = ", ".join(sorted(self.of_label)) or "none"
        by = f" ({self.by} says which there are)" if self.by else ""
        return (
            f"name one of {known}{by}, or say {', '.join(LEVELS)} in the annotation "
            "kant.io/required-level or kant.io/preferred-level instead."
        )


def names_of_table(table: Mapping[str, tuple[LabelSource, ...]]) -> dict[str, str]:
    """Return the level that each label names.

    If a label could name several, take one whose groups are the label's own values, then the
    nearest to the nodes.
    """
    rows = [(level, source) for level in LEVELS for source in table[fact_of(level)]]
    as_is = {s.label: level for level, s in reversed(rows) if reads_as_it_is(s)}
    return {s.label: level for level, s in reversed(rows)} | as_is


def fact_of(level: str) -> str:
    """Return the level's row in the label table."""
    return level.replace("-", "_")


def default_names(label_map: Mapping[str, str | list[str]]) -> LevelNames:
    """Return the names in a cluster without such objects. Raises WrongRow."""
    return LevelNames(names_of_table(label_table(label_map)))


DEFAULT_NAMES = LevelNames(names_of_table(TABLE))
