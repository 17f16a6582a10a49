"""The questions of `bench pages`, and the cost of an answer."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median, median_low
from typing import Any

from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.utils import timezone

from metrics import services
from metrics.benches.pages.fill import ENGINEER, MODELS, OPERATOR, TEAM
from metrics.gpu_time import totals
from metrics.gpu_time.accounting import account
from scheduling.models import Job
from tenants.models import User

REPEATS = 3
HTMX = {"HX-Request": "true"}


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request: by which user, and whether by the live part of a page. `document`: the body to
    post."""

    user: str
    path: str
    live: bool = False
    document: dict[str, Any] | None = None
    form: bool = False
    repeats: int = REPEATS


@dataclass(frozen=True, slots=True)
class Figures:
    """Costs of one answer; blocks are the 8 KiB blocks that PostgreSQL looked at, None on
    SQLite."""

    status: int
    cpu_s: float
    wall_s: float
    statements: int
    blocks: int | None
    bytes: int


JOB = {"name": "bench", "tenant": TEAM, "gpu_type": MODELS[0], "gpus": 8}
PAGES = {
    "metrics": PageRequest(OPERATOR, "/metrics"),
    "operations": PageRequest(OPERATOR, "/ops/", live=True),
    "overview": PageRequest(ENGINEER, "/", live=True),
    "quotas": PageRequest(OPERATOR, "/quotas/"),
    "quota_cell": PageRequest(OPERATOR, "/quotas/check/", live=True, form=True),
    "jobs": PageRequest(OPERATOR, "/jobs/", live=True),
    "search_without_hit": PageRequest(OPERATOR, "/jobs/?q=zzzzzz", live=True),
    "by_reason": PageRequest(OPERATOR, "/jobs/?reason=Nothing", live=True),
    "held": PageRequest(OPERATOR, "/api/v1/jobs?held=true&limit=50"),
    "by_name": PageRequest(OPERATOR, "/api/v1/jobs?name=zzzzzz&limit=50"),
    "min_gpus": PageRequest(OPERATOR, "/api/v1/jobs?min_gpus=4096&limit=50"),
    "usage_csv": PageRequest(OPERATOR, "/usage/usage.csv"),
    "gang": PageRequest(OPERATOR, "/jobs/{gang}/", live=True),
    "dry_run": PageRequest(ENGINEER, "/api/v1/jobs?dry_run=true", document=JOB, repeats=20),
    "dry_run_by_rows": PageRequest(ENGINEER, "/api/v1/jobs?dry_run=true", document=JOB, repeats=1),
}
KEPT = {"dry_run"}  # asked while a process keeps the state of the cluster
WORK: dict[str, Callable[[], object]] = {
    "fold": lambda: totals.fold(timezone.now()),
    "thin_samples": lambda: services.thin_samples(timezone.now()),
    "account": lambda: account(timezone.now()),
}
QUESTIONS = (*WORK, *PAGES)


def measured(name: str) -> dict[str, Any]:
    """Measure one question.

    For a page: `first`, when nobody has asked yet; `again`, medians over some requests while
    nothing changes; `unchanged`, when the reader names what it already has. For background work:
    `first` and `again`.
    """
    cache.clear()
    if name in WORK:
        with _counted() as told_first:
            WORK[name]()
        with _counted() as told_again:
            WORK[name]()
        return {"first": asdict(told_first(0, 0)), "again": asdict(told_again(0, 0))}
    question = PAGES[name]
    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.get(username=question.user))
    first, tag = _asked(client, question)
    found = {"first": asdict(first)}
    rows = []
    for _ in range(question.repeats):
        one, tag = _asked(client, question)
        rows.append(one)
    found["again"] = asdict(_middle(rows))
    if tag:
        rows = []
        for _ in range(question.repeats):
            one, tag = _asked(client, question, tag)
            rows.append(one)
        found["unchanged"] = asdict(_middle(rows))
    return found


def _middle(rows: list[Figures]) -> Figures:
    return Figures(
        median_low(row.status for row in rows),
        median(row.cpu_s for row in rows),
        median(row.wall_s for row in rows),
        median_low(row.statements for row in rows),
        None if rows[0].blocks is None else median_low(row.blocks or 0 for row in rows),
        median_low(row.bytes for row in rows),
    )


def _asked(client: Client, question: PageRequest, tag: str = "") -> tuple[Figures, str]:
    headers = dict(HTMX) if question.live else {}
    if tag:
        headers["If-None-Match"] = tag
    path = question.path
    if "{gang}" in path:
        gang = Job.objects.filter(state="RUNNING").latest("gpu_milli")
        path = path.format(gang=gang.pk)
    with _counted() as told:
        if question.document is not None:
            answer = client.post(path, question.document, "application/json", headers=headers)
        elif question.form:
            answer = client.post(path, {}, headers=headers)
        else:
            answer = client.get(path, headers=headers)
        size = len(answer.content)
    if answer.status_code >= 400:
        raise RuntimeError(f"{path}: {answer.status_code} {answer.content[:300]!r}")
    return told(answer.status_code, size), answer.headers.get("ETag", "")


@contextmanager
def _counted() -> Iterator[Callable[[int, int], Figures]]:
    """Yield a function that makes the figures of everything done inside, from status and bytes."""
    statements = 0
    done: list[tuple[float, float, int | None]] = []

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(sql, params, many, context)

    before = _blocks()
    with connection.execute_wrapper(count):
        wall, cpu = time.monotonic(), time.process_time()
        yield lambda status, size: Figures(
            status, round(done[0][0], 4), round(done[0][1], 4), statements, done[0][2], size
        )
        used, took = time.process_time() - cpu, time.monotonic() - wall
    after = _blocks()
    blocks = None if before is None or after is None else after - before
    done.append((used, took, blocks))


def _blocks() -> int | None:
    """Return how many blocks of this database PostgreSQL has looked at."""
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(cursor.fetchone()[0])
