"""The commands about jobs."""

import argparse
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

from kant.client import output
from kant.client.api import Api, while_typing
from kant.client.errors import FAILED, NEVER_RUNS, NOT_FOUND, TIMED_OUT, ClientError, usage
from kant.client.previews import effects
from kant.client.submission import CHANGEABLE, WHERE, document_of, given, read
from kant.client.template_names import template_of

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
POLL_S = 2.0
SHOWN_AHEAD = 5
_ID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)
_BEGINNING = re.compile(r"[0-9a-f-]+", re.IGNORECASE)


# --- which job ------------------------------------------------------------------------------------
def address(api: Api, text: str) -> str:
    """Return the path of a job or array, given its id, the beginning of its id, or a job's name.

    If several jobs match, the only one that has not ended is meant. Raises ClientError if none or
    several remain.
    """
    if _ID.fullmatch(text):
        for path in (f"jobs/{text}", f"job-arrays/{text}"):
            try:
                api.get(path)
                return path
            except ClientError as error:
                if error.code != NOT_FOUND:
                    raise
    if not text:  # from an unset variable; every job id begins with ""
        raise usage("Name a job by its id, the start of the id, or its name.")
    found = {job["id"]: job for job in api.get("jobs", {"name": text, "limit": 500})["items"]}
    if _BEGINNING.fullmatch(text):
        for job in api.get("jobs", {"q": text, "limit": 500})["items"]:
            if job["id"].startswith(text.lower()):
                found[job["id"]] = job
    if not found:
        raise ClientError(NOT_FOUND, f"There is no job {text!r}. See: kant jobs")
    if len(alive := [job_id for job_id, job in found.items() if job["state"] not in ENDED]) == 1:
        return f"jobs/{alive[0]}"
    if len(found) > 1:
        lines = [f"{job['id']}  {job['name']}  {job['state']}" for job in found.values()]
        more = [f"… and {len(lines) - 10} more"] * (len(lines) > 10)
        raise ClientError(2, f"{text!r} matches {len(lines)} jobs; name one by its id:",
                          *lines[:10], *more)  # fmt: skip
    return f"jobs/{next(iter(found))}"


def only_job(api: Api, text: str) -> str:
    """Return the path of a job as `address` does; raises ClientError for an array, too."""
    path = address(api, text)
    if path.startswith("job-arrays/"):
        raise usage(f"{text} is an array. Its jobs: kant jobs --array {text}")
    return path


def named(beginning: str) -> Iterator[tuple[str, str]]:
    """Yield names and ids of jobs with this beginning, and their state, for shell completion."""

    def ask(api: Api) -> Iterator[tuple[str, str]]:
        for job in api.get("jobs", {"q": beginning or None, "limit": 50})["items"]:
            if job["name"].startswith(beginning):
                yield job["name"], job["state"]
            elif job["id"].startswith(beginning):
                yield job["id"], f"{job['name']}, {job['state']}"

    return while_typing(ask)


# --- commands -------------------------------------------------------------------------------------
def submit(api: Api, args: argparse.Namespace) -> None:
    document = document_of(args, _base(api, args))
    for field, named in (("after", args.after), ("after_ok", args.after_ok)):
        if named is not None:
            document[field] = [address(api, text).rsplit("/", 1)[-1] for text in named]
    if not document.get("tenant"):
        document["tenant"] = only_tenant(api, "Name the tenant whose quota the job uses: --tenant.")
    query = {"dry_run": "true"} if args.dry_run else None
    answer = api.post("jobs", document, query)
    if args.output == "json":
        output.document(answer)
    elif args.dry_run:
        told = answer["result"]
        what, where = f"{told['name']} of {told['tenant']}", told["cluster"]
        print(f"Would submit {what} to {where}: {size(told)}.")
        if choice := told.get("cluster_choice"):
            print(choice["summary"])
        if "count" in told:
            print("Of its first job:")
        _rehearsal(answer["rehearsal"])
        for warning in answer["warnings"]:
            output.note(f"Warning: {warning}")
    elif args.output == "id":
        print(answer["id"])
    else:
        print(f"Submitted {answer['name']} to {answer['cluster']}: {size(answer)}.")
        print(answer["id"])
        if choice := answer.get("cluster_choice"):
            output.note(choice["summary"])
        if "count" in answer:
            output.note(f"Its jobs: kant jobs --array {answer['id']}")
        else:
            output.note(
                f"See why it waits and when it starts: kant explain {output.short(answer['id'])}"
            )


