"""What a study is, and what studies share: seeds, parallel runs, partial results."""

import multiprocessing
import os
import re
import signal
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import django

from metrics.simulate.inputs import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Called with the number of runs done and the number of all runs.
Progress = Callable[[int, int], None]
# Carries out a function for each of many tasks: (function, tasks, progress) -> (task, result) in
# the order of the tasks. A KeyboardInterrupt ends what it started and is passed on.
Runner = Callable[[Callable[[Any], Any], Sequence[Any], Progress], Iterator[tuple[Any, Any]]]


class StudyError(InputError):
    """An option of a study that cannot be used; the message names it and says what would do."""


@dataclass(frozen=True, slots=True)
class Study:
    """`run` gets the parsed options and returns the JSON document; `lines` prints it.

    On Ctrl-C `run` returns what it has, with `partial` true. `reads_data`: it reads public data
    that is not part of the project. `plan`: from the options the function and the tasks that `run`
    gives to its runner, for runs in other processes; None = it runs here, alone.
    """

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[dict[str, Any], Progress, Runner], dict[str, Any]]
    lines: Callable[[dict[str, Any]], Iterator[str]]
    reads_data: bool = False
    plan: Callable[[dict[str, Any]], tuple[Callable[[Any], Any], Sequence[Any]]] | None = None

    def own_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the parsed options that are the study's, as JSON."""
        parser = ArgumentParser()
        self.add_arguments(parser)
        names = vars(parser.parse_args([]))
        return {
            name: str(options[name].resolve()) if isinstance(options[name], Path) else options[name]
            for name in names
        }


def parse_seeds(text: str) -> list[int]:
    """Seeds like "42-51" or "1,2,5-7", in that order, each once; raises StudyError."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip())
        if not found:
            raise StudyError(f"--seeds {text!r}: {part!r} is no seed and no range like 42-51")
        low, high = int(found[1]), int(found[2] or found[1])
        if not low <= high < low + 10_000:
            raise StudyError(f"--seeds {text!r}: the range {part!r} is empty or far too long")
        seeds.update(dict.fromkeys(range(low, high + 1)))
    return list(seeds)


def in_parallel(
    run: Callable[[Task], Result], tasks: Sequence[Task], progress: Progress
) -> Iterator[tuple[Task, Result]]:
    """Results of `run` in the order of `tasks`, by as many processes as there are cores.

    `run` is a function of a module. KeyboardInterrupt ends the processes and is passed on.
    """
    workers = min(len(os.sched_getaffinity(0)), len(tasks))
    progress(0, len(tasks))
    # A fresh interpreter: this process may hold threads and database connections.
    pool = multiprocessing.get_context("spawn").Pool(workers, _prepare)
    with pool:  # leaving it ends the processes
        for done, result in enumerate(pool.imap(run, tasks), start=1):
            progress(done, len(tasks))
            yield tasks[done - 1], result


def _prepare() -> None:
    """Ctrl-C reaches the whole process group: only the parent decides what follows. Without it,
    however it ended, nobody waits for the result. What runs may need Django."""
    django.setup()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()
