"""Form fields that parse text into the lists and mappings of a job document."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django import forms

from scheduling.engine.cluster.affinity import NAME, OPERATORS, read_terms
from scheduling.engine.types import NodeExpression
from tenants import texts

MAX_TEXT = 65_536
OR = "or"
WHERE = " where "  # before each expression that a claim's devices must satisfy
_OPERATORS = {operator.casefold(): operator for operator in OPERATORS}
EMPTY = '""'
_WORD = re.compile(r"[^\s,]+")


class NamesField(forms.CharField):
    """Names separated by spaces or commas, at most `most`, as a list."""

    def __init__(self, *, most: int, **kwargs: Any) -> None:
        self.most = most
        super().__init__(required=False, max_length=MAX_TEXT, **kwargs)

    def clean(self, value: Any) -> list[str]:
        found = _WORD.findall(super().clean(value))
        if len(found) > self.most:
            raise forms.ValidationError(texts.no_longer_than(self.most, "names"))
        return found

    @staticmethod
    def typed(names: Sequence[str]) -> str:
        return " ".join(names)


class Lines(forms.CharField):
    """Text with one entry per line. Empty lines are ignored."""

    widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})

    def __init__(self, **kwargs: Any) -> None:
        # Not stripped, so that line numbers are those that people see.
        super().__init__(required=False, max_length=MAX_TEXT, strip=False, **kwargs)

    def lines(self, value: Any) -> Iterator[tuple[int, str]]:
        """Yield (number, text) of each non-empty line."""
        for number, line in enumerate(super().clean(value).split("\n"), 1):
            if text := line.strip():
                yield number, text


class NameLines(Lines):
    """One name per line, at most `most`, as a list."""

    def __init__(self, *, most: int, **kwargs: Any) -> None:
        self.most = most
        super().__init__(**kwargs)

    def clean(self, value: Any) -> list[str]:
        found = list(dict.fromkeys(line for _, line in self.lines(value)))
        if len(found) > self.most:
            raise forms.ValidationError(texts.no_longer_than(self.most, "names"))
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Ignore line ends and empty lines."""
        return str(initial or "").split() != str(data or "").split()


class Pairs(Lines):
    """Lines of NAME=VALUE, at most `most`, as a mapping."""

    rule = "NAME=VALUE"

    def __init__(self, *, most: int, **kwargs: Any) -> None:
        self.most = most
        super().__init__(**kwargs)

    def clean(self, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number, line in self.lines(value):
            name, equals, text = line.partition("=")
            pair = self.read(text)
            if not (name and equals and pair is not None):
                raise forms.ValidationError(f"Line {number}: write {self.rule}.")
            if name in found:
                raise forms.ValidationError(f"Line {number}: {name} is given twice. Keep one.")
            found[name] = pair
        if len(found) > self.most:
            raise forms.ValidationError(texts.no_longer_than(self.most, "lines"))
        return found

    def read(self, text: str) -> Any:
        """Parse the text after the equals sign; None if it is invalid."""
        return text

    @classmethod
    def typed(cls, pairs: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Return the text for these pairs, and the names of those that cannot be written on a
        line."""
        texts = {name: cls.write(value) for name, value in pairs.items()}
        lines = {name: f"{name}={text}" for name, text in texts.items()}
        reader = cls(most=len(pairs))
        lost = [
            name
            for name, line in lines.items()
            if not _is_line(line) or reader.read(texts[name]) != pairs[name]
        ]
        return "\n".join(line for name, line in lines.items() if name not in lost), lost

    @staticmethod
    def write(value: Any) -> str:
        """Write a value as `read` reads it."""
        return str(value)


class SecretKeys(Pairs):
    """Lines of NAME=SECRET/KEY, for `env_from_secrets` of a pod set."""

    rule = "NAME=SECRET/KEY"

    def read(self, text: str) -> dict[str, str] | None:
        secret, _, key = text.partition("/")
        return {"secret": secret, "key": key} if secret and key else None

    @staticmethod
    def write(value: Any) -> str:
        return f"{value['secret']}/{value['key']}"


class ClaimLines(Pairs):
    """Lines of NAME=CLASS:COUNT where EXPRESSION, or NAME=template/TEMPLATE, for `device_claims` of
    a pod set."""

    rule = "NAME=CLASS, NAME=CLASS:COUNT, with “where” and an expression, or NAME=template/TEMPLATE"

    def read(self, text: str) -> dict[str, Any] | None:
        if template := re.fullmatch(r"template/(\S+)", text):
            return {"template": template[1]}
        first, *selectors = text.split(WHERE)
        found = re.fullmatch(r"([^\s:/]+)(?::([0-9]{1,9}))?", first)
        if found is None:
            return None
        claim: dict[str, Any] = {"device_class": found[1]}
        claim |= {"count": int(found[2])} if found[2] else {}
        return claim | ({"selectors": selectors} if selectors else {})

    @staticmethod
    def write(value: Any) -> str:
        if "template" in value:
            return f"template/{value['template']}"
        count = f":{value['count']}" if "count" in value else ""
        return WHERE.join([f"{value['device_class']}{count}", *value.get("selectors", ())])


class NodeTerms(Lines):
    """Lines of LABEL OPERATOR VALUES, all of which must hold, for the affinity of a pod set. A line
    "or" starts an alternative; the label metadata.name is the node's name."""

    def clean(self, value: Any) -> list[dict[str, list[dict[str, Any]]]]:
        terms: list[dict[str, list[dict[str, Any]]]] = [{}]
        for number, line in self.lines(value):
            words = _WORD.findall(line)
            if words == [OR]:
                if not terms[-1]:
                    raise forms.ValidationError(f"Line {number}: give a condition before {OR}.")
                terms.append({})
            elif words:
                key, operator = words[0], _OPERATORS.get("".join(words[1:2]).casefold())
                if operator is None:
                    raise forms.ValidationError(
                        f"Line {number}: write LABEL, one of {', '.join(OPERATORS)}, and VALUES."
                    )
                part = "match_fields" if key == NAME else "match_expressions"
                values = ["" if word == EMPTY else word for word in words[2:]]
                expression = {"key": key, "operator": operator, "values": values}
                terms[-1].setdefault(part, []).append(expression)
        if len(terms) > 1 and not terms[-1]:
            raise forms.ValidationError(f"Give a condition after the last {OR}.")
        return terms if terms[0] else []

    @staticmethod
    def typed(terms: Sequence[Mapping[str, Any]]) -> str | None:
        return node_lines(terms)


def node_lines(documents: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the text that `NodeTerms` reads as these terms; None if there is none."""
    terms = read_terms(documents)
    text = f"\n{OR}\n".join("\n".join(map(_line, term)) for term in terms)
    try:
        return text if read_terms(NodeTerms().clean(text)) == terms else None
    except forms.ValidationError:
        return None


def node_line_at(documents: Sequence[Mapping[str, Any]], path: Sequence[str | int]) -> str:
    """Return the line at a path within such terms, or "Choice N" when the path leads to a whole
    term."""
    term, *rest = path
    document = documents[int(term)]
    if len(rest) < 2:
        return f"Choice {int(term) + 1}"
    part, index = str(rest[0]), int(rest[1])
    ((expression,),) = read_terms([{part: [document[part][index]]}])
    return _line(expression)


def _is_line(text: str) -> bool:
    """Return whether the text fits on a line of a text field."""
    return text == text.strip() and not {"\n", "\r"} & set(text)


def _line(expression: NodeExpression) -> str:
    """ "zone In a, b" """
    key, operator, values, _ = expression
    return f"{key} {operator} {', '.join(value or EMPTY for value in values)}".strip()
