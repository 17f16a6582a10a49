"""`kant snapshot`: write everything that a cluster's scheduler decides by to a file."""

import argparse
import gzip
import json
import os
from collections import Counter
from typing import Any
from urllib.parse import quote

from kant.client import output
from kant.client.api import Api
from kant.client.errors import FAILED, ClientError
from kant.client.places import only_cluster


def add_flags(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument
    flag("cluster", nargs="?", help="name of the cluster, if there are several")
    flag("-o", "--output", required=True, metavar="FILE", help="file to write; .gz compresses it")
    flag("--anonymise", action="store_true",
         help="replace names of tenants, users, jobs, nodes, labels and volumes")  # fmt: skip


def snapshot(api: Api, args: argparse.Namespace) -> None:
    """Write the file completely or not at all."""
    cluster = args.cluster or only_cluster(api)
    query = {"anonymise": "true"} if args.anonymise else None
    found = api.get(f"clusters/{quote(cluster, safe='')}/snapshot", query)
    text = written(found).encode()
    partial = f"{args.output}.part"
    try:
        with open(partial, "wb") as file:
            file.write(gzip.compress(text) if args.output.endswith(".gz") else text)
        os.replace(partial, args.output)
    except OSError as error:
        raise ClientError(FAILED, f"{args.output} cannot be written: {error.strerror}.") from None
    facts = Counter(fact["fact"] for one in found["scopes"] for fact in one["facts"])
    jobs = f"{facts['JobSubmitted']} waiting jobs, {facts['JobRestored']} that hold places"
    output.note(f"{args.output}: {facts['NodeChanged']} nodes, {jobs}.")


def written(found: dict[str, Any]) -> str:
    """Return one fact per line, so that two snapshots can be compared line by line."""
    head = {name: value for name, value in found.items() if name != "scopes"}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    scopes = []
    for one in found["scopes"]:
        facts = ",\n".join(f"   {json.dumps(fact)}" for fact in one["facts"])
        scopes.append(f'  {{"scope": {json.dumps(one["scope"])}, "facts": [\n{facts}\n  ]}}')
    return "\n".join(["{", *lines, ' "scopes": [', ",\n".join(scopes), " ]", "}", ""])
