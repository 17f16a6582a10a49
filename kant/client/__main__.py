"""`kant`: reads the arguments, runs one command, ends with its exit code."""

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
    tokens,
    usage,
)
from kant.client.account import ClientAccount
from kant.client.api import Api
from kant.client.errors import EXIT_CODES, FAILED, ClientError
from kant.client.errors import usage as wrong_usage
from kant.client.previews import defrag, nodes
from kant.client.quota import drafts, orders
from kant.client.state import happened, snapshot, standing, top

INTERRUPTED = 130
TOKEN_DAYS = 90


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code (errors.py)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == [completion.ASK]:  # by the script of a shell; what follows is no command yet
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
    except BrokenPipeError:  # whoever reads has enough, e.g. `kant jobs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def login(args: argparse.Namespace) -> None:
    """Get an API token for user name and password, and keep it for the next commands."""
    url = (args.url or os.environ.get("KANT_URL") or account.DEFAULT_URL).rstrip("/")
    if not sys.stdin.isatty() and args.user is None:
        raise wrong_usage("Say with --user who signs in; the password is read from stdin.")
    user = args.user or input(f"User name at {urlsplit(url).netloc or url}: ")
    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    api = Api(ClientAccount(url, ""), password=(user, password))
    ends = datetime.now(timezone.utc) + timedelta(days=TOKEN_DAYS)
    name = f"kant on {socket.gethostname()}"[:100]
    made = api.post("tokens", {"name": name, "expires_at": ends.isoformat()})
    if made["secret"] is None:  # the answer that had it was lost on its way
        raise ClientError(FAILED, "The token was lost on its way. Run kant login again.")
    account.keep(ClientAccount(url, made["secret"]))
    print(f"Signed in to {url} as {user}, for {TOKEN_DAYS} days.")