def _base(api: Api, args: argparse.Namespace) -> dict[str, Any]:
    """Return the document that the flags override: of a file, a job, an array, a template, or {}.

    A job from a template also gets the template's name.
    """
    if args.template is not None:
        found = template_of(api, args.template)
        return {"name": found["name"], **found["document"]}
    if args.like is None:
        return {} if args.file is None else read(args.file)
    document = api.get(f"{address(api, args.like)}/document")
    for field, named in (("after", args.after), ("after_ok", args.after_ok)):
        if named is None and field in document:
            document[field] = [one for one in document[field] if _is_there(api, field, one)]
    return document


def _is_there(api: Api, field: str, job_id: str) -> bool:
    """Whether the job or array can be waited for; prints a note if not."""
    try:
        address(api, job_id)
    except ClientError as error:
        if error.code != NOT_FOUND:
            raise
        output.note(f"Left out: {field} {job_id}, which is deleted, or which you may not see.")
        return False
    return True


def _rehearsal(said: dict[str, Any]) -> None:
    """Print whether the job would start now; if not, why, when, and what would start instead."""
    if said["outlook"] != "never":  # the warnings say why
        print(said["summary"])
    start, ahead = said["start"], said["position"]
    output.pairs((
        *((f"quota of {terms['gpu_type']}", _terms(terms)) for terms in said["quota"]),
        ("ahead", None if ahead is None else f"{ahead - 1} waiting"),
        ("start", start and start["text"]),
        ("expected", start and output.when(start["at"])),
        ("numbers", _numbers(said)),
        ("as of", output.when(said["as_of"])),
    ))  # fmt: skip
    for other in said["alternatives"]:
        print(f"would start now: {other['text']}")
    for remedy in said["remedies"]:
        print(f"try: {remedy}")


def _terms(terms: dict[str, Any]) -> str:
    if not (terms["most"] or terms["guaranteed"]):
        return f"{terms['tenant']} has none"
    used, guaranteed = output.number(terms["used"]), output.number(terms["guaranteed"])
    text = f"{terms['tenant']} uses {used} of {guaranteed}"
    if terms["left"] < terms["asked"]:
        left, asked = output.number(terms["left"]), output.number(terms["asked"])
        return f"{text}; may take {left} of {asked} now"
    return f"{text}; would borrow {output.number(terms['borrows'])}" if terms["borrows"] else text


def only_tenant(api: Api, advice: str) -> str:
    """Return the tenant that the user is a member of.

    Raises ClientError with the advice if there are several or none.
    """
    names = [m["tenant"] for m in api.get("me")["memberships"]]
    if len(names) != 1:
        known = f" You are a member of {', '.join(sorted(names))}." if names else ""
        raise usage(f"{advice}{known}")
    return str(names[0])


def size(job: dict[str, Any]) -> str:
    """Return the size of a job or array: number of jobs (for an array) and GPUs."""
    jobs = ""
    if "count" in job:
        jobs = f"{job['count']} job{'' if job['count'] == 1 else 's'}, "
    gpus = output.number(job["gpus"])
    if gpus == "0":
        return f"{jobs}without GPUs"
    return f"{jobs}{gpus} GPU{'' if gpus == '1' else 's'}"


def jobs(api: Api, args: argparse.Namespace) -> None:
    names = ("tenant", "queue", "user", "cluster", "state", "kind", "reason", "gpu_type",
             "min_gpus", "max_gpus", "array", "q")  # fmt: skip
    query = {name: getattr(args, name) for name in names}
    if args.all:
        found = list(api.items("jobs", query))
    else:
        page = api.get("jobs", {**query, "limit": args.limit})
        found = page["items"]
        if page["next"] is not None:
            output.note(f"The newest {len(found)}; --all shows all.")
    if args.output == "id":
        for job in found:
            print(job["id"])
        return
    heads = ("ID", "NAME", "TENANT", "USER", "STATE", "REASON", "GPUS", "TYPES", "AGE")
    output.listed(args.output, found, heads, _row, "No such jobs.")


def _row(job: dict[str, Any]) -> tuple[object, ...]:
    types = dict.fromkeys(t for pods in job["pod_sets"] for t in pods["gpu_types"])
    return (
        output.short(job["id"]), job["name"], job["tenant"], job["user"], job["state"],
        job["reason"], output.number(job["gpus"]), list(types), output.ago(job["submitted_at"]),
    )  # fmt: skip


