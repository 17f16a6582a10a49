"""Write the flags of `kant submit` as a module that needs only Python's standard library.

`python -m scheduling.job_fields.flags > kant/client/job_flags.py` generates it again.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from scheduling.job_fields.definition import JobDocument, PodSetDocument
from scheduling.job_fields.parts import Field, Flag, fields_of, plain

_HEAD = '''"""The flags of `kant submit` that are fields of a job. Generated; do not edit:
python -m scheduling.job_fields.flags > kant/client/job_flags.py"""

# fmt: off
# ruff: noqa: E501
from typing import NamedTuple


class CliFlag(NamedTuple):
    """One flag. `names`: separated by spaces. `reads`: how its text is parsed
    (`kant.client.submission`). `again`: it may be repeated. `of_pods`: it is about pods. `changes`:
    `kant change` accepts it while the job waits. `or_none`: `kant change` may remove the value."""

    field: str
    names: str
    metavar: str
    reads: str
    says: str
    again: bool = False
    of_pods: bool = False
    changes: bool = False
    or_none: bool = False


FLAGS = (
'''


def module() -> str:
    """Return the text of the module."""
    return _HEAD + "".join(_lines()) + ")\n"


def _lines() -> Iterator[str]:
    for struct in (JobDocument, PodSetDocument):
        for field in fields_of(struct).values():
            if field.flag is not None:
                yield _line(field, field.flag, of_pods=struct is PodSetDocument)


def _line(field: Field, flag: Flag, *, of_pods: bool) -> str:
    # If the job has no pod sets, their number of pods is given as a field of the job.
    name = "replicas" if of_pods and field.name == "count" else field.name
    reads = flag.reads or _reads(plain(field.type))
    marks: dict[str, Any] = {
        "again": flag.again or reads in ("pair", "secret_key", "device_claim"),
        "of_pods": of_pods,
        "changes": field.change is not None,
        "or_none": field.change is not None and field.optional,
    }
    said = "".join(f", {mark}=True" for mark, is_so in marks.items() if is_so)
    return (
        f'    CliFlag("{name}", "{flag.names}", "{flag.metavar}", "{reads}"{said},\n'
        f'         says="{flag.says}"),\n'
    )


def _reads(of: inspect.Type) -> str:
    match of:
        case inspect.IntType():
            return "number"
        case inspect.DictType():
            return "pair"
        case _:
            return "text"


if __name__ == "__main__":
    print(module(), end="")
