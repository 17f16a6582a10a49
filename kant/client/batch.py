"""`kant submit-many`: submit the jobs of one file; each is accepted or refused by itself."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from kant.client import output
from kant.client.api import Api
from kant.client.errors import FAILED, ClientError, usage
from kant.client.jobs import only_tenant, size
from kant.client.submission import found_in

MOST, MOST_JOBS = 1000, 10_000  # documents, and jobs including those of arrays, per call


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("file", metavar="FILE", help="a list of jobs as JSON, or YAML; - reads stdin")
    flag("-t", "--tenant", help="tenant of jobs that name none")
    flag("--dry-run", action="store_true", help="show what would happen; submit nothing")
    parser.epilog = "If a job is refused, the others are still submitted."


def submit_many(api: Api, args: argparse.Namespace) -> None:
    documents = _documents(api, args)
    query = {"dry_run": "true"} if args.dry_run else None
    answers: list[dict[str, Any]] = []
    for some in calls(documents):
        told = api.post("jobs:batch", {"jobs": some}, query)
        answers += (told["result"] if args.dry_run else told)["answers"]
    refused = sum(answer["problem"] is not None for answer in answers)
    if args.output == "json":
        output.document(answers)
    elif args.output == "id":
        for answer in answers:
            made = answer["job"] or answer["array"]
            if made and "id" in made:
                print(made["id"])
    else:
        rows = [_row(document, told) for document, told in zip(documents, answers, strict=True)]
        output.table(("NAME", "STATUS", "ID", "SIZE", "WHY NOT"), rows, "")
    done = "Would submit" if args.dry_run else "Submitted"
    output.note(f"{done} {len(answers) - refused} of {len(answers)}.")
    if refused:
        raise ClientError(FAILED, f"{refused} refused.")


def calls(documents: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the documents in order, as many per call as Kant accepts."""
    some: list[dict[str, Any]] = []
    jobs = 0
    for document in documents:
        array = document.get("array")
        count = array.get("count") if isinstance(array, dict) else 1
        more = count if isinstance(count, int) else 1  # Kant reports what is wrong with it
        if some and (len(some) == MOST or jobs + more > MOST_JOBS):
            yield some
            some, jobs = [], 0
        some.append(document)
        jobs += more
    yield some


def _row(document: dict[str, Any], answer: dict[str, Any]) -> tuple[object, ...]:
    made = answer["job"] or answer["array"]
    if made is None:
        return document.get("name"), answer["status"], None, None, answer["problem"]["detail"]
    return made["name"], answer["status"], made.get("id"), size(made), None


def _documents(api: Api, args: argparse.Namespace) -> list[dict[str, Any]]:
    found = found_in(args.file, "list of jobs")
    if isinstance(found, dict) and set(found) == {"jobs"}:
        found = found["jobs"]
    if not isinstance(found, list) or not found:
        raise usage(f"{args.file} contains no jobs. Write a list of job documents.")
    for number, document in enumerate(found, start=1):
        if not isinstance(document, dict):
            raise usage(f"{args.file}: entry {number} is not a job. Write a mapping of fields.")
    if not all(document.get("tenant") for document in found):
        tenant = args.tenant or only_tenant(
            api, "Name the tenant whose quota the jobs use: --tenant."
        )
        found = [{"tenant": tenant, **_named(document)} for document in found]
    return found


def _named(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without a null or empty tenant."""
    return {k: v for k, v in document.items() if k != "tenant" or v}
