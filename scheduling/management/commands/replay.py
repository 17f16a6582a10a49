"""`manage.py replay FILE`: run the jobs of a recorded trace through a running Kant."""

import json
import math
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from scheduling.addresses import is_http_address
from scheduling.replay import ReplayReport, TraceReplay, TraceReplayError, read_trace, run
from scheduling.simulator.traces import Predecessors, TraceJob
from tenants.models import User
from tenants.services.tokens import NewToken, create_token, revoke_token


class Command(BaseCommand):
    help = "Submit the jobs of a trace over REST, wait for their end, print metrics and outcomes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="job trace, see docs/traces.md")
        parser.add_argument("--speed", type=float, default=600.0, help="trace seconds per second")
        parser.add_argument("--format", default="", help="trace format, if it is not recognised")
        parser.add_argument(
            "--limit", type=int, default=500, help="most jobs to take from the trace"
        )
        parser.add_argument(
            "--tenants", type=int, default=15, help="tenants to spread the jobs over"
        )
        parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of Kant")
        parser.add_argument("--token", default="", help="an operator's API token")
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, *_: Any, **given: Any) -> None:
        for name in ("speed", "limit", "tenants"):
            if not 0 < given[name] < math.inf:
                raise CommandError(f"--{name} must be a number greater than 0", returncode=2)
        if not is_http_address(given["url"]):
            told = "--url must be the address of Kant, e.g. http://127.0.0.1:8000"
            raise CommandError(told, returncode=2)
        own = None if given["token"] else self._own_token()
        token = own.secret if own else given["token"]
        bar = tqdm(total=given["limit"], unit="job", disable=None)

        def progress(submitted: int, over: int) -> None:
            bar.set_postfix(submitted=submitted)
            bar.update(over - bar.n)

        try:
            jobs = read_trace(given["file"], given["limit"], given["format"])
            bar.total = len(jobs)
            self._remark(given["file"], jobs)
            replay = TraceReplay(given["url"], token, jobs, given["tenants"], given["speed"])
            report = run(replay, progress)
        except TraceReplayError as error:
            raise CommandError(str(error)) from error
        finally:
            bar.close()
            if own is not None:
                revoke_token(own.token.user, own.token.pk)
        if given["json"]:
            self.stdout.write(json.dumps(document(report), indent=2))
        else:
            self._print(report)
        if report.double_holdings:
            raise CommandError(f"{len(report.double_holdings)} devices were held twice")

    def _remark(self, path: Path, jobs: list[TraceJob]) -> None:
        predecessors = Predecessors()
        for job in jobs:
            predecessors.read(job)
        if remark := predecessors.remark():
            self.stderr.write(f"{path}: {remark}")

    def _own_token(self) -> NewToken:
        """Make a token for an operator; in embedded mode nobody has to make one by hand."""
        operator = User.objects.filter(is_operator=True, is_active=True).order_by("id").first()
        if not settings.EMBEDDED or operator is None:
            raise CommandError("give an operator's API token with --token")
        return create_token(operator, "replay")

    def _print(self, report: ReplayReport) -> None:
        write, metrics = self.stdout.write, report.metrics
        write(f"\n{report.submitted} jobs in {report.seconds:.0f} s:")
        for state, count in sorted(report.states.items()):
            write(f"  {state:12} {count}")
        for job in report.jobs:
            if job["state"] != "SUCCEEDED":
                write(f"  {job['name']} {job['state']}: {job['reason']} {job['message']}")
        write(f"GAR now {percent(metrics['gar'])}, SOR {percent(metrics['sor'])}, "
              f"GFR now {percent(metrics['gfr'])}")  # fmt: skip
        write("JWTD (waiting in all, s) jobs     mean      p50      p90      p99  1st start, mean")
        for row in metrics["jwtd"]:
            values = "".join(f"{seconds(row[k]):>9}" for k in ("mean_s", "p50_s", "p90_s", "p99_s"))
            values += f"{seconds(row['first_start']['mean_s']):>17}"
            write(f"  {row['size']:>10} GPUs {row['jobs']:>10}{values}")
        write("JTTED (1.0 is ideal)     jobs    nodes   groups")
        for row in metrics["jtted"]:
            write(
                f"  {row['size']:>10} GPUs {row['jobs']:>10}"
                f"{row['node_deviation']:>9.3f}{row['group_deviation']:>9.3f}"
            )
        if report.double_holdings is None:
            write("Devices held twice: not known, the cluster keeps no record of its own")
        else:
            write(f"Devices held twice (the cluster's own record): {len(report.double_holdings)}")


def document(report: ReplayReport) -> dict[str, Any]:
    """Return the report for `--json`."""
    fields = ("id", "name", "tenant", "state", "reason", "message", "gpus", "attempt")
    times = ("submitted_at", "bound_at", "running_at", "ended_at")
    return {
        "submitted": report.submitted,
        "seconds": round(report.seconds, 1),
        "states": report.states,
        "metrics": report.metrics,
        "double_holdings": report.double_holdings,
        "jobs": [{name: job[name] for name in (*fields, *times)} for job in report.jobs],
    }


def percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.1f} %"


def seconds(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}"
