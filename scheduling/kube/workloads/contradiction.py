"""Contradictions in what an object says."""


class Contradicts(Exception):
    """An object contradicts itself: the field and a remedy."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
