"""Labels of namespaces, by which pod rules may select them."""

from collections.abc import Mapping

from scheduling.kube.seam import NamespaceFacts, Spaces
from scheduling.kube.translate.label_selectors import selects

# The API server gives every namespace this label.
NAME = "kubernetes.io/metadata.name"


class NamespaceLabels:
    """The labels of a cluster's namespaces."""

    def __init__(self) -> None:
        self._known: dict[str, NamespaceFacts] = {}

    def seen(self, facts: NamespaceFacts) -> bool:
        """Note a namespace; return whether its labels changed."""
        before = self.of(facts.name)
        self._known[facts.name] = facts
        return before != facts.labels

    def gone(self, facts: NamespaceFacts) -> bool:
        """Forget a namespace, unless another of its name has come; return whether it was known."""
        known = self._known.get(facts.name)
        if known is None or known.uid != facts.uid:
            return False
        del self._known[facts.name]
        return True

    def of(self, name: str) -> Mapping[str, str]:
        """Return the namespace's labels; before it is seen, the label that every namespace has.

        Pods may be seen before their namespace.
        """
        known = self._known.get(name)
        return {NAME: name} if known is None else known.labels

    def are_meant(self, name: str, spaces: Spaces) -> bool:
        """Whether the namespace is one of these."""
        return name in spaces.names or selects(spaces.labels, self.of(name))
