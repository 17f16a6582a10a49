"""`manage.py experiment NAME`: a whole study, as a table or as one JSON document."""

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from metrics.experiments.charts import figures
from metrics.experiments.registry import STUDIES
from metrics.experiments.study import Study, in_parallel
from metrics.experiments.workers import over_workers
from metrics.inputs import InputError
from metrics.interrupts import terminated_as_interrupted
from metrics.report import Report, write_files


class Command(BaseCommand):
    help = "Run a study: " + "; ".join(f"{s.name} ({s.help})" for s in STUDIES.values())

    def add_arguments(self, parser: CommandParser) -> None:
        names = parser.add_subparsers(dest="study", metavar="NAME", required=True)
        for study in STUDIES.values():
            own = names.add_parser(study.name, help=study.help)
            own.add_argument("--json", action="store_true", help="one JSON document on stdout")
            own.add_argument(
                "--out", type=Path, metavar="DIR", help="write the document and an HTML report"
            )
            if study.plan is not None:
                own.add_argument(
                    "--celery",
                    action="store_true",
                    help="let the workers of the deployment carry out the runs",
                )
            study.add_arguments(own)

    def handle(self, *args: Any, **options: Any) -> None:
        study = STUDIES[options["study"]]
        with terminated_as_interrupted():
            document = self._run(study, options)
        if options["out"]:
            self._write(options["out"], document, list(study.lines(document)))
        if options["json"]:
            self.stdout.write(json.dumps(document, allow_nan=False))
        else:
            for line in study.lines(document):
                self.stdout.write(line)
        if document["partial"]:
            self.stderr.write("Interrupted: these are partial results.")

    def _run(self, study: Study, options: dict[str, Any]) -> dict[str, Any]:
        with tqdm(unit="run", disable=not sys.stderr.isatty(), file=sys.stderr) as bar:

            def progress(done: int, of: int) -> None:
                bar.total = of
                bar.update(done - bar.n)

            try:
                runner = over_workers(study, options) if options.get("celery") else in_parallel
                return study.run(options, progress, runner)
            except InputError as error:
                raise CommandError(str(error)) from None
            except KeyboardInterrupt:
                raise CommandError("Interrupted before the first run began.") from None

    def _write(self, folder: Path, document: dict[str, Any], text: list[str]) -> None:
        report = Report(
            title=f"Experiment {document['experiment']}",
            note="PARTIAL: the study was interrupted." if document["partial"] else "",
            text=text,
            figures=figures(document),
        )
        body = json.dumps(document, indent=1, allow_nan=False)
        try:
            write_files(folder, {"experiment.json": body, "report.html": report.html()})
        except OSError as error:
            # The figures took long to make: they are printed all the same.
            self.stderr.write(f"--out {folder}: {error.strerror}; no file was written there")
