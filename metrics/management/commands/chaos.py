"""`manage.py chaos`: does Kant keep its promises while its parts die under load?"""

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from math import inf
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError

from metrics.chaos.rounds import ChaosRun
from metrics.chaos.shape import MOST_SHARDS, ProductionShape
from metrics.simulate.interrupts import asked_to_stop
from metrics.simulate.output import print_lines


def whole(least: int, most: float = inf) -> Any:
    """Return an argparse type for whole numbers within these bounds."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            to = "on" if most == inf else f"to {most}"
            raise ArgumentTypeError(f"must be a whole number from {least} {to}, not {text!r}")
        return int(text)

    return read


class Command(BaseCommand):
    help = (
        "Run Kant as in production on this machine, with PostgreSQL, Redis, two schedulers and an "
        "embedded cluster, submit jobs, kill and freeze its parts, and check that no device is "
        "given twice, no job is lost or doubled, and all ends. Exit code 1: something did not hold."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rounds", type=whole(1), default=5, help="rounds of faults (5)")
        parser.add_argument("--seed", type=whole(0), default=0, help="seed of faults and jobs")
        parser.add_argument(
            "--shards",
            type=whole(1, MOST_SHARDS),
            default=1,
            help="shards of the cluster (default 1: undivided)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, *_: Any, **given: Any) -> None:
        try:
            with asked_to_stop() as stop, ProductionShape(self._tell, given["shards"]) as shape:
                figures = ChaosRun(shape, given["rounds"], given["seed"]).carry_out(stop)
        except (RuntimeError, OSError, psycopg.Error) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("interrupted; nothing is left running") from None
        lines = [f"{name:16} {value}" for name, value in figures.items()]
        print_lines(self.stdout, [json.dumps(figures)] if given["json"] else lines)
        if figures["violations"]:
            sys.exit(1)

    def _tell(self, line: str) -> None:
        self.stderr.write(line, self.style.NOTICE if "VIOLATION" in line else str)
        self.stderr.flush()
