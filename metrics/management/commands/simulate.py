"""`manage.py simulate`: one run of the scheduler over a trace or a generated workload."""

import json
import math
import resource
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.utils import timezone
from tqdm import tqdm

from metrics.simulate import results as simulation
from metrics.simulate import sources
from metrics.simulate.files import check_parquet, write_results
from metrics.simulate.inputs import InputError, policy_of
from metrics.simulate.interrupts import asked_to_stop
from metrics.simulate.output import folder, hand_over, make_folder
from scheduling.engine.types import Policy
from scheduling.queries import history
from scheduling.simulator import traces, workload
from scheduling.simulator.faults import faults_of
from scheduling.simulator.journal import RunJournal
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Settings
from scheduling.simulator.run import RunOutcome, TraceError
from scheduling.simulator.several import SeveralClusters
from scheduling.simulator.traces.table import MOST_HOURS

FAULTS = {"none": 0.0, "good": 2.3, "base": 6.5, "stress": 22.0}


class Command(BaseCommand):
    help = "Simulate a trace or a generated workload on a fleet under a policy."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        source = parser.add_mutually_exclusive_group()
        source.add_argument("--trace", metavar="FILE", help="job trace, see docs/traces.md")
        source.add_argument(
            "--workload",
            default="calibrated",
            help=f"generated workload: {', '.join(workload.VARIANTS)} (default %(default)s)",
        )
        source.add_argument(
            "--from-history",
            action="store_true",
            help="replay the recorded history of a cluster of this Kant, on its own nodes",
        )
        parser.add_argument(
            "--since",
            metavar="TIME",
            help="start of --from-history: 2026-11-20T08:00, or 24h, 7d ago",
        )
        parser.add_argument("--cluster", help="cluster of --from-history, if there are several")
        parser.add_argument(
            "--fleet",
            help="demo, paper, large, an inventory file, a .csv list of openb machines or of hosts "
            f"and switches, or NODESxGPUS (default {sources.DEFAULT_FLEET}; for a history its own "
            "nodes)",
        )
        parser.add_argument(
            "--clusters",
            type=Path,
            metavar="FILE",
            help="several clusters with one queue instead of --fleet, see docs/traces.md",
        )
        parser.add_argument(
            "--policy",
            help=f"{', '.join(simulation.PRESETS)}, QUEUEING+STRATEGY, or a .json file with the "
            "fields of a cluster's policy (default kant; for a history the cluster's own)",
        )
        parser.add_argument("--seed", type=int, default=1, help="seed of workload and faults")
        parser.add_argument(
            "--hours",
            type=float,
            help="length of the run (default: 720 for a workload; a trace runs to its end)",
        )
        parser.add_argument("--warm-up-hours", type=float, default=0.0)
        parser.add_argument(
            "--cycle", type=float, default=0.0, help="seconds between cycles; 0: at once"
        )
        parser.add_argument("--bind-delay", type=float, default=0.0, help="seconds to start a pod")
        parser.add_argument(
            "--evict-delay", type=float, default=0.0, help="seconds until a victim's pods are gone"
        )
        parser.add_argument("--checkpoint", type=float, help="seconds between checkpoints of a job")
        parser.add_argument(
            "--restart-cost", type=float, default=0.0, help="seconds lost by a restart"
        )
        parser.add_argument(
            "--faults",
            choices=FAULTS,
            default="none",
            help="node fault rate; without --hours, a job that is longer than every gap between "
            f"faults ends the run after {MOST_HOURS:,} hours",
        )
        parser.add_argument("--format", default="", help="trace format, if it is not recognised")
        parser.add_argument(
            "--skip-bad", action="store_true", help="skip wrong rows of the trace and count them"
        )
        parser.add_argument(
            "--out", type=folder, metavar="DIR", help="write jobs, placements, samples and a report"
        )
        parser.add_argument(
            "--parquet", action="store_true", help="write the tables of --out as Parquet as well"
        )
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        # Only if it will be written: it has a row for every placement.
        journal = RunJournal() if options["out"] else None
        try:
            document, outcome = self._run(options, journal)
        except (InputError, TraceError, traces.TraceFormatError, ValueError) as error:
            raise CommandError(str(error), returncode=2) from None
        except DatabaseError as error:
            raise CommandError(
                f"--from-history: the database cannot be read ({error}); does it run, and has "
                "`manage.py migrate` been run?"
            ) from None
        except KeyboardInterrupt:
            raise CommandError("Interrupted before there was a result.") from None
        text = list(lines(document))
        hand_over(
            self.stdout,
            [json.dumps(document, allow_nan=False)] if options["json"] else text,
            options["out"],
            lambda to: write_results(
                to, outcome, journal or RunJournal(), document, text, parquet=options["parquet"]
            ),
        )

    def _run(
        self, options: dict[str, Any], journal: RunJournal | None
    ) -> tuple[dict[str, Any], RunOutcome]:
        """Return the document and the run behind it; raise InputError before the run starts."""
        _check(options)
        shares, bad = workload.StreamShares(), traces.BadRows(skip=options["skip_bad"])
        source = _source(options, shares, bad)
        if options["out"]:
            make_folder(options["out"])
        nodes, hours = source.fleet.nodes, source.hours
        fault_rate = FAULTS[options["faults"]]
        # When nodes keep failing, a job that is too long to survive would never finish.
        longest = hours or (MOST_HOURS if fault_rate else None)
        named, policy = options["policy"], source.policy
        if policy is None or named is not None:
            named = "kant" if named is None else named
            policy = policy_of(named)
        warm_up = options["warm_up_hours"] * 3600
        settings = Settings(
            cycle_s=options["cycle"],
            bind_delay_s=options["bind_delay"],
            evict_s=options["evict_delay"],
            checkpoint_s=options["checkpoint"],
            restart_s=options["restart_cost"],
            warm_up_s=warm_up - source.start,
            stop_s=longest * 3600 if longest else None,
        )
        simulated = _simulated(source, policy, settings, fault_rate, options["seed"], journal)
        gpus = sum(source.fleet.gpus.values())
        began, cpu = time.perf_counter(), time.process_time()
        outcome = self._watched(simulated, hours, quiet=options["json"])
        seconds = time.perf_counter() - began
        document = {
            "policy": "the cluster's own" if named is None else named,
            "fleet": source.fleet.name,
            "gpus": gpus,
            "seed": options["seed"],
            "source": source.name,
            "hours": hours,
            "counted_from_s": max(source.start, warm_up),
            "ended_at_s": outcome.ended_at,
            **simulation.summary(outcome, nodes, warm_up_until=warm_up),
            "workload": shares.figures(gpus, hours) if hours else {},
            "skipped_rows": bad.count,
            "remarks": list(source.remarks),
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu,
            "events_per_second": outcome.events / seconds if seconds else None,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        for message in source.remarks:
            self.stderr.write(message)
        for message in bad.first:
            self.stderr.write(f"skipped: {message}")
        return document, outcome

    def _watched(
        self, simulated: Simulation | SeveralClusters, hours: float | None, *, quiet: bool
    ) -> RunOutcome:
        """Run with a progress bar on a terminal; Ctrl-C or SIGTERM ends the run and keeps its
        results so far."""
        hidden = quiet or not sys.stderr.isatty()
        with (
            tqdm(total=hours, unit="h", disable=hidden, file=sys.stderr) as bar,
            asked_to_stop() as stop,
            simulation.no_collection(),
        ):

            def progress(now: float, events: int, jobs: int) -> None:
                bar.set_postfix(jobs=jobs, events=events, refresh=False)
                bar.update(round(now / 3600, 1) - bar.n)

            outcome = simulated.run(progress, stop)
        if outcome.partial:
            self.stderr.write("Interrupted: these are partial results.")
        return outcome


def _simulated(
    source: sources.Source,
    policy: Policy,
    settings: Settings,
    fault_rate: float,
    seed: int,
    journal: RunJournal | None,
) -> Simulation | SeveralClusters:
    """Return the run of a source; with several clusters, each has its own faults."""
    if source.fleet.clusters:
        clusters = [
            replace(
                cluster,
                faults=faults_of(cluster.nodes, per_1000_node_days=fault_rate, seed=seed + number),
            )
            for number, cluster in enumerate(source.fleet.clusters)
        ]
        return SeveralClusters(
            clusters,
            source.arrivals,
            tenants=source.tenants,
            quotas=source.quotas,
            queues=source.queues,
            settings=settings,
            start=source.start,
            journal=journal,
        )
    nodes = source.fleet.nodes
    return Simulation(
        nodes,
        source.arrivals,
        policy=policy,
        tenants=source.tenants,
        quotas=source.quotas,
        queues=source.queues,
        settings=settings,
        faults=faults_of(nodes, per_1000_node_days=fault_rate, seed=seed),
        changes=history.held_before(source.window, policy) if source.window else (),
        start=source.start,
        journal=journal,
    )


def _check(options: dict[str, Any]) -> None:
    """Raise InputError for options with which no run is possible."""
    if options["parquet"]:
        if not options["out"]:
            raise InputError("--parquet needs --out, the folder for the tables")
        check_parquet()
    for name, least in (
        ("hours", "more than"), ("checkpoint", "more than"), ("cycle", "at least"),
        ("bind_delay", "at least"), ("evict_delay", "at least"),
        ("restart_cost", "at least"), ("warm_up_hours", "at least"),
    ):  # fmt: skip
        value, option = options[name], f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if not (value > 0 or (value == 0 and least == "at least")) or not value < math.inf:
            raise InputError(f"{option} must be {least} 0 and finite, not {value:g}")
    hours = options["hours"]
    if hours is not None and hours > MOST_HOURS:
        raise InputError(f"--hours must be at most {MOST_HOURS:g}, not {hours:g}")
    if hours is not None and options["warm_up_hours"] >= hours:
        raise InputError(
            f"--warm-up-hours {options['warm_up_hours']:g} leaves nothing of --hours {hours:g}"
        )
    if options["seed"] < 0:
        raise InputError(f"--seed must be at least 0, not {options['seed']}")


def _source(
    options: dict[str, Any], shares: workload.StreamShares, bad: traces.BadRows
) -> sources.Source:
    """Return the source that the options name; raise InputError."""
    hours, fleet = options["hours"], options["fleet"]
    if options["clusters"] is not None:
        for name in ("fleet", "from_history"):
            if options[name]:
                raise InputError(f"--clusters is instead of --{name.replace('_', '-')}")
    if options["from_history"]:
        if options["since"] is None:
            raise InputError("--from-history needs --since, a time or a length like 24h")
        now = timezone.now()
        since = sources.since_of(options["since"], now)
        cluster = sources.cluster_of(options["cluster"])
        given = None if fleet is None else sources.pools_of(fleet)
        return sources.recorded(cluster, since, now, hours, given, bad)
    for name in ("since", "cluster"):
        if options[name] is not None:
            raise InputError(f"--{name} is for --from-history only")
    if options["clusters"] is not None:
        pools = sources.several(options["clusters"], policy_of(options["policy"] or "kant"))
    else:
        pools = sources.pools_of(sources.DEFAULT_FLEET if fleet is None else fleet)
    if options["trace"] is not None:
        path = Path(options["trace"])
        try:
            return sources.traced(path, pools, hours, options["format"], bad)
        except traces.TraceFormatError as error:
            raise InputError(f"--trace {path}: {error}") from None
    return sources.generated(options["workload"], pools, options["seed"], hours, shares)


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Format the document as a table for people."""
    yield (
        f"{document['source']} on {document['fleet']} ({document['gpus']:,} GPUs), "
        f"policy {document['policy']}, seed {document['seed']}"
    )
    if document["partial"]:
        yield "PARTIAL: the run was interrupted"
    for model, pool in document["pools"].items():
        cells = [
            f"{name} {pool[key]:.1%}" if pool[key] is not None else f"{name} –"
            for name, key in (
                ("GAR", "gar_mean"),
                ("SOR median", "sor_median"),
                ("GFR", "gfr_mean"),
            )
        ]
        yield f"{model:24} " + "   ".join(cells)
    yield (
        f"{'size':>6} {'jobs':>8} {'waiting':>8} {'mean s':>10} {'p50 s':>10} {'p90 s':>10} "
        f"{'p99 s':>10} {'1st s':>10} {'nodes':>6} {'groups':>6}"
    )
    for size, row in document["waits"].items():
        quality = document["jtted"].get(size, {})
        seconds = [row[k] for k in ("mean_s", "p50_s", "p90_s", "p99_s")]
        waits = "".join(
            f" {value:>10,.0f}" if value is not None else f" {'–':>10}"
            for value in (*seconds, row["first_start"]["mean_s"])
        )
        tail = "".join(f" {quality[k]:>6.2f}" for k in ("nodes", "groups") if k in quality)
        yield f"{size:>6} {row['jobs']:>8,} {row['waiting']:>8,}{waits}{tail}"
    yield (
        f"preempted jobs {document['preempted_jobs']}, moves {document['moves']}, "
        f"requeues {document['requeues']}, lost GPU-hours {document['lost_gpu_hours']:,.1f}, "
        f"never runnable {document['never_runnable']}"
    )
    published = workload.StreamShares.PUBLISHED
    for name, value in document["workload"].items():
        if name in published:
            yield f"workload {name}: {value:.1%} (published {published[name][0]:.1%})"
    yield (
        f"{document['events']:,} events in {document['seconds']:.1f} s, peak "
        f"{document['peak_mb']:.0f} MB"
    )
