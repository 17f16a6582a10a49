"""Keep equal labels of many pods once."""

from collections.abc import Mapping


class SharedLabels:
    """Shares label dicts: pods of one kind have equal labels.

    A dict per pod would weigh as much as all else that is remembered of the pod.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def one(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """Return the first dict kept with these labels; nobody may change it."""
        key = tuple(labels.items())
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = dict(labels)
        return found
