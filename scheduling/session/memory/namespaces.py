"""What is known of namespaces: their labels, by which rules of pods may mean them."""

from collections.abc import Mapping

from scheduling.kube.seam import NamespaceFacts, Spaces
from scheduling.kube.translate.label_selectors import selects

# The API server gives it to each.
NAME = "kubernetes.io/metadata.name"


class NamespaceLabels:
    """The labels of the namespaces of a cluster."""

    def __init__(self) -> None:
        self._known: dict[str, NamespaceFacts] = {}

    def seen(self, facts: NamespaceFacts) -> bool:
        """A namespace; whether its labels are others than before."""
        before = self.of(facts.name)
        self._known[facts.name] = facts
        return before != facts.labels

    def gone(self, facts: NamespaceFacts) -> bool:
        """As `seen`, unless another incarnation has come under its name."""
        known = self._known.get(facts.name)
        if known is None or known.uid != facts.uid:
            return False
        del self._known[facts.name]
        return True

    def of(self, name: str) -> Mapping[str, str]:
        """Of one that is not known yet, as pods may be seen before it, what each has."""
        known = self._known.get(name)
        return {NAME: name} if known is None else known.labels

    def are_meant(self, name: str, spaces: Spaces) -> bool:
        """Whether that namespace is one of these."""
        return name in spaces.names or selects(spaces.labels, self.of(name))
