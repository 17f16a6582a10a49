"""`manage.py simulate`: one run of the scheduler over a trace or a generated workload."""

import json
import resource
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from metrics import simulation
from metrics.inputs import InputError, fleet_of, lines_of
from metrics.simulation_files import write_results
from scheduling.engine.placement.strategies import STRATEGIES
from scheduling.engine.types import Node, Quota, Tenant
from scheduling.simulator import traces, workload
from scheduling.simulator.loop import Simulation, TraceError
from scheduling.simulator.model import Arrival, Fault, Settings
from scheduling.simulator.nodes import engine_nodes, faults_of

FAULTS = {"none": 0.0, "good": 2.3, "base": 6.5, "stress": 22.0}


class Command(BaseCommand):
    help = "Simulate a trace or a generated workload on a fleet under a policy."

    def add_arguments(self, parser: ArgumentParser) -> None:
        source = parser.add_mutually_exclusive_group()
        source.add_argument("--trace", metavar="FILE", help="job trace, see docs/traces.md")
        source.add_argument(
            "--workload",
            default="calibrated",
            help=f"generated workload: {', '.join(workload.VARIANTS)} (default %(default)s)",
        )
        parser.add_argument(
            "--fleet",
            default="1000x8",
            help="demo, paper, large, an inventory file, or NODESxGPUS (default %(default)s)",
        )
        parser.add_argument(
            "--policy",
            default="kant",
            help=f"{', '.join(simulation.PRESETS)} or QUEUEING+STRATEGY (default %(default)s)",
        )
        parser.add_argument("--seed", type=int, default=1, help="of workload and faults")
        parser.add_argument("--hours", type=float, help="length of the workload (default 720)")
        parser.add_argument("--warm-up-hours", type=float, default=0.0)
        parser.add_argument(
            "--cycle", type=float, default=0.0, help="seconds between cycles; 0: at once"
        )
        parser.add_argument("--bind-delay", type=float, default=0.0, help="seconds to start a pod")
        parser.add_argument("--checkpoint", type=float, help="seconds between checkpoints of a job")
        parser.add_argument(
            "--restart-cost", type=float, default=0.0, help="seconds lost by a restart"
        )
        parser.add_argument("--faults", choices=FAULTS, default="none", help="node fault rate")
        parser.add_argument("--format", default="", help="trace format where it is not recognised")
        parser.add_argument("--skip-bad", action="store_true", help="count wrong rows of the trace")
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help="write jobs, samples and a report"
        )
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            document = self._run(options)
        except (InputError, TraceError, traces.TraceFormatError, ValueError) as error:
            raise CommandError(str(error)) from None
        if options["json"]:
            self.stdout.write(json.dumps(document, allow_nan=False))
        else:
            for line in lines(document):
                self.stdout.write(line)

    def _run(self, options: dict[str, Any]) -> dict[str, Any]:
        for name in ("hours", "checkpoint"):
            if options[name] is not None and not options[name] > 0:
                raise InputError(f"--{name} must be more than 0, not {options[name]:g}")
        for name in ("cycle", "bind_delay", "restart_cost", "warm_up_hours"):
            if not options[name] >= 0:
                raise InputError(f"--{name.replace('_', '-')} must not be negative")
        fleet = fleet_of(options["fleet"])
        nodes = engine_nodes(fleet)
        policy = simulation.policy_of(options["policy"], list(STRATEGIES))
        shares, bad = workload.Shares(), traces.BadRows(skip=options["skip_bad"])
        arrivals, tenants, quotas, hours = self._source(options, nodes, shares, bad)
        warm_up = options["warm_up_hours"] * 3600
        simulated = Simulation(
            nodes,
            arrivals,
            policy=policy,
            tenants=tenants,
            quotas=quotas,
            settings=Settings(
                cycle_s=options["cycle"],
                bind_delay_s=options["bind_delay"],
                checkpoint_s=options["checkpoint"],
                restart_s=options["restart_cost"],
                warm_up_s=warm_up,
                stop_s=hours * 3600 if hours else None,
            ),
            faults=[
                Fault(at, node, repair)
                for at, node, repair in faults_of(
                    fleet,
                    per_1000_node_days=FAULTS[options["faults"]],
                    seed=options["seed"],
                    days=(hours or 720) / 24,
                )
            ],
        )
        began, cpu = time.perf_counter(), time.process_time()
        outcome = self._watched(simulated, hours, quiet=options["json"])
        seconds = time.perf_counter() - began
        document = {
            "policy": options["policy"],
            "fleet": fleet.name,
            "gpus": fleet.gpus,
            "seed": options["seed"],
            "source": options["trace"] or options["workload"],
            "hours": hours,
            **simulation.summary(outcome, nodes, warm_up_until=warm_up),
            "workload": shares.figures(fleet.gpus, hours) if hours else {},
            "skipped_rows": bad.count,
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu,
            "events_per_second": outcome.events / seconds if seconds else None,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        for message in bad.first:
            self.stderr.write(f"skipped: {message}")
        if options["out"]:
            try:
                write_results(options["out"], outcome, document, list(lines(document)))
            except OSError as error:
                raise InputError(
                    f"--out {options['out']}: {error.strerror}; nothing is lost but the files"
                ) from None
        return document

    def _source(
        self,
        options: dict[str, Any],
        nodes: tuple[Node, ...],
        shares: workload.Shares,
        bad: traces.BadRows,
    ) -> tuple[Iterator[Arrival], tuple[Tenant, ...], tuple[Quota, ...], float | None]:
        """Arrivals, tenants, quotas and the length of the run in hours (None = to rest)."""
        by_model: dict[str, int] = {}
        for node in nodes:
            if node.devices:
                by_model[node.gpu_model] = by_model.get(node.gpu_model, 0) + len(node.devices)
        if not by_model:
            raise InputError(f"--fleet {options['fleet']}: has no GPUs")
        model = max(sorted(by_model), key=by_model.__getitem__)
        per_node = max(len(n.devices) for n in nodes if n.gpu_model == model)
        if options["trace"] is None:
            variant = workload.VARIANTS.get(options["workload"])
            if variant is None:
                known = ", ".join(workload.VARIANTS)
                raise InputError(
                    f"--workload {options['workload']!r} is unknown; known are {known}"
                )
            hours = options["hours"] or 720.0
            made = workload.generate(
                variant,
                gpus=by_model[model],
                gpu_model=model,
                seed=options["seed"],
                hours=hours,
                gpus_per_node=per_node,
            )
            tenants, quotas = workload.tenants_of(by_model[model], model)
            return shares.watch(made), tenants, quotas, hours
        rows = list(traces.jobs_of(lines_of(Path(options["trace"])), bad, options["format"]))
        if not rows:
            raise InputError(f"--trace {options['trace']}: has no job that asks for a GPU")
        arrivals = list(traces.arrivals(rows, gpu_model=model, per_node=per_node))
        if options["hours"]:
            arrivals = [a for a in arrivals if a.submitted_at < options["hours"] * 3600]
        names = sorted({a.job.tenant for a in arrivals})
        # A recorded trace knows no quotas: every tenant may use what is there.
        shared = tuple(
            Quota(name, gpu_model, 1000 * gpus)
            for name in names
            for gpu_model, gpus in sorted(by_model.items())
        )
        return iter(arrivals), tuple(Tenant(n) for n in names), shared, options["hours"]

    def _watched(self, simulated: Simulation, hours: float | None, *, quiet: bool) -> Any:
        """Run with a progress bar on a terminal; Ctrl-C ends it with what there is."""
        stopped = False
        with tqdm(
            total=hours, unit="h", disable=quiet or not sys.stderr.isatty(), file=sys.stderr
        ) as bar:

            def progress(now: float, events: int, jobs: int) -> None:
                bar.set_postfix(jobs=jobs, events=events, refresh=False)
                bar.update(round(now / 3600, 1) - bar.n)

            def cancelled() -> bool:
                return stopped

            try:
                return simulated.run(progress, cancelled)
            except KeyboardInterrupt:
                stopped = True
                self.stderr.write("Interrupted: these are partial results.")
                return simulated.result(partial=True)


def lines(document: dict[str, Any]) -> Iterator[str]:
    """The document as a table for people."""
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
        f"{'p99 s':>10} {'nodes':>6} {'groups':>6}"
    )
    for size, row in document["waits"].items():
        quality = document["jtted"].get(size, {})
        waits = "".join(
            f" {row[k]:>10,.0f}" if row[k] is not None else f" {'–':>10}"
            for k in ("mean_s", "p50_s", "p90_s", "p99_s")
        )
        tail = "".join(f" {quality[k]:>6.2f}" for k in ("nodes", "groups") if k in quality)
        yield f"{size:>6} {row['jobs']:>8,} {row['waiting']:>8,}{waits}{tail}"
    yield (
        f"preempted jobs {document['preempted_jobs']}, requeues {document['requeues']}, "
        f"lost GPU-hours {document['lost_gpu_hours']:,.1f}, never runnable "
        f"{document['never_runnable']}"
    )
    published = workload.Shares.PUBLISHED
    for name, value in document["workload"].items():
        if name in published:
            yield f"workload {name}: {value:.1%} (published {published[name][0]:.1%})"
    yield (
        f"{document['events']:,} events in {document['seconds']:.1f} s, peak "
        f"{document['peak_mb']:.0f} MB"
    )
