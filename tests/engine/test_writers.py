"""Each queue object is written in one place, so that a reader of a field finds all code that
changes it."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from scheduling.engine.queue.job import JobRecord
from scheduling.engine.queue.waiting import EquivalenceClass

ENGINE = Path(__file__).resolve().parents[2] / "scheduling" / "engine"
CHANGES = frozenset({"add", "clear", "discard", "pop", "remove", "setdefault", "update"})


def written(tree: ast.AST) -> set[tuple[str, str]]:
    """Return (variable, field) of everything that a module sets, deletes or changes in place."""
    targets: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign():
                targets += node.targets
            case ast.AugAssign() | ast.AnnAssign():
                targets.append(node.target)
            case ast.Delete():
                targets += node.targets
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in CHANGES:
                targets.append(value)
    found = set()
    while targets:
        target = targets.pop()
        match target:
            case ast.Tuple(elts=several):
                targets += several
            case ast.Subscript(value=value):
                targets.append(value)
            case ast.Attribute(value=ast.Name(id=variable), attr=field):
                found.add((variable, field))
    return found


@pytest.mark.parametrize(
    ("noun", "variables", "writers"),
    [
        (JobRecord, {"record", "victim", "twin", "kept"}, {"queue/job.py", "state.py"}),
        (EquivalenceClass, {"eq_class"}, {"queue/waiting.py"}),
    ],
)
def test_a_noun_is_written_where_it_stands(
    noun: type, variables: set[str], writers: set[str]
) -> None:
    names = {field.name for field in fields(noun)}
    mine = {(variable, name) for variable in variables for name in names}
    found = {
        path.relative_to(ENGINE).as_posix(): sorted(there)
        for path in ENGINE.rglob("*.py")
        if (there := written(ast.parse(path.read_text())) & mine)
    }
    assert "record" not in variables or "state.py" in found  # or the search found nothing
    assert {path: there for path, there in found.items() if path not in writers} == {}