def show(api: Api, args: argparse.Namespace) -> None:
    path = address(api, args.job)
    job = api.get(path)
    if args.output == "json":
        output.document(job)
        return
    times = ("submitted_at", "admitted_at", "bound_at", "running_at", "ended_at")
    fields = {name: value for name, value in job.items() if name != "pod_sets"}
    fields |= {name: output.when(job[name]) for name in times if name in job}
    if "restarts" in fields:  # arrays have none
        fields["restarts"] = f"{fields['restarts']} of {fields.pop('max_restarts')}"
    if pod := job.get("pod"):
        of_gang = f", first of gang {pod['gang']}" if pod["gang"] else ""
        fields["pod"] = f"{pod['namespace']}/{pod['name']}{of_gang}"
    if choice := fields.pop("cluster_choice", None):
        fields["cluster"] = f"{job['cluster']}: {choice['summary']}"
    if "start_estimate" in fields:  # arrays have none
        fields["starts"] = _starts(fields.pop("start_estimate"))
    if use := fields.pop("gpu_use", None):
        idle = f"{use['idle_gpu_hours']:.2f} of {use['measured_gpu_hours']:.2f} GPU-hours idle"
        fields["gpus busy"] = f"{100 * use['busy']:.0f} %, {idle}"
    output.pairs((name, output.value(value)) for name, value in fields.items())
    for pods in job.get("pod_sets", ()):
        print()
        fields = {**pods, "volumes": [_volume(volume) for volume in pods["volumes"]]}
        secrets = pods["env_from_secrets"].items()
        fields["env_from_secrets"] = {n: f"{s['secret']}/{s['key']}" for n, s in secrets}
        fields["device_claims"] = {n: _claim(c) for n, c in pods["device_claims"].items()}
        rights = pods["security_context"].items()
        fields["security_context"] = {n: output.value(v) for n, v in rights if v is not None}
        for name in ("init_containers", "sidecars"):
            fields[name] = {each["name"]: each["image"] for each in pods[name]}
        fields["probes"] = ", ".join(pods["probes"])
        fields["node_affinity"] = " or ".join(map(_term, pods["node_affinity"]))
        if not pods["gpus"]:
            del fields["gpu_milli"]
        output.pairs((name, output.value(value)) for name, value in fields.items() if value != 0)


def _term(term: dict[str, Any]) -> str:
    """Return a term as "zone In a, b and metadata.name NotIn node-17"."""
    expressions = (*term["match_expressions"], *term["match_fields"])
    texts = (f"{e['key']} {e['operator']} {', '.join(e['values'])}" for e in expressions)
    return " and ".join(text.strip() for text in texts)


def _volume(volume: dict[str, Any]) -> str:
    kinds = ("persistent_volume_claim", "config_map", "secret")
    source = next(f"{kind} {volume[kind]}" for kind in kinds if volume[kind])
    return f"{source} at {volume['mount_path']}{' (read-only)' if volume['read_only'] else ''}"


def _claim(claim: dict[str, Any]) -> str:
    """Return a claim in the form of the flag."""
    if claim["template"]:
        return f"template/{claim['template']}"
    count = f":{claim['count']}" if claim["count"] else ""
    return WHERE.join([f"{claim['device_class']}{count}", *(claim["selectors"] or ())])


def explain(api: Api, args: argparse.Namespace) -> None:
    answer = api.get(f"{only_job(api, args.job)}/explain")
    if args.output == "json":
        output.document(answer)
        return
    reason = f": {answer['reason']}" if answer["reason"] else ""
    print(f"{answer['state']}{reason}")
    if answer["summary"]:
        print(answer["summary"])
    if halted := _standstill(answer):
        print(halted)
    print()
    start, reservation, growth = answer["start"], answer["reservation"], answer["growth"]
    marks = {True: "✓", False: "✗", None: "·"}
    output.pairs((
        ("since", f"{output.when(answer['since'])} ({output.ago(answer['since'])})"
         if answer["since"] else None),
        ("gates", "  ".join(f"{marks[g['ok']]} {g['gate']}" for g in answer["gates"])),
        ("place in the queue", answer["position"]),
        ("start", start and start["text"]),
        ("expected", start and output.when(start["at"])),
        ("on nodes", reservation and reservation["nodes"]),
        ("numbers", _numbers(answer)),
        ("pods", growth and f"{growth['has']} of {growth['asked']}"),
        ("why no more", growth and growth["summary"]),
    ))  # fmt: skip
    for remedy in answer["remedies"]:
        print(f"try: {remedy}")
    if answer["ahead"]:
        print()
        rows = (
            (output.short(other["job"] or "-"), other["name"] or "(of another tenant)",
             other["tenant"], output.number(other["gpus"]))
            for other in answer["ahead"][:SHOWN_AHEAD]
        )  # fmt: skip
        output.table(("AHEAD", "NAME", "TENANT", "GPUS"), rows, "")
        if (more := len(answer["ahead"]) - SHOWN_AHEAD) > 0:
            output.note(f"… and {more} more")


