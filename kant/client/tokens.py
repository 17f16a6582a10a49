"""`kant token`: the user's own API tokens, including ones that may do less than their owner."""

import argparse
from datetime import datetime, timedelta, timezone
from typing import Any

from kant.client import output
from kant.client.api import Api
from kant.client.errors import FAILED, ClientError

SCOPES = ("read", "submit", "quota", "operate")
HEADS = ("ID", "NAME", "BEGINS WITH", "MAY", "TENANT", "LAST USED", "ENDS")


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("name", metavar="NAME", help="purpose of the token, e.g. ci")
    flag("--scope", dest="scopes", action="append", choices=SCOPES,
         help="scope; repeat for more (default: all that you may do)")  # fmt: skip
    flag("-t", "--tenant", help="only for this tenant and tenants below it")
    flag("--days", type=int, metavar="N", help="days until it expires")


def create(api: Api, args: argparse.Namespace) -> None:
    """Create a token and print only its secret, to keep in a variable or file."""
    body: dict[str, Any] = {"name": args.name, "scopes": args.scopes, "tenant": args.tenant}
    if args.days is not None:
        body["expires_at"] = (datetime.now(timezone.utc) + timedelta(days=args.days)).isoformat()
    made = api.post("tokens", body)
    if made["secret"] is None:  # the answer with the secret was lost
        raise ClientError(FAILED, f"The answer with the token was lost. Revoke {made['id']}.")
    if args.output == "json":
        output.document(made)
    else:
        print(made["secret"])


def listed(api: Api, args: argparse.Namespace) -> None:
    found = [token for token in api.items("tokens") if args.all or token["revoked_at"] is None]
    output.listed(args.output, found, HEADS, _row, "There are no tokens.")


def revoke(api: Api, args: argparse.Namespace) -> None:
    """Revoke tokens, and the tokens that they created."""
    for token in args.tokens:
        api.delete(f"tokens/{token}")
        print(f"Token {token} is revoked.")


def _row(token: dict[str, Any]) -> tuple[object, ...]:
    may = "everything" if set(token["scopes"]) == set(SCOPES) else ", ".join(token["scopes"])
    return (
        token["id"],
        token["name"],
        token["prefix"],
        may,
        token["tenant"] or "all",
        output.when(token["last_used_at"]) or "never",
        output.when(token["expires_at"]) or "never",
    )
