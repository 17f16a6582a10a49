"""Files and names of a simulated run: fleets, inventories, policies; each error is one line."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from metrics.simulate import results as simulation
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.engine.types import Policy
from scheduling.job_fields.faults import SLUG, SLUG_RULE
from scheduling.policy import document as policies
from scheduling.simulator import nodes
from scheduling.simulator.fleet import Fleet, FleetError, parse_inventory, parse_openb
from scheduling.text_files import InputError, lines_of, suffix_of, text_of, yaml_of
from tenants.strict_json import NotJson, TooManyValues, value_of

__all__ = ["InputError", "clusters_of", "fleet_of", "length_of", "lines_of", "policy_of"]

SHIPPED = ("demo", "paper", "large")
FLEETS = Path(__file__).resolve().parents[2] / "scheduling" / "simcluster" / "fleets"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_LENGTH = timedelta(days=366)


def length_of(text: str) -> timedelta | None:
    """Parse a length of time like 90s, 15m, 24h or 7d, at most 366 days; None for any other
    text."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text)
    length = timedelta(seconds=int(match[1]) * UNITS[match[2]]) if match else None
    return length if length is not None and length <= MAX_LENGTH else None


def fleet_of(text: str) -> Fleet:
    """Return a shipped fleet, a list of machines or hosts (.csv), an inventory (any other file), or
    a size."""
    # The embedded cluster marks a list of machines with "openb:".
    path = FLEETS / f"{text}.yaml" if text in SHIPPED else Path(text.removeprefix("openb:"))
    if not path.suffix and not path.is_file():
        try:
            return nodes.sized(text)
        except FleetError as error:
            raise InputError(
                f"--fleet {error}; or one of {', '.join(SHIPPED)}, or a file"
            ) from None
    body = text_of(path)
    try:
        if suffix_of(path) == ".csv":
            columns = {c.strip(' \t\r"') for c in body.partition("\n")[0].split(",")}
            return parse_openb(body) if "sn" in columns else nodes.recorded_network(body)
        return parse_inventory(yaml_of(body))
    except (FleetError, InputError, yaml.YAMLError) as error:
        raise InputError(f"{path}: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested far too deeply for an inventory") from None


def policy_of(text: str) -> Policy:
    """Return a policy by name, or from a .json file with a document as in the REST API."""
    if not text.endswith(".json"):
        return simulation.policy_of(text, list(STRATEGIES))
    try:
        document = value_of(text_of(Path(text)).encode(), "The file")
    except (NotJson, TooManyValues) as error:
        raise InputError(f"{text}: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{text}: must be one object of policy fields")
    for fault in policies.faults(document):
        raise InputError(f"{text}: {fault.field}: {fault.detail}")
    return policies.to_policy(document)


CLUSTER_KEYS = {"fleet": str, "policy": str, "labels": dict, "takes_any": bool}


def clusters_of(path: Path) -> dict[str, dict[str, Any]]:
    """Read the clusters of a file: {name: {fleet, and optionally policy, labels, takes_any}}."""
    try:
        document = yaml_of(text_of(path))
    except (InputError, yaml.YAMLError) as error:
        raise InputError(f"{path}: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested far too deeply for a list of clusters") from None
    clusters = document.get("clusters") if isinstance(document, dict) else None
    if not isinstance(clusters, dict) or not clusters or document.keys() != {"clusters"}:
        raise InputError(f"{path}: must be {{clusters: {{NAME: {{fleet: …}}}}}}")
    for name, said in clusters.items():
        where = f"{path}: clusters: {name}"
        if not isinstance(name, str) or not SLUG.fullmatch(name):
            raise InputError(f"{where}: is no name of a cluster. {SLUG_RULE}")
        if not isinstance(said, dict) or "fleet" not in said:
            raise InputError(f"{where}: must be an object with fleet")
        for key, value in said.items():
            if key not in CLUSTER_KEYS:
                raise InputError(f"{where}: {key} is unknown; known are {', '.join(CLUSTER_KEYS)}")
            if not isinstance(value, CLUSTER_KEYS[key]):
                wanted = {str: "a text", dict: "an object", bool: "true or false"}
                raise InputError(f"{where}: {key} must be {wanted[CLUSTER_KEYS[key]]}")
        if not all(isinstance(v, str) for kv in said.get("labels", {}).items() for v in kv):
            raise InputError(f"{where}: labels must be texts by label")
    return clusters