def eta(api: Api, args: argparse.Namespace) -> None:
    """Show when a waiting job is expected to start."""
    job = api.get(only_job(api, args.job))
    told = job["start_estimate"]
    if args.output == "json":
        output.document(told)
        return
    if told is None:
        print(f"{job['name']} does not wait: {job['state']}")
        return
    if told["p50"] is None:
        if told["earliest"]:
            print(f"Nine in ten after {output.when(told['earliest'])}. {told['reason']}")
        else:
            print(f"No estimate: {told['reason']}")
        return
    if told["overdue"]:
        print(f"Overdue: it was expected to start before {output.when(told['p90'])}")
    output.pairs((
        ("one in ten before", output.when(told["p10"])),
        ("half before", output.when(told["p50"])),
        ("nine in ten before", output.when(told["p90"])),
        ("by", told["basis"]),
        ("its own run time", told["text"]),
        ("as of", f"{output.when(told['as_of'])} ({output.ago(told['as_of'])})"),
    ))  # fmt: skip


def _starts(told: dict[str, Any] | None) -> str:
    """Return a start estimate in one line; `kant eta` shows more."""
    if told is None:
        return ""
    if told["p50"] is None:
        return (
            f"hardly before {output.when(told['earliest'])}"
            if told["earliest"]
            else f"no estimate: {told['reason']}"
        )
    if told["overdue"]:
        return f"overdue; expected before {output.when(told['p90'])}"
    return f"between {output.when(told['p10'])} and {output.when(told['p90'])}"


def _numbers(told: dict[str, Any]) -> str:
    return "; ".join(f"{it['label']}: {it['text']}" for it in told["numbers"])


def _standstill(answer: dict[str, Any]) -> str:
    why = answer["standstill"]
    return f"Scheduling of this job has stopped. {why}" if why else ""


def pods(api: Api, args: argparse.Namespace) -> None:
    def row(p: dict[str, Any]) -> tuple[object, ...]:
        where = (p["node"], p["devices"], p["nics"])
        return p["pod_name"], p["namespace"], p["attempt"], *where, p["state"], p["message"]

    heads = ("POD", "NAMESPACE", "ATTEMPT", "NODE", "GPUS", "NICS", "STATE", "MESSAGE")
    found = list(api.items(f"{only_job(api, args.job)}/pods"))
    output.listed(args.output, found, heads, row, "The job has no pods yet.")


def events(api: Api, args: argparse.Namespace) -> None:
    def row(e: dict[str, Any]) -> tuple[object, ...]:
        what = (e["kind"], e["to_state"], e["reason"], e["message"])
        return output.when(e["at"]), *what, e["actor"]

    heads = ("WHEN", "EVENT", "STATE", "REASON", "MESSAGE", "BY")
    found = list(api.items(f"{only_job(api, args.job)}/events"))
    output.listed(args.output, found, heads, row, "Nothing yet.")


def wait(api: Api, args: argparse.Namespace) -> None:
    """Wait until the job runs or has ended; exit code 1 if it failed, 5 if it will never run."""
    path = only_job(api, args.job)
    until = ENDED if args.until == "end" else ENDED | {"RUNNING"}
    deadline = None if args.timeout is None else time.monotonic() + args.timeout
    told = None
    while (job := api.get(path))["state"] not in until:
        now = (job["state"], job["reason"])
        if now != told:
            told = now
            output.note(" ".join(filter(None, (*now, job["message"]))))
            answer = api.get(f"{path}/explain")
            if answer["will_never_run"]:
                raise ClientError(NEVER_RUNS, f"{job['name']} will never run: {job['message']}")
            if halted := _standstill(answer):
                output.note(halted)
        if deadline is not None and time.monotonic() + POLL_S > deadline:
            raise ClientError(TIMED_OUT, f"{job['name']} is {job['state']} after {args.timeout} s.")
        time.sleep(POLL_S)
    if args.output == "json":
        output.document(job)
    else:
        print(job["state"])
    if job["state"] in ("FAILED", "CANCELLED"):
        raise ClientError(FAILED, f"{job['name']}: {job['message'] or job['state']}")


