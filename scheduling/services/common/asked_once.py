"""Answers that one request or pass asks for once, refusals included."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from tenants.errors import DomainError

T = TypeVar("T")


class AskedOnce:
    """Calls `ask` only the first time for a key; a refusal is raised again each time."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, ask: Callable[[], T]) -> T:
        if key not in self._answers:
            try:
                self._answers[key] = ask()
            except DomainError as error:
                self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, DomainError):
            raise answer
        known: T = answer
        return known