def logout(_args: argparse.Namespace) -> None:
    """Revoke the kept token, and forget it whether or not Kant answers."""
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
    # kubectl runs what is called so for `kubectl kant`.
    as_plugin = os.path.basename(sys.argv[0]).startswith("kubectl-")
    parser = argparse.ArgumentParser(
        "kubectl kant" if as_plugin else "kant",
        description="Submit jobs to Kant, and ask why they wait.",
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
            made.add_argument("-o", "--output", choices=formats, default=formats[0])
        return made

    both = ("table", "json")
    sign_in = command("login", None, "sign in; the token is kept for the next commands", ())
    sign_in.set_defaults(run=login)
    sign_in.add_argument("url", nargs="?", help=f"address of Kant ({account.DEFAULT_URL})")
    sign_in.add_argument("-u", "--user", help="user name; asked for if not given")
    command("logout", None, "revoke the token and forget it", ()).set_defaults(run=logout)
    command("whoami", whoami, "who is signed in, with which rights", both)

    submission.add_flags(command("submit", jobs.submit, "submit a job", ("text", "id", "json")))
    many = command("submit-many", batch.submit_many, "submit the jobs in a file",
                   ("table", "id", "json"))  # fmt: skip
    batch.add_flags(many)
    listed = command("jobs", jobs.jobs, "list jobs, the newest first", ("table", "id", "json"))
    _filters(listed)
    for name, run, text in (
        ("show", jobs.show, "everything a job asked for, and its times"),
        ("explain", jobs.explain, "why a job waits, and when it will start"),
        ("eta", jobs.eta, "when a waiting job is expected to start, and how sure that is"),
        ("pods", jobs.pods, "where the pods of a job are, down to their GPUs and NICs"),
    ):
        command(name, run, text, both).add_argument("job", metavar="JOB", help=JOB)
    text = "what happened to a job, or to all that you may see"
    happened.add_flags(command("events", happened.events, text, both))
    text = "why GPUs are waited for, by reason and GPU type"
    standing.add_pending_flags(command("pending", standing.pending, text, both))
    text = "who borrows whose guarantee now, and who wants it back"
    standing.add_loan_flags(command("loans", standing.loans, text, both))
    printed = command("logs", logs.logs, "what the pods of a job print, while they are there", ())
    printed.add_argument("job", metavar="JOB", help=JOB)
    logs.add_flags(printed, submission.duration_s)
    waits = command("wait", jobs.wait, "wait until a job has ended, or runs", both)
    waits.add_argument("job", metavar="JOB", help=JOB)
    waits.add_argument("--until", choices=("end", "running"), default="end")
    waits.add_argument("--timeout", type=submission.duration_s, metavar="TIME", help="e.g. 10m")
    for verb, text in (
        ("cancel", "end jobs or arrays"),
        ("hold", "keep waiting jobs from being started"),
        ("release", "let held jobs be started"),
    ):
        acts = command(verb, jobs.act, text, both)
        acts.set_defaults(verb=verb)
        acts.add_argument("jobs", nargs="+", metavar="JOB", help=JOB)
    changes = command(
        "change", jobs.change, "change what jobs ask for, of those that run their times", both
    )
    changes.epilog = f"{submission.NONE} takes away a time or limit that was given before."
    changes.add_argument("jobs", nargs="+", metavar="JOB", help=JOB)
    submission.add_changeable(changes)

    scales = command(
        "scale", jobs.scale, "give a job more pods, or fewer, also while it runs", both
    )
    scales.add_argument("job", metavar="JOB", help=JOB)
    scales.add_argument(
        "counts", nargs="+", type=jobs.count_of, metavar="COUNT",
        help="how many pods; of several pod sets each as NAME=COUNT",
    )  # fmt: skip
    scales.add_argument("--min-count", type=int, metavar="N",
                        help="pods that an elastic gang can do with")  # fmt: skip

    moves = command("move", queues.move, "move waiting jobs to another queue of their tenant", both)
    moves.epilog = "They keep their submission time, and so their place among its jobs."
    moves.add_argument("jobs", nargs="+", metavar="JOB", help=JOB)
    moves.add_argument("queue", metavar="QUEUE", help="the name of the queue")

    all_queues = command(
        "queues", queues.queues, "queues of the tenants, and what is in them", both
    )
    all_queues.add_argument("-t", "--tenant", help="of this tenant")
    all_queues.add_argument("-s", "--state", action="append", choices=STATES_OF_QUEUES,
                            help="in this state; repeat for more")  # fmt: skip
    _queue_commands(commands, command, both)

    quotas = command("quotas", places.quotas, "quotas of the tenants, and what is used", both)
    quotas.add_argument("-t", "--tenant", help="of this tenant")
    quotas.add_argument("-G", "--gpu-type", help="of this GPU type")
    quota = commands.add_parser("quota", help="change quotas", description="Change quotas.")
    actions = quota.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _quota_flags(command("set", places.set_quota, "set a quota, or parts of it", both, actions))
    changed = command("changes", places.quota_changes, "who changed which quota", both, actions)
    changed.add_argument("-t", "--tenant", help="of this tenant")
    changed.add_argument("--limit", type=int, default=20, metavar="N", help="how many (20)")
    reverted = command(
        "revert", places.revert_quota, "take back a change of a quota", both, actions
    )
    reverted.add_argument("change", metavar="ID", help="of the change, or the beginning of it")
    _written(reverted)
    draft = actions.add_parser("draft", help=drafts.DRAFT,
                               description=f"{drafts.DRAFT.capitalize()}.")  # fmt: skip
    drafted = draft.add_subparsers(title="commands", metavar="COMMAND", required=True)
    drafts.add_flags(command, drafted, both)
    order = actions.add_parser("order", help=ORDERS, description=f"{ORDERS.capitalize()}.")
    ordered = order.add_subparsers(title="commands", metavar="COMMAND", required=True)
    orders.add_flags(command, actions, ordered, both)
    clusters = command("clusters", places.clusters, "the clusters, or one and its policy", both)
    clusters.add_argument("cluster", nargs="?", help="its name, to see its policy too")
    found = command("nodes", places.nodes, "the nodes of a cluster and what is allocated", both)
    found.add_argument("cluster", nargs="?", help="its name, if there are several")
    _node_commands(command, both)
    text = "who holds GPUs now, who asks for more; or what is held of each node"
    top.add_flags(command("top", top.top, text, (*both, "csv")))
    text = "write all that a cluster is scheduled by to a file, e.g. for a bug report"
    snapshot.add_flags(command("snapshot", snapshot.snapshot, text, ()))
    used = command("usage", usage.usage, "GPU-hours of tenants and users", (*both, "csv"))
    usage.add_flags(used)
    replay = commands.add_parser("replay", help=REPLAYS, description=f"{REPLAYS.capitalize()}.")
    tries = replay.add_subparsers(title="commands", metavar="COMMAND", required=True)
    with_ids = ("table", "id", "json")
    text = "ask for a replay, follow it, and show both runs side by side"
    replays.add_flags(command("start", replays.start, text, with_ids, tries))
    asked = command("list", replays.listed, "the replays, the newest first", with_ids, tries)
    asked.add_argument("-c", "--cluster", help="of this cluster")
    asked.add_argument("-s", "--state", action="append", type=str.upper, choices=replays.STATES,
                       help="in this state; repeat for more")  # fmt: skip
    asked.add_argument("--limit", type=int, default=20, metavar="N", help="how many (20)")
    one = command("show", replays.show, "how far a replay is, or what it found", with_ids, tries)
    one.add_argument("replay", metavar=replays.REPLAY, help=REPLAY)
    one.add_argument("--wait", action="store_true", help="wait until it is over")
    ends = command("cancel", replays.cancel, "end replays that wait or run", with_ids, tries)
    ends.add_argument("replays", nargs="+", metavar=replays.REPLAY, help=REPLAY)
    text = "make the organisation what a file says: tenants, quotas, queues, policies, …"
    applies = command("apply", organisation.apply, text, both)
    organisation.add_file(applies)
    _written(applies)
    text = "what `kant apply` would change"
    organisation.add_file(command("diff", organisation.diff, text, both))
    text = "the whole organisation as a document that `kant apply` takes"
    command("export", organisation.export, text, ("yaml", "json"))
    token = commands.add_parser("token", help=TOKENS, description=f"{TOKENS.capitalize()}.")
    kinds = token.add_subparsers(title="commands", metavar="COMMAND", required=True)
    text = "make a token and print its secret, which is shown this once"
    tokens.add_flags(command("create", tokens.create, text, ("text", "json"), kinds))
    kept = command("list", tokens.listed, "your tokens, and when each was used", both, kinds)
    kept.add_argument("--all", action="store_true", help="also those that are revoked")
    gone = command("revoke", tokens.revoke, "end tokens and those they made", (), kinds)
    gone.add_argument("tokens", nargs="+", type=int, metavar="ID", help="of a token")
    shells = commands.add_parser("completion", help="print what lets a shell complete commands")
    shells.set_defaults(run=completion.script)
    shells.add_argument("shell", choices=tuple(completion.SCRIPTS))
    return parser


QUEUE = "make, hold, drain, change and delete queues"
ORDERS = "look at a planned or temporary change of quotas, call it off, end it, or let it stay"
TOKENS = "make, list and revoke API tokens"
JOB = "id, the beginning of it, or name"
REPLAY = "its id, or the beginning of it"
REPLAYS = (
    "what a cluster's history would have been under another policy, with other nodes or quotas"
)
# By metavar: what knows values that are not among the choices of the parser.
VALUES = {
    "JOB": jobs.named,
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

    of_queue("show", queues.show, "one queue, its settings and what is in it")
    for verb, text in (
        ("hold", "start none of its waiting jobs; what runs goes on"),
        ("release", "start jobs of a held queue again"),
        ("drain", "take no more jobs; those that are there run out"),
        ("close", "take no more jobs"),
        ("open", "take jobs and start them"),
    ):
        acts = of_queue(verb, queues.act, text)
        acts.set_defaults(verb=verb)
        _written(acts)
    made = of_queue("create", queues.create, "make a queue")
    changed = of_queue("set", queues.set_queue, "change settings of a queue")
    for parser in (made, changed):
        queues.add_settings(parser)
        _written(parser, required=False)
    _written(of_queue("delete", queues.delete, "delete a queue whose jobs are all over"))
    text = "who waits their turn on a cluster, in the order of its scheduler"
    order = command("global", queues.global_queue, text, both, actions)
    order.add_argument("cluster", nargs="?", help="its name, if there are several")
    order.add_argument("-G", "--gpu-type", help="those that accept this GPU type")
    order.add_argument("--scope", metavar="SHARD", help="of this shard of the cluster")
    order.add_argument("--limit", type=int, default=20, metavar="N", help="how many (20)")
    order.add_argument("--all", action="store_true", help="all of them")
    record = command("changes", queues.changes, "who changed which queue", both, actions)
    record.add_argument("-t", "--tenant", help="of this tenant")
    record.add_argument("--limit", type=int, default=20, metavar="N", help="how many (20)")
    reverted = command("revert", queues.revert, "take back a change of a queue", both, actions)
    reverted.add_argument("change", metavar="ID", help="of the change, or the beginning of it")
    _written(reverted)


def _node_commands(command: Any, both: Sequence[str]) -> None:
    for verb, text in (
        ("cordon", "let nothing new come to nodes; what runs there goes on"),
        ("drain", "let nothing new come to nodes, and let their jobs leave"),
        ("uncordon", "let jobs come to nodes again; a drain ends"),
    ):
        acts = command(verb, nodes.act, text, both)
        acts.set_defaults(verb=verb)
        nodes.add_nodes(acts, "the name of a node")
        if verb == "drain":
            nodes.add_choice(acts)
            acts.add_argument(
                "--deadline", type=nodes.deadline, metavar="WHEN",
                help="who is not done by then leaves: 0s, 2h or a time; not given: nobody is "
                "sent away",
            )  # fmt: skip
    defrag.add_flags(
        command("defrag", defrag.defrag, "free whole nodes, for a price told before", both)
    )
    more = command("capacity", nodes.capacity, "what more or fewer nodes would do to jobs", both)
    which = more.add_mutually_exclusive_group(required=True).add_argument
    which("--add", type=int, metavar="N", help="so many more")
    which("--remove", type=int, metavar="N", help="so many fewer, those that cost least")
    more.add_argument("-G", "--gpu-type", required=True, help="of this GPU type")
    more.add_argument("-c", "--cluster", help="its name, if there are several")


def _quota_flags(parser: argparse.ArgumentParser) -> None:
    """What is not given stays as it is."""
    flag = parser.add_argument
    flag("tenant", metavar="TENANT")
    flag("gpu_type", metavar="GPU_MODEL")
    flag("--guaranteed", type=places.amount, metavar="GPUS", help="what it always gets back")
    flag(
        "--borrow-limit",
        type=places.limit,
        metavar="GPUS",
        help=f"most it borrows, or {places.NO_LIMIT}",
    )
    flag(
        "--lend-limit",
        type=places.limit,
        metavar="GPUS",
        help=f"most it lends, or {places.NO_LIMIT}",
    )
    flag("--mode", choices=("shared", "isolated"), help="isolated: it neither borrows nor lends")
    _written(parser, required=False)
    flag("--preview", action="store_true", help="say what it would do to jobs, change nothing")


def _written(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    flag = parser.add_argument
    flag("--reason", required=required, metavar="TEXT", help="why; kept with the change")
    flag("--dry-run", action="store_true", help="show what would be, change nothing")


def _filters(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("-t", "--tenant", help="of this tenant and all below it")
    flag("--queue", metavar="NAME", help="in the queues of this name")
    flag("-u", "--user", help="of this submitter; me = yours")
    flag("-c", "--cluster", help="on this cluster")
    flag("-s", "--state", action="append", type=str.upper, help="in this state; repeat for more")
    flag("--kind", help="of this kind")
    flag("--reason", help="waiting for this reason, e.g. FragmentedCapacity")
    flag("-G", "--gpu-type", help="that accept this GPU type")
    flag("--min-gpus", metavar="N", help="of at least so many GPUs")
    flag("--max-gpus", metavar="N", help="of at most so many GPUs")
    flag("--array", metavar="ID", help="of this array")
    flag("-q", metavar="TEXT", help="with this in the name, or at the beginning of the id")
    flag("--limit", type=int, default=50, metavar="N", help="how many (50)")
    flag("--all", action="store_true", help="all of them")


if __name__ == "__main__":
    sys.exit(main())
