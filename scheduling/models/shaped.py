"""JSON columns of a known shape: a value of another shape is reported, and nothing uses it.

Kant checks all that it writes, so such a value comes from somebody who changed the database by hand
(docs/decisions/0039). One such row must not keep a list of others from being shown.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any, NotRequired, TypedDict

import msgspec
from django.db import models
from django.db.models.fields.json import KeyTransform

Texts = list[str]
TextMap = dict[str, str]


class Expression(TypedDict):
    key: str
    operator: str
    values: NotRequired[list[str] | None]


class Term(TypedDict, total=False):
    match_expressions: list[Expression] | None
    match_fields: list[Expression] | None


class Volume(TypedDict):
    name: str
    mount_path: str
    read_only: bool


class SecretKey(TypedDict):
    secret: str
    key: str


class DeviceClaim(TypedDict, total=False):
    """A template, or a device class with its count and selectors."""

    template: str
    device_class: str
    count: int
    selectors: Texts


class Security(TypedDict, total=False):
    restricted: bool
    run_as_user: int
    run_as_group: int
    run_as_non_root: bool
    fs_group: int
    supplemental_groups: list[int]
    read_only_root_filesystem: bool
    allow_privilege_escalation: bool
    privileged: bool
    add_capabilities: Texts
    drop_capabilities: Texts
    seccomp: str


class ExtraContainer(TypedDict):
    name: str
    image: str
    command: NotRequired[Texts]
    cpu_milli: NotRequired[int]
    memory_mib: NotRequired[int]


class Probe(TypedDict, total=False):
    command: Texts
    port: int
    http_path: str
    delay_s: int
    period_s: int
    timeout_s: int
    failures: int


class OutlookOfCluster(TypedDict):
    cluster: str
    starts_now: bool
    expected_start: datetime | None
    why: str


class ChosenCluster(TypedDict):
    """The cluster chosen for a job as of `at`, why, and what was known of each cluster.

    `moves`: how often the job has moved to another cluster.
    """

    cluster: str
    summary: str
    at: datetime
    moves: int
    clusters: list[OutlookOfCluster]


class Unreadable:
    """Stands for a value of the wrong shape: reads as empty, is stored unchanged."""

    raw: Any
    why: str


class UnreadableList(list[Any], Unreadable):
    pass


class UnreadableMap(dict[str, Any], Unreadable):
    pass


class ShapedField(models.JSONField):
    """A JSON column whose values are of the type `shape`, a list or a dict."""

    def __init__(self, *args: Any, shape: Any = Any, **kwargs: Any) -> None:
        self.shape = shape
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs  # the database column is the same

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        found = super().from_db_value(value, expression, connection)
        if isinstance(expression, KeyTransform) or (found is None and self.null):
            return found
        try:
            msgspec.convert(found, self.shape)
        except msgspec.ValidationError as error:
            empty = UnreadableMap() if self.default is dict else UnreadableList()
            empty.raw, empty.why = found, str(error)
            return empty
        return found

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        raw = value.raw if isinstance(value, Unreadable) else value
        return super().get_db_prep_value(raw, connection, prepared)


def unreadable(row: models.Model) -> Iterator[tuple[str, str]]:
    """Yield (column, what is wrong with its value) for a row."""
    for name in _columns(type(row)):
        value = getattr(row, name)
        if isinstance(value, Unreadable):
            yield name, value.why


@cache
def _columns(model: type[models.Model]) -> list[str]:
    return [f.attname for f in model._meta.concrete_fields if isinstance(f, ShapedField)]
