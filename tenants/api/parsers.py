"""JSON parsers that refuse what a database or another client could not store."""

from typing import IO, Any

from rest_framework.parsers import JSONParser

from tenants.api.problems import Problem
from tenants.strict_json import NotJson, TooManyValues, value_of

REMEDY = "Send one JSON object in UTF-8."


class StrictJSONParser(JSONParser):
    """Refuses what `tenants.strict_json` refuses."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,  # noqa: ARG002
        parser_context: Any = None,  # noqa: ARG002
    ) -> Any:
        try:
            return value_of(stream.read(), "The body")
        except NotJson as error:
            raise Problem("not-json", f"{error} {REMEDY}") from None
        except TooManyValues as error:
            raise Problem("too-large", str(error)) from None


class UnlabelledJSONParser(StrictJSONParser):
    """JSON that `curl -d` sends under a form's media type: a first request should need no
    header."""

    media_type = "application/x-www-form-urlencoded"
