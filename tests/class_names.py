"""`python -m tests.class_names`: list class names that occur in several files of the product.

A reader who looks for a class should find exactly one. The list leaves out names that others chose:
Django's, and those of the Kubernetes API, which the door and the embedded cluster each define
for themselves so that one checks the other.
"""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("kant", "metrics", "scheduling", "tenants", "webhooks")
DJANGOS = frozenset({"Command", "Meta"})
KUBERNETES = frozenset({"scheduling/simcluster/objects/shapes.py"})


def twice() -> dict[str, list[str]]:
    """Return {class name: files that define it} for names with more than one file."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for part in PRODUCT:
        for path in (ROOT / part).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if "migrations" in path.parts or name in KUBERNETES:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and node.name not in DJANGOS:
                    found[node.name].add(name)
    return {name: sorted(files) for name, files in sorted(found.items()) if len(files) > 1}


if __name__ == "__main__":
    for name, files in twice().items():
        print(name, *files)
