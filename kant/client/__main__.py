"""`kant`: read the arguments, run one command, end with its exit code."""

import argparse
import getpass
import os
import socket
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

from kant.client import (
    account,
    batch,
    completion,
    jobs,
    logs,
    organisation,
    output,
    places,
    queues,
    replays,
    submission,
    template_names,
    templates,
    tokens,
    usage,
    webhooks,
)
from kant.client.account import ClientAccount
from kant.client.api import Api
from kant.client.errors import EXIT_CODES, FAILED, ClientError
from kant.client.errors import usage as wrong_usage
from kant.client.flags.examples import add_examples
from kant.client.flags.numbers import Parser
from kant.client.previews import defrag, nodes
from kant.client.quota import drafts, orders
from kant.client.state import happened, past, snapshot, standing, top

INTERRUPTED = 130
TOKEN_DAYS = 90


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code (errors.py)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == [completion.ASK]:  # a shell completes a line
        for value, meaning in completion.candidates(_parser(), words[1:] or [""], VALUES):
            print(value, meaning, sep="\t")
        return 0
    args = _parser().parse_args(words)
    try:
        args.run(args)
    except ClientError as error:
        for line in error.lines:
            output.note(line)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader has enough, e.g. `kant jobs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def login(args: argparse.Namespace) -> None:
    """Get an API token with user name and password, and keep it for later commands."""
    url = (args.url or os.environ.get("KANT_URL") or account.DEFAULT_URL).rstrip("/")
    if not sys.stdin.isatty() and args.user is None:
        raise wrong_usage("Give the user name with --user; the password is read from stdin.")
    user = args.user or input(f"User name at {urlsplit(url).netloc or url}: ")
    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    api = Api(ClientAccount(url, ""), password=(user, password))
    ends = datetime.now(timezone.utc) + timedelta(days=TOKEN_DAYS)
    name = f"kant on {socket.gethostname()}"[:100]
    made = api.post("tokens", {"name": name, "expires_at": ends.isoformat()})
    if made["secret"] is None:  # the answer with the secret was lost
        raise ClientError(FAILED, "The answer with the token was lost. Run kant login again.")
    account.keep(ClientAccount(url, made["secret"]))
    print(f"Signed in to {url} as {user}, for {TOKEN_DAYS} days.")


def logout(_args: argparse.Namespace) -> None:
    """Revoke the kept token; forget it even if Kant does not answer."""
    known = account.kept()
    if known is None:
        output.note("Nobody was signed in.")
        return
    try:
        api = Api(known)
        for token in api.items("tokens"):
            if known.token.startswith(token["prefix"]):
                api.delete(f"tokens/{token['id']}")
    finally:
        account.forget()
    print(f"Signed out of {known.url}.")


def whoami(api: Api, args: argparse.Namespace) -> None:
    me = api.get("me")
    if args.output == "json":
        output.document(me)
        return
    roles = [f"{m['tenant']} ({m['role']})" for m in me["memberships"]]
    rights = "operator" if me["is_operator"] else None
    output.pairs((("user", me["username"]), ("rights", rights), ("tenants", roles)))


def _parser() -> argparse.ArgumentParser:
    # For `kubectl kant`, kubectl runs a file with this prefix.
    as_plugin = os.path.basename(sys.argv[0]).startswith("kubectl-")
    parser = Parser(
        "kubectl kant" if as_plugin else "kant",
        description="Submit jobs to Kant and see why they wait.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, run: Any, text: str, formats: Sequence[str], of: Any = commands
    ) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = of.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + "."
        )
        made.set_defaults(run=lambda args: run(Api(account.current()), args))
        if formats:
            text = f"how to print it (default: {formats[0]})"
            made.add_argument("-o", "--output", choices=formats, default=formats[0], help=text)
        return made

    both = ("table", "json")
    sign_in = command("login", None, "sign in and keep the token for later commands", ())
    sign_in.set_defaults(run=login)
    sign_in.add_argument("url", nargs="?", help=f"address of Kant (default: {account.DEFAULT_URL})")
    sign_in.add_argument("-u", "--user", help="user name (default: ask for it)")
    command("logout", None, "revoke the token and delete it here", ()).set_defaults(run=logout)
    command("whoami", whoami, "show who is signed in and what they may do", both)

    submission.add_flags(command("submit", jobs.submit, "submit a job", ("text", "id", "json")))
    many = command("submit-many", batch.submit_many, "submit the jobs in a file",
                   ("table", "id", "json"))  # fmt: skip
    batch.add_flags(many)
    templates.add_commands(command, both)
    listed = command("jobs", jobs.jobs, "list jobs, the newest first", ("table", "id", "json"))
    _filters(listed)
    for name, run, text in (
        ("show", jobs.show, "show what a job asks for, and its times"),
        ("explain", jobs.explain, "show why a job waits and when it will start"),
        ("eta", jobs.eta, "estimate when a waiting job will start"),
        ("pods", jobs.pods, "show where the pods of a job are, with their GPUs and NICs"),
    ):
        command(name, run, text, both).add_argument("job", metavar="JOB", help=JOB)
    text = "show what happened to a job, or to everything that you may see"
    happened.add_flags(command("events", happened.events, text, both))
    text = "show why jobs wait, by reason and GPU type"
    standing.add_pending_flags(command("pending", standing.pending, text, both))
    text = "show who borrows whose guarantee, and who wants it back"
    standing.add_loan_flags(command("loans", standing.loans, text, both))
    text = "show who leads each cluster and shard, how busy it is, and what is left to do"
    standing.add_scheduler_flags(command("schedulers", standing.schedulers, text, both))
    text = "show what was allocated on a cluster, and who waited, at a time in the past"
    past.add_flags(command("past", past.past, text, both))
    printed = command(
        "logs", logs.logs, "show what the pods of a job print, as long as the pods exist", ()
    )
    printed.add_argument("job", metavar="JOB", help=JOB)
    logs.add_flags(printed, submission.duration_s)
    waits = command("wait", jobs.wait, "wait until a job runs, or has ended", both)
    waits.add_argument("job", metavar="JOB", help=JOB)
    waits.add_argument("--until", choices=("end", "running"), default="end",
                       help="what to wait for (default: end)")  # fmt: skip
    waits.add_argument("--timeout", type=submission.duration_s, metavar="TIME",
                       help="wait no longer than this, e.g. 10m (default: no limit)")  # fmt: skip
    for verb, text in (
        ("cancel", "cancel jobs or arrays"),
        ("hold", "hold waiting jobs: they do not start until released"),
        ("release", "release held jobs: they may start again"),
    ):
        acts = command(verb, jobs.act, text, both)
        acts.set_defaults(verb=verb)
        acts.add_argument("jobs", nargs="+", metavar="JOB", help=JOB)
        acts.add_argument("--preview", action="store_true", help=PREVIEW)
    changes = command(
        "change", jobs.change, "change waiting jobs; for running jobs only the times", both
    )
    changes.epilog = f"{submission.NONE} removes a time or a limit."
    changes.add_argument("jobs", nargs="+", metavar="JOB", help=JOB)
    changes.add_argument("--preview", action="store_true", help=PREVIEW)
    submission.add_changeable(changes)

    scales = command(
        "scale", jobs.scale, "change how many pods a job has, also while it runs", both
    )
    scales.add_argument("job", metavar="JOB", help=JOB)
    scales.add_argument(
        "counts", nargs="+", type=jobs.count_of, metavar="COUNT",
        help="number of pods; with several pod sets: NAME=COUNT …",
    )  # fmt: skip
    scales.add_argument("--min-count", type=int, metavar="N",
                        help="fewest pods with which an elastic gang runs")  # fmt: skip
    scales.add_argument("--preview", action="store_true", help=PREVIEW)

    moves = command("move", queues.move, "move waiting jobs to another queue of their tenant", both)
    moves.epilog = "Each job keeps its submission time."
    moves.add_argument("jobs", nargs="+", metavar="JOB", help=JOB)
    moves.add_argument("queue", metavar="QUEUE", help="name of the queue")

    all_queues = command("queues", queues.queues, "list queues and what is in them", both)
    all_queues.add_argument("-t", "--tenant", help="only of this tenant")
    all_queues.add_argument("-s", "--state", action="append", choices=STATES_OF_QUEUES,
                            help="only in this state; repeat for more")  # fmt: skip
    _queue_commands(commands, command, both)

    quotas = command("quotas", places.quotas, "list quotas and their use", (*both, "csv"))
    quotas.add_argument("-t", "--tenant", help="only of this tenant")
    quotas.add_argument("-G", "--gpu-type", help="only of this GPU type")
    quota = commands.add_parser("quota", help="change quotas", description="Change quotas.")
    actions = quota.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _quota_flags(
        command("set", places.set_quota, "set a quota, or some fields of it", both, actions)
    )
    changed = command(
        "changes", places.quota_changes, "list who changed which quota", both, actions
    )
    changed.add_argument("-t", "--tenant", help="only of this tenant")
    changed.add_argument("--moves", action="store_true",
                         help="changes of tenants instead: place, weight, …")  # fmt: skip
    changed.add_argument(
        "--limit", type=int, default=20, metavar="N", help="at most this many (default: 20)"
    )
    reverted = command(
        "revert",
        places.revert_quota,
        "revert a change of a quota or tenant",
        both,
        actions,
    )
    reverted.add_argument("change", metavar="ID", help="id of the change, or its beginning")
    _written(reverted)
    draft = actions.add_parser("draft", help=drafts.DRAFT,
                               description=f"{drafts.DRAFT.capitalize()}.")  # fmt: skip
    drafted = draft.add_subparsers(title="commands", metavar="COMMAND", required=True)
    drafts.add_flags(command, drafted, both)
    order = actions.add_parser("order", help=ORDERS, description=f"{ORDERS.capitalize()}.")
    ordered = order.add_subparsers(title="commands", metavar="COMMAND", required=True)
    orders.add_flags(command, actions, ordered, both)
    clusters = command(
        "clusters", places.clusters, "list clusters, or show one and its policy", both
    )
    clusters.add_argument("cluster", nargs="?", help="name of a cluster: shows its policy, too")
    found = command(
        "nodes", places.nodes, "list the nodes of a cluster and what is allocated", both
    )
    found.add_argument("cluster", nargs="?", help="name of the cluster, if there are several")
    found.add_argument("--leaf", help="only the nodes below this leaf")
    found.add_argument("-G", "--gpu-type", help="only the nodes with this GPU type")
    _node_commands(command, both)
    text = "show who holds GPUs and who waits for more, or how full each node is"
    top.add_flags(command("top", top.top, text, (*both, "csv")))
    text = "write what a scheduler knows about its cluster to a file, e.g. for a bug report"
    snapshot.add_flags(command("snapshot", snapshot.snapshot, text, ()))
    used = command("usage", usage.usage, "show the GPU-hours of tenants and users", (*both, "csv"))
    usage.add_flags(used)
    replay = commands.add_parser("replay", help=REPLAYS, description=f"{REPLAYS.capitalize()}.")
    tries = replay.add_subparsers(title="commands", metavar="COMMAND", required=True)
    with_ids = ("table", "id", "json")
    text = "start a replay, follow it, and show both runs side by side"
    replays.add_flags(command("start", replays.start, text, with_ids, tries))
    asked = command("list", replays.listed, "list replays, the newest first", with_ids, tries)
    asked.add_argument("-c", "--cluster", help="only of this cluster")
    asked.add_argument("-s", "--state", action="append", type=str.upper, choices=replays.STATES,
                       help="only in this state; repeat for more")  # fmt: skip
    asked.add_argument(
        "--limit", type=int, default=20, metavar="N", help="at most this many (default: 20)"
    )
    one = command(
        "show", replays.show, "show the progress of a replay, or its result", with_ids, tries
    )
    one.add_argument("replay", metavar=replays.REPLAY, help=REPLAY)
    one.add_argument("--wait", action="store_true", help="wait for its result")
    ends = command("cancel", replays.cancel, "cancel replays that wait or run", with_ids, tries)
    ends.add_argument("replays", nargs="+", metavar=replays.REPLAY, help=REPLAY)
    text = "change tenants, quotas, queues, policies, … to what a file says"
    applies = command("apply", organisation.apply, text, both)
    organisation.add_file(applies)
    _written(applies)
    text = "show what `kant apply` would change"
    organisation.add_file(command("diff", organisation.diff, text, both))
    text = "print the whole organisation as a file for `kant apply`"
    command("export", organisation.export, text, ("yaml", "json"))
    token = commands.add_parser("token", help=TOKENS, description=f"{TOKENS.capitalize()}.")
    kinds = token.add_subparsers(title="commands", metavar="COMMAND", required=True)
    text = "create a token and print its secret, which is shown only once"
    tokens.add_flags(command("create", tokens.create, text, ("text", "json"), kinds))
    kept = command(
        "list", tokens.listed, "list your tokens, and when each was last used", both, kinds
    )
    kept.add_argument("--all", action="store_true", help="list revoked tokens, too")
    gone = command(
        "revoke", tokens.revoke, "revoke tokens, and tokens created with them", (), kinds
    )
    gone.add_argument("tokens", nargs="+", type=int, metavar="ID", help="id of a token")
    told = commands.add_parser("webhooks", help=HOOKS, description=f"{HOOKS.capitalize()}.")
    hooks = told.add_subparsers(title="commands", metavar="COMMAND", required=True)
    webhooks.add_commands(command, hooks, _written, both)
    text = "print a script for completion in your shell"
    shells = commands.add_parser("completion", help=text, description=f"{text.capitalize()}.")
    shells.set_defaults(run=completion.script)
    shells.add_argument("shell", choices=tuple(completion.SCRIPTS), help="the shell that you use")
    add_examples(parser)
    return parser


QUEUE = "create, change, hold, drain and delete queues"
ORDERS = "show, approve, call off, end or keep a planned or temporary change of quotas"
HOOKS = "send events to other programs or a Slack channel"
TOKENS = "create, list and revoke API tokens"
JOB = "id of the job, its beginning, or the name"
PREVIEW = "show the effect on jobs; change nothing"
REPLAY = "id of the replay, or its beginning"
REPLAYS = "replay a cluster's history with another policy, other nodes or other quotas"
# By metavar: functions that complete values other than the parser's choices.
VALUES = {
    "JOB": jobs.named,
    submission.TEMPLATE: template_names.named,
    queues.QUEUE: queues.full_names,
    submission.TIME_OR_NONE: submission.none_for,
    submission.WHEN_OR_NONE: submission.none_for,
    usage.BY: usage.keys,
    replays.REPLAY: replays.named,
    replays.FIELD: replays.settings,
    replays.SHAPE: replays.shapes,
    replays.CELL: replays.cells,
}


STATES_OF_QUEUES = ("open", "held", "draining", "closed")


def _queue_commands(commands: Any, command: Any, both: Sequence[str]) -> None:
    queue = commands.add_parser("queue", help=QUEUE, description=f"{QUEUE.capitalize()}.")
    actions = queue.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def of_queue(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = command(name, run, text, both, actions)
        made.add_argument("queue", metavar=queues.QUEUE, help=queues.NAMED)
        return made

    of_queue("show", queues.show, "show a queue, its settings and what is in it")
    for verb, text in (
        ("hold", "start no waiting jobs of a queue; running jobs go on"),
        ("release", "let jobs of a held queue start again"),
        ("drain", "accept no new jobs; jobs in the queue still start and run"),
        ("close", "accept no new jobs"),
        ("open", "accept jobs and start them"),
    ):
        acts = of_queue(verb, queues.act, text)
        acts.set_defaults(verb=verb)
        _written(acts, required=False)
        acts.add_argument("--preview", action="store_true", help=PREVIEW)
    made = of_queue("create", queues.create, "create a queue")
    changed = of_queue("set", queues.set_queue, "change settings of a queue")
    for parser in (made, changed):
        queues.add_settings(parser, new=parser is made)
        _written(parser, required=False)
    changed.add_argument("--preview", action="store_true", help=PREVIEW)
    _written(of_queue("delete", queues.delete, "delete a queue; all its jobs must be over"))
    text = "list the waiting jobs of a cluster in the order of its scheduler"
    order = command("global", queues.global_queue, text, both, actions)
    order.add_argument("cluster", nargs="?", help="name of the cluster, if there are several")
    order.add_argument("-G", "--gpu-type", help="only jobs that accept this GPU type")
    order.add_argument("--scope", metavar="SHARD", help="only jobs of this shard of the cluster")
    order.add_argument(
        "--limit", type=int, default=20, metavar="N", help="at most this many (default: 20)"
    )
    order.add_argument("--all", action="store_true", help="no limit")
    record = command("changes", queues.changes, "list who changed which queue", both, actions)
    record.add_argument("-t", "--tenant", help="only of this tenant")
    record.add_argument(
        "--limit", type=int, default=20, metavar="N", help="at most this many (default: 20)"
    )
    reverted = command("revert", queues.revert, "revert a change of a queue", both, actions)
    reverted.add_argument("change", metavar="ID", help="id of the change, or its beginning")
    _written(reverted)


def _node_commands(command: Any, both: Sequence[str]) -> None:
    for verb, text in (
        ("cordon", "start no new pods on nodes; running pods stay"),
        ("drain", "start no new pods on nodes, and wait for or move their jobs"),
        ("uncordon", "start pods on nodes again; ends a drain"),
    ):
        acts = command(verb, nodes.act, text, both)
        acts.set_defaults(verb=verb)
        nodes.add_nodes(acts, "name of a node")
        if verb == "drain":
            nodes.add_choice(acts)
            acts.add_argument(
                "--deadline", type=nodes.deadline, metavar="WHEN",
                help="time after which running jobs must leave: 0s, 2h or a time (default: jobs "
                "may finish)",
            )  # fmt: skip
    defrag.add_flags(
        command(
            "defrag",
            defrag.defrag,
            "free whole nodes by moving jobs; shows the cost first",
            both,
        )
    )
    more = command(
        "capacity", nodes.capacity, "preview what more or fewer nodes would do to jobs", both
    )
    which = more.add_mutually_exclusive_group(required=True).add_argument
    which("--add", type=int, metavar="N", help="add this many nodes")
    which("--remove", type=int, metavar="N", help="remove this many nodes, the cheapest to remove")
    more.add_argument("-G", "--gpu-type", required=True, help="GPU type of the nodes")
    more.add_argument("-c", "--cluster", help="name of the cluster, if there are several")


def _quota_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a quota; settings that are not given stay the same."""
    flag = parser.add_argument
    flag("tenant", metavar="TENANT", help="name of the tenant")
    flag("gpu_type", metavar="GPU_TYPE", help="GPU type of the quota")
    flag(
        "--guaranteed", type=places.amount, metavar="GPUS", help="GPUs that the tenant always gets"
    )
    flag(
        "--borrow-limit",
        type=places.limit,
        metavar="GPUS",
        help=f"most GPUs that it may borrow, or {places.NO_LIMIT}",
    )
    flag(
        "--lend-limit",
        type=places.limit,
        metavar="GPUS",
        help=f"most GPUs that it may lend, or {places.NO_LIMIT}",
    )
    flag("--mode", choices=("shared", "isolated"), help="isolated: neither borrows nor lends")
    _written(parser, required=False)
    flag("--preview", action="store_true", help=PREVIEW)


def _written(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    flag = parser.add_argument
    flag("--reason", required=required, metavar="TEXT", help="reason, kept with the change")
    flag("--dry-run", action="store_true", help="check and show the result; change nothing")


def _filters(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("-t", "--tenant", help="only this tenant and tenants below it")
    flag("--queue", metavar="NAME", help="only in queues with this name")
    flag("-u", "--user", help="only by this user; me: yours")
    flag("-c", "--cluster", help="only on this cluster")
    flag(
        "-s", "--state", action="append", type=str.upper,
        help="only in this state, e.g. pending or running; repeat for more",
    )  # fmt: skip
    flag("--kind", help="only of this kind: training, inference or development")
    flag("--reason", help="only with this reason, e.g. FragmentedCapacity")
    flag("-G", "--gpu-type", help="only jobs that accept this GPU type")
    flag("--min-gpus", metavar="N", help="only with at least this many GPUs")
    flag("--max-gpus", metavar="N", help="only with at most this many GPUs")
    flag("--array", metavar="ID", help="only of this array")
    flag("-q", metavar="TEXT", help="only with this text in the name, or at the start of the id")
    flag("--limit", type=int, default=50, metavar="N", help="at most this many (default: 50)")
    flag("--all", action="store_true", help="no limit")


if __name__ == "__main__":
    sys.exit(main())
