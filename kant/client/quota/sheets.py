"""Quotas as a CSV file, one row per tenant and one column per GPU type: writing and importing."""

import argparse
import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kant.client import output
from kant.client.api import Api
from kant.client.errors import USAGE, ClientError, usage

SEPARATORS = ("\t", ";", ",")  # the first that occurs in the first line is used
MOST_LENGTH = 1_000_000  # characters
CORNER = "tenant"
MOST_TOLD = 20  # faults

Quotas = dict[tuple[str, str], str]


class Cell(NamedTuple):
    """A cell of the file that is not empty; `line` and `column` count from 1."""

    line: int
    column: int
    tenant: str
    gpu_type: str
    text: str

    @property
    def place(self) -> str:
        return f"line {self.line}, column {self.column} ({self.tenant}, {self.gpu_type})"


def quotas_now(api: Api) -> Quotas:
    """Return {(tenant, GPU type): the quota as the text of a cell}."""
    return {(q["tenant"], q["gpu_type"]): _text(q) for q in api.items("quotas")}


def write(api: Api, instead: Quotas) -> None:
    """Print all visible quotas as CSV, with those of a draft `instead` of the current ones."""
    found = quotas_now(api) | instead
    types = [one["name"] for one in api.items("gpu-types")]
    rows = (
        {CORNER: tenant["name"], **{kind: found.get((tenant["name"], kind), "") for kind in types}}
        for tenant in api.items("tenants")
    )
    output.csv_of((CORNER, *types), rows)


def drafted(draft: dict[str, Any]) -> Quotas:
    """Return the cells of a draft as texts, with mode and limits."""
    return {(c["tenant"], c["gpu_type"]): _typed(c) for c in draft["cells"]}


def edits(
    api: Api, name: str, draft: dict[str, Any] | None
) -> tuple[list[dict[str, Any]], list[Cell]]:
    """Return what a file changes, as cells of a draft, and the place of each cell in the file.

    A cell with the current value removes that quota from the draft. Raises ClientError by line and
    column.
    """
    now = quotas_now(api)
    mine = drafted(draft) if draft else {}
    found: list[dict[str, Any]] = []
    places: list[Cell] = []
    for cell in read(name):
        key = cell.tenant, cell.gpu_type
        if cell.text == mine.get(key, now.get(key)):
            continue
        text: dict[str, Any] = {"typed": cell.text}
        if cell.text == now.get(key):
            text = {"guaranteed": None}
        found.append({"tenant": cell.tenant, "gpu_type": cell.gpu_type, **text})
        places.append(cell)
    return found, places


def by_place(error: ClientError, places: list[Cell]) -> ClientError:
    """Return the server's errors, with lines and columns of the file."""
    told = []
    for at, detail in error.faults:
        field, _, rest = at.partition(".")
        index = rest.partition(".")[0]
        if field == "cells" and index.isdigit() and int(index) < len(places):
            told.append(f"  {places[int(index)].place}: {detail}")
        else:
            told.append(f"  {detail}")
    if not told:
        return error
    more = [f"  and {len(told) - MOST_TOLD} more"] if len(told) > MOST_TOLD else []
    return ClientError(error.code, "Nothing was imported:", *told[:MOST_TOLD], *more)


def read(name: str) -> list[Cell]:
    """Return the cells of a file; "-" is stdin. Raises ClientError with line and column."""
    rows = list(_rows(name))
    if not rows:
        raise usage(f"{name} is empty; kant quotas -o csv writes a file to begin with.")
    heads = [head.strip() for head in rows[0][1]]
    if not any(heads[1:]):
        raise usage(f"{name}, line {rows[0][0]}: name a GPU type in each column after the first.")
    faults, found = [], dict[tuple[str, str], Cell]()
    for at, head in enumerate(heads):
        if at and head and head in heads[1:at]:
            faults.append(f"  line {rows[0][0]}, column {at + 1}: {head} appears twice.")
    for line, row in rows[1:]:
        tenant = row[0].strip()
        for at, text in enumerate((one.strip() for one in row[1:]), start=1):
            if not text:
                continue  # an empty cell changes nothing
            where = f"  line {line}, column {at + 1}"
            if not tenant:
                faults.append(f"{where}: name the tenant in the first column of the line.")
            elif at >= len(heads) or not heads[at]:
                faults.append(f"{where}: name the GPU type in the first line of the column.")
            elif (tenant, heads[at]) in found:
                other = found[tenant, heads[at]].line
                faults.append(f"{where}: {tenant} is also in line {other}.")
            else:
                found[tenant, heads[at]] = Cell(line, at + 1, tenant, heads[at], text)
    if faults:
        raise ClientError(USAGE, f"{name}: nothing was imported:", *faults[:MOST_TOLD])
    return list(found.values())


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.csv",
                        help="as kant quotas -o csv writes it; - reads stdin")  # fmt: skip


def _rows(name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines that are not empty, with their numbers."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{name} cannot be read: {error}.") from None
    text = text.removeprefix("\ufeff")
    if len(text) > MOST_LENGTH:
        raise usage(f"{name} has more than 1,000,000 characters; this is not a table of quotas.")
    first = text.split("\n", 1)[0]
    separator = next((sign for sign in SEPARATORS if sign in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            if any(one.strip() for one in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise usage(f"{name}, line {reader.line_num}: {error}.") from None


def _text(quota: dict[str, Any]) -> str:
    """Return a quota in the form of the server's CSV."""
    limits = [
        f"{word} {quota[name]:.13g}"
        for word, name in (("borrow", "borrow_limit"), ("lend", "lend_limit"))
        if quota[name] is not None
    ]
    mode = [quota["mode"]] if limits or quota["mode"] != "shared" else []
    return " ".join([f"{quota['guaranteed']:.13g}", *mode, *limits])


def _typed(cell: dict[str, Any]) -> str:
    """Return a cell of a draft: the typed text and the settings edited beside it."""
    words = cell["typed"].split()
    terms = cell["terms"]
    for name, word in (("mode", ""), ("borrow_limit", "borrow"), ("lend_limit", "lend")):
        if name not in terms or (word or terms[name]) in words:
            continue
        words += [word, terms[name] or "any"] if word else [terms[name]]
    return " ".join(words)
