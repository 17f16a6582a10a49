"""`manage.py carry_out_replays`: computes the waiting replays; the worker starts it."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from metrics.replays import process


class Command(BaseCommand):
    help = (
        "Compute waiting replays, one after the other. The background worker starts this command."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--parent", type=int, help="end together with this process")

    def handle(self, *_: Any, parent: int | None, **__: Any) -> None:
        process.limit()
        process.carry_out_all(parent)
