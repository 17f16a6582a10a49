"""Labels of many pods that say the same, kept once."""

from collections.abc import Mapping


class SharedLabels:
    """Pods of one kind have the same labels: a dict for each weighs as much as all else that is
    remembered of the pod."""

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def one(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """These, as they were kept first; nobody may change them."""
        key = tuple(labels.items())
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = dict(labels)
        return found
