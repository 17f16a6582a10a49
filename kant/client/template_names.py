"""Finds the template that a user means."""

from collections.abc import Iterator
from typing import Any

from kant.client.api import Api, while_typing
from kant.client.errors import NOT_FOUND, ClientError


def template_of(api: Api, text: str) -> dict[str, Any]:
    """Return the template with that name, TENANT/NAME or id.

    Raises ClientError if none or several match.
    """
    found = [
        one
        for one in api.items("templates")
        if text in (one["id"], one["name"], f"{one['tenant']}/{one['name']}")
    ]
    if not found:
        raise ClientError(
            NOT_FOUND, f"There is no template {text!r} that you may see. See: kant templates"
        )
    if len(found) > 1:
        lines = [f"{one['id']}  {one['tenant'] or 'of a tenant above yours'}" for one in found]
        text = f"{text!r} matches {len(found)} templates; name one by TENANT/NAME or its id:"
        raise ClientError(2, text, *lines)
    return found[0]


def named(beginning: str) -> Iterator[tuple[str, str]]:
    """Yield names of templates with this beginning, and descriptions, for shell completion."""

    def ask(api: Api) -> Iterator[tuple[str, str]]:
        for one in api.items("templates"):
            if one["name"].startswith(beginning):
                yield one["name"], one["description"]

    return while_typing(ask)
