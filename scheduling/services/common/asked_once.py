"""Answers of one request or pass that are asked for once, refusals too."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from tenants.errors import DomainError

T = TypeVar("T")


class AskedOnce:
    """Calls `ask` for a key the first time only; a refusal is raised again."""

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
