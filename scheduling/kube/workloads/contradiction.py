"""What an object says that cannot be."""


class Contradicts(Exception):
    """The field and what helps."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
