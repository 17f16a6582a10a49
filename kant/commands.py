"""The commands of `manage.py`; they all, Django's included, take numbers as people write them."""

import argparse
from functools import wraps
from typing import Any

from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand, CommandParser

from kant.client.flags.numbers import number, whole


class Commands(ManagementUtility):
    """Runs `manage.py`, with arguments as in `sys.argv`."""

    def fetch_command(self, subcommand: str) -> BaseCommand:
        command = super().fetch_command(subcommand)
        made = command.create_parser

        @wraps(made)
        def create_parser(*args: Any, **kwargs: Any) -> CommandParser:
            parser = made(*args, **kwargs)
            _read_as_written(parser)
            return parser

        command.create_parser = create_parser  # type: ignore[method-assign]
        return command


def _read_as_written(parser: argparse.ArgumentParser) -> None:
    """Make flags of `type=int` or `type=float` accept only such numbers, also in subcommands."""
    parser.register("type", int, whole)
    parser.register("type", float, number)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _read_as_written(below)
