"""A job as editable text: the document that REST takes, as YAML or JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import yaml
from rest_framework.exceptions import ValidationError

from scheduling.api.job_serializers import JobInput
from scheduling.text_files import InputError, NamedTwice, yaml_of
from tenants.api.base import shared
from tenants.api.problems import faults_of
from tenants.errors import FieldError, Invalid, Path
from tenants.strict_json import NotJson, TooManyValues, value_of

LANGUAGES = {"yaml": "YAML", "json": "JSON"}
# Longer than people write; a program still reads it within a second.
MOST_OF_A_TEXT = 1 << 17
NEEDED = ("name", "tenant")  # fields without a default
ONE_MAPPING = "Write one mapping of fields, such as name, tenant, gpus."


@dataclass(frozen=True, slots=True)
class TextFault:
    """What is wrong, in which line (1 = the first; None = the whole text), and in which field ("" =
    none, or all)."""

    line: int | None
    field: str
    detail: str


class WrongText(ValueError):
    """A text that is not a job document; `faults` name the lines."""

    def __init__(self, faults: Sequence[TextFault]) -> None:
        super().__init__(faults[0].detail)
        self.faults = list(faults)


def text_of(document: Mapping[str, Any], language: str) -> str:
    """Return the text that `document_in` reads as this document."""
    plain = json.loads(json_of(document))
    if language == "json":
        return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def json_of(document: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a document as JSON, with times and ids as REST takes them."""
    return json.dumps(document, indent=indent, ensure_ascii=False, default=_as_text)


def document_in(text: str, language: str, *, unfinished: bool = False) -> dict[str, Any]:
    """Parse a text into a document, with values of the types that REST takes. `unfinished`: name
    and tenant may be missing and are then "". Raises WrongText."""
    if len(text) > MOST_OF_A_TEXT:
        raise WrongText([TextFault(None, "", f"Use at most {MOST_OF_A_TEXT:,} characters.")])
    value = _json(text if language == "json" else _json_of_yaml(text))
    if not isinstance(value, dict):
        raise WrongText([TextFault(1, "", ONE_MAPPING)])
    missing = [name for name in NEEDED if unfinished and not value.get(name)]
    try:
        return {**checked({**value, **dict.fromkeys(missing, "x")}), **dict.fromkeys(missing, "")}
    except Invalid as error:
        raise WrongText(located(text, error.errors)) from None


def checked(value: Any) -> dict[str, Any]:
    """Validate a document as REST does; raise Invalid naming each field of a wrong type or size."""
    try:
        return dict(shared(JobInput).run_validation(value))
    except ValidationError as error:
        raise Invalid.fields(faults_of(error)) from None


def located(text: str, errors: Sequence[FieldError]) -> list[TextFault]:
    """Return a document's errors with their lines in the text, in line order."""
    try:
        root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        root = None  # JSON that is not valid YAML
    found = [TextFault(_line(root, e.path), e.field, e.detail) for e in errors]
    return sorted(found, key=lambda fault: fault.line or 0)


def _line(node: yaml.Node | None, path: Path) -> int | None:
    """Return the line of a field, or of the innermost existing part of its path."""
    line = None
    for part in path:
        match node:
            case yaml.MappingNode():
                inside = next((pair for pair in node.value if pair[0].value == str(part)), None)
            case yaml.SequenceNode() if isinstance(part, int) and part < len(node.value):
                inside = (node.value[part], node.value[part])
            case _:
                inside = None
        if inside is None:
            break
        line = inside[0].start_mark.line + 1
        node = inside[1]
    return line


def _json(text: str) -> Any:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise WrongText(
            [TextFault(error.lineno, "", f"This is not valid JSON: {error.msg}.")]
        ) from None
    except (RecursionError, ValueError):
        pass  # reported below, in the words of REST
    try:
        return value_of(text.encode(errors="surrogatepass"), "The text")
    except (NotJson, TooManyValues) as error:
        raise WrongText([TextFault(None, "", str(error))]) from None


def _json_of_yaml(text: str) -> str:
    try:
        return json.dumps(_plain(yaml_of(text)))
    except NamedTwice as error:
        told = TextFault(error.line, error.name, "This field appears twice. Keep one.")
        raise WrongText([told]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = error.problem or error.context or "it cannot be read"
        where = mark.line + 1 if mark else None
        raise WrongText([TextFault(where, "", f"This is not valid YAML: {said}.")]) from None
    except (yaml.YAMLError, InputError, TypeError, ValueError) as error:
        raise WrongText([TextFault(None, "", f"This is not valid YAML: {error}.")]) from None
    except RecursionError:
        raise WrongText([TextFault(None, "", "It is nested too deeply.")]) from None


def _plain(value: Any) -> Any:
    """Convert a YAML value to JSON types; raise TypeError if that is impossible."""
    match value:
        case dict():
            return {_name(key): _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case date():
            return value.isoformat()
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a {type(value).__name__} stands there, which no job has")


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the name {key!s} is no text; put it into quotes")
    return key


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as blocks, and lists indented below their names."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
