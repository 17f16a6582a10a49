"""`manage.py experiment NAME`: a whole study, as a table or as one JSON document."""

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from metrics.experiments.charts import figures
from metrics.experiments.registry import STUDIES
from metrics.experiments.study import Study, in_parallel
from metrics.experiments.workers import WorkersFailed, over_workers
from metrics.simulate.inputs import InputError
from metrics.simulate.interrupts import terminated_as_interrupted
from metrics.simulate.output import folder, hand_over, make_folder
from metrics.simulate.report import Report, write_files

PARTIAL = "PARTIAL: the study was interrupted."


class Command(BaseCommand):
    help = "Run a study: " + "; ".join(f"{s.name} ({s.help})" for s in STUDIES.values())
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        names = parser.add_subparsers(dest="study", metavar="NAME", required=True)
        for study in STUDIES.values():
            own = names.add_parser(study.name, help=study.help)
            own.add_argument("--json", action="store_true", help="one JSON document on stdout")
            own.add_argument(
                "--out", type=folder, metavar="DIR", help="write the document and an HTML report"
            )
            if study.plan is not None:
                own.add_argument(
                    "--celery",
                    action="store_true",
                    help="run on the workers of the deployment",
                )
            study.add_arguments(own)

    def handle(self, *args: Any, **options: Any) -> None:
        study = STUDIES[options["study"]]
        with terminated_as_interrupted():
            document = self._run(study, options)
        text = list(study.lines(document))
        if document["partial"]:
            text.append(PARTIAL)
            self.stderr.write("Interrupted: these are partial results.")
        hand_over(
            self.stdout,
            [json.dumps(document, allow_nan=False)] if options["json"] else text,
            options["out"],
            lambda to: write_files(to, _files(document, text)),
        )

    def _run(self, study: Study, options: dict[str, Any]) -> dict[str, Any]:
        with tqdm(unit="run", disable=not sys.stderr.isatty(), file=sys.stderr) as bar:

            def progress(done: int, of: int) -> None:
                bar.total = of
                bar.update(done - bar.n)

            try:
                if options["out"]:
                    make_folder(options["out"])
                runner = over_workers(study, options) if options.get("celery") else in_parallel
                return study.run(options, progress, runner)
            except InputError as error:
                raise CommandError(str(error), returncode=2) from None
            except WorkersFailed as error:
                raise CommandError(str(error)) from None
            except KeyboardInterrupt:
                raise CommandError("Interrupted before the first run began.") from None


def _files(document: dict[str, Any], text: list[str]) -> dict[str, str]:
    """Return the files of --out, by name."""
    report = Report(
        title=f"Experiment {document['experiment']}",
        note=PARTIAL if document["partial"] else "",
        text=text,
        figures=figures(document),
    )
    body = json.dumps(document, indent=1, allow_nan=False)
    return {"experiment.json": body, "report.html": report.html()}
