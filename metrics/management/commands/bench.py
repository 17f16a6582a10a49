"""`manage.py bench NAME`: each module of metrics/benches with a `run` is one benchmark."""

import json
import pkgutil
from argparse import ArgumentParser
from importlib import import_module
from types import ModuleType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from metrics import benches
from metrics.simulate.output import print_lines


def registry() -> dict[str, ModuleType]:
    """Return {name: module}; a module may add options of its own with `add_arguments`."""
    found = {}
    for info in pkgutil.iter_modules(benches.__path__):
        module = import_module(f"{benches.__name__}.{info.name}")
        if hasattr(module, "run"):
            found[info.name] = module
    return found


class Command(BaseCommand):
    help = "Run a benchmark; it starts and stops everything it needs, in its own folder."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--list", action="store_true", help="name the benchmarks")
        names = parser.add_subparsers(dest="name", metavar="NAME")
        for name, module in registry().items():
            summary = (module.__doc__ or "").strip().splitlines()[0]
            own = names.add_parser(name, help=summary, description=summary)
            own.add_argument("--json", action="store_true", help="print one JSON document")
            if hasattr(module, "add_arguments"):
                module.add_arguments(own)

    def handle(self, *_: Any, **given: Any) -> None:
        modules = registry()
        if given["list"]:
            self.stdout.write("\n".join(modules))
            return
        if not given["name"]:
            raise CommandError(f"name a benchmark: {', '.join(modules)}", returncode=2)
        known = {"verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color"}
        known |= {"skip_checks", "name", "list", "json"}
        options = {key: value for key, value in given.items() if key not in known}
        try:
            figures = modules[given["name"]].run(**options)
        except RuntimeError as error:
            raise CommandError(str(error)) from error
        if given["json"]:
            text = [json.dumps({"bench": given["name"], "figures": figures})]
        else:
            text = [f"{name:24} {value}" for name, value in figures.items()]
        print_lines(self.stdout, text)
