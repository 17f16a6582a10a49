"""`manage.py keep_forecasts`: forecasts when waiting jobs start; the worker starts it."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from scheduling.services.common.child import watch
from scheduling.services.forecasts import process


class Command(BaseCommand):
    help = (
        "Keep the start estimates of waiting jobs up to date. The background worker starts this "
        "command."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--parent", type=int, help="end together with this process")

    def handle(self, *_: Any, parent: int | None, **__: Any) -> None:
        watch(parent)
        process.keep(parent)