def act(api: Api, args: argparse.Namespace) -> None:
    """Cancel, hold or release jobs; try all of them; the first error gives the exit code."""
    if args.preview:
        preview(api, args, args.verb)
        return
    each(api, args, lambda path: api.post(f"{path}/{args.verb}"))


def change(api: Api, args: argparse.Namespace) -> None:
    fields = given(args, CHANGEABLE)
    if not fields:
        raise usage("Nothing to change. See: kant change --help")
    if args.preview:
        preview(api, args, "change", changes=fields)
        return
    each(api, args, lambda path: api.patch(path, fields))


def preview(api: Api, args: argparse.Namespace, act: str, **more: Any) -> None:
    """Show what an action on jobs, or on an array, would do to all jobs.

    Jobs that would refuse it are named.
    """
    paths = [address(api, text) for text in args.jobs]
    if any(path.startswith("job-arrays/") for path in paths):
        if len(paths) > 1:
            raise usage("Preview an array by itself: a preview of several jobs cannot include it.")
        query = {"dry_run": "true"}
        told = (
            api.patch(paths[0], more["changes"], query)
            if act == "change"
            else api.post(f"{paths[0]}/{act}", None, query)
        )
        effects.say(args, told["effects"])
        return
    ids = [path.rsplit("/", 1)[-1] for path in paths]
    answer = api.post("jobs:act", {"act": act, "ids": ids, **more}, {"dry_run": "true"})
    for one in answer["result"]["answers"]:
        if one["problem"] is not None:
            output.note(f"{output.short(one['id'])}: {one['problem']['detail']}")
    effects.say(args, answer["effects"])
    if answer["result"]["refused"]:
        raise ClientError(FAILED, f"{answer['result']['refused']} of {len(ids)} would be refused.")


def scale(api: Api, args: argparse.Namespace) -> None:
    """Change the pod counts of a job: of its only pod set, or of pod sets by name."""
    path = only_job(api, args.job)
    names = [pods["name"] for pods in api.get(path)["pod_sets"]]
    sizes = []
    for name, count in args.counts:
        if name is None and len(names) > 1:
            each = " ".join(f"{known}=N" for known in names)
            raise usage(f"The job has several pod sets. Name the ones to scale: {each}")
        sizes.append({"name": name or names[0], "count": count})
    if args.min_count is not None:
        if len(sizes) > 1:
            raise usage("With --min-count, name one pod set.")
        sizes[0]["min_count"] = args.min_count
    if args.preview:
        effects.say(args, api.patch(path, {"pod_sets": sizes}, {"dry_run": "true"})["effects"])
        return
    job = api.patch(path, {"pod_sets": sizes})
    if args.output == "json":
        output.document(job)
        return
    pods = " ".join(f"{pods['name']}={pods['count']}" for pods in job["pod_sets"])
    print(f"{job['name']} asks for {pods}: {size(job)}.")
    output.note(f"See its progress: kant explain {output.short(job['id'])}")


def count_of(text: str) -> tuple[str | None, int]:
    """Parse "12" or "server=12": the pod set (None = the only one) and its count.

    Raises ArgumentTypeError.
    """
    name, _, count = text.rpartition("=")
    if not re.fullmatch("[0-9]{1,18}", count) or (not name and "=" in text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count, e.g. 12 or server=12")
    return name or None, int(count)


def each(api: Api, args: argparse.Namespace, do: Any) -> None:
    """Call `do` with the path of each job in the arguments; try all, then raise the first error."""
    done, failed = [], list[ClientError]()
    for text in args.jobs:
        try:
            done.append(do(address(api, text)))
        except ClientError as error:
            failed.append(error)
    if args.output == "json":
        output.document(done)
    else:
        _say(done)
    if failed:
        raise ClientError(failed[0].code, *(line for error in failed for line in error.lines))


def _say(done: Iterable[dict[str, Any]]) -> None:
    for thing in done:
        state = thing.get("state") or ", ".join(f"{n} {s}" for s, n in thing["states"].items() if n)
        held = " (held)" if thing.get("held") else ""
        print(f"{output.short(thing['id'])}  {thing['name']}  {state}{held}")
