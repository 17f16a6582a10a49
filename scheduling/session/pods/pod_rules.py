"""Pod rules about other pods: which groups exist, and which pods belong to them.

The engine knows groups by name (`engine.types.PodRules`). This module knows which pods each group
selects; pods that no rule selects have no rules and cost nothing.
"""

from collections.abc import Iterable, Mapping

from scheduling.engine.types import PodRules
from scheduling.kube.seam import PodFacts, PodSays, PodsMeant
from scheduling.kube.translate.label_selectors import selects
from scheduling.session.memory.namespaces import NamespaceLabels

NOTHING = PodRules()
# Groups that no pod names any more are forgotten once there are this many.
MAX_UNUSED = 256


class PodGroups:
    """The rules of the pods that Kant places, by uid.

    `version`: differs when pods may belong to other groups than before. `spaces`: the namespaces
    that rules may select.
    """

    def __init__(self) -> None:
        self.version = 0
        self.spaces = NamespaceLabels()
        self._says: dict[str, PodSays] = {}
        self._meant: dict[str, tuple[PodsMeant, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._says)

    def seen(self, facts: PodFacts) -> bool:
        """Note a pod; return whether its rules changed."""
        says = facts.says if facts.owned and not facts.finished else None
        if says == self._says.get(facts.uid):
            return False
        if says is None:
            del self._says[facts.uid]
            return True
        self._says[facts.uid] = says
        new = {name: meant for name, meant in says.groups if name not in self._meant}
        if new:
            self._forget_unused()
            self._meant.update(new)
            self.version += 1
        return True

    def is_known(self, group: str) -> bool:
        """Whether any pod has named this group."""
        return group in self._meant

    def gone(self, uid: str) -> None:
        self._says.pop(uid, None)

    def spaces_change(self) -> None:
        """Note that the labels of a namespace changed."""
        everything = (each for meant in self._meant.values() for each in meant)
        if any(each.namespaces.labels for each in everything):
            self.version += 1

    def _forget_unused(self) -> None:
        used = {name for says in self._says.values() for name, _ in says.groups}
        if len(self._meant) > len(used) + MAX_UNUSED:
            self._meant = {name: meant for name, meant in self._meant.items() if name in used}

    def groups_of(self, namespace: str, labels: Mapping[str, str]) -> list[str]:
        """Return the groups to which a pod with these labels belongs."""
        return [
            name
            for name, meant in self._meant.items()
            if all(self._is_meant(each, namespace, labels) for each in meant)
        ]

    def rules_of(
        self, uids: Iterable[str], namespace: str, labels: Iterable[Mapping[str, str]]
    ) -> PodRules | None:
        """Return the rules of pods whose own rules are alike; None = no rules."""
        said = next((self._says[uid].rules for uid in uids if uid in self._says), NOTHING)
        groups = {group for each in labels for group in self.groups_of(namespace, each)}
        rules = said._replace(groups=tuple(sorted(groups)))
        return None if rules == NOTHING else rules

    def rules_of_other(self, facts: PodFacts) -> PodRules | None:
        """Return what rules need to know of a pod that is not Kant's: its groups and host ports."""
        ports = facts.says.rules.ports if facts.says is not None else ()
        groups = self.groups_of(facts.namespace, facts.labels) if self._meant else []
        return PodRules(tuple(sorted(groups)), ports) if groups or ports else None

    def _is_meant(self, meant: PodsMeant, namespace: str, labels: Mapping[str, str]) -> bool:
        here = self.spaces.are_meant(namespace, meant.namespaces)
        return here and selects(meant.selector, labels)
