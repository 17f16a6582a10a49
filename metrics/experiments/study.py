"""The definition of a study, and what studies share: seeds, parallel runs, partial results."""

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

# Called with the number of finished runs and of all runs.
Progress = Callable[[int, int], None]
# Applies a function to many tasks: (function, tasks, progress) → (task, result), in the order of
# the tasks. On KeyboardInterrupt it ends what it started and passes the exception on.
Runner = Callable[[Callable[[Any], Any], Sequence[Any], Progress], Iterator[tuple[Any, Any]]]


class StudyError(InputError):
    """An unusable option of a study; the message names it and says what would work."""


@dataclass(frozen=True, slots=True)
class Study:
    """A study. `run` takes the parsed options and returns the JSON document; `lines` prints it.

    On Ctrl-C `run` returns what it has, with `partial` true. `reads_data`: it reads public data
    that is not part of the project. `plan`: makes the function and tasks that `run` gives to its
    runner from the options, so that they can run in other processes; None = it runs only here.
    """

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[dict[str, Any], Progress, Runner], dict[str, Any]]
    lines: Callable[[dict[str, Any]], Iterator[str]]
    reads_data: bool = False
    plan: Callable[[dict[str, Any]], tuple[Callable[[Any], Any], Sequence[Any]]] | None = None

    def own_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parsed options that are the study's own, as JSON."""
        parser = ArgumentParser()
        self.add_arguments(parser)
        names = vars(parser.parse_args([]))
        return {
            name: str(options[name].resolve()) if isinstance(options[name], Path) else options[name]
            for name in names
        }


def parse_seeds(text: str) -> list[int]:
    """Parse seeds like "42-51" or "1,2,5-7", in that order without duplicates; raise StudyError."""
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
    """Yield the results of `run` in the order of `tasks`, using as many processes as there are
    cores.

    `run` is a module-level function. KeyboardInterrupt ends the processes and is passed on.
    """
    workers = min(len(os.sched_getaffinity(0)), len(tasks))
    progress(0, len(tasks))
    # A fresh interpreter, because this process may hold threads and database connections.
    pool = multiprocessing.get_context("spawn").Pool(workers, _prepare)
    with pool:  # leaving it ends the processes
        for done, result in enumerate(pool.imap(run, tasks), start=1):
            progress(done, len(tasks))
            yield tasks[done - 1], result


def _prepare() -> None:
    """Prepare a process of the pool.

    Ctrl-C reaches the whole process group, but only the parent decides what follows. When the
    parent is gone for whatever reason, nobody waits for the result, so exit. Tasks may need Django.
    """
    django.setup()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()
