"""What the provider's groups mean in Kant: a file that gives each group roles in tenants.

gpu-vision:
  vision: engineer
gpu-leads:
  research: tenant-admin
  products: viewer
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from tenants.models import Role


class Granted(NamedTuple):
    """A role in a tenant, and where in the file it is given."""

    tenant: str
    role: str
    line: int


Groups = Mapping[str, tuple[Granted, ...]]


class GroupFileError(Exception):
    """A groups file that cannot be used. Each of `faults` names file and line."""

    def __init__(self, faults: list[str], remedy: str) -> None:
        super().__init__(" ".join(faults))
        self.faults = faults
        self.remedy = remedy


SHAPE = "Write it as {group: {tenant: role}}, in YAML."


def read_groups(path: Path) -> Groups:
    """Read group → roles. Raises GroupFileError with all faults at once."""
    try:
        root = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except OSError as error:
        remedy = "Name a file that Kant may read."
        raise GroupFileError([f"{path}: {error.strerror}."], remedy) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        raise GroupFileError([f"{path} is not YAML: {text}."], SHAPE) from error
    if not isinstance(root, yaml.MappingNode):
        raise GroupFileError([f"{path} does not hold groups."], SHAPE)
    faults: list[str] = []
    groups = {
        group: tuple(_granted(path, group, roles, faults))
        for group, roles in _pairs(path, root, faults)
    }
    if faults:
        raise GroupFileError(faults, SHAPE)
    return groups


def _granted(path: Path, group: str, roles: yaml.Node, faults: list[str]) -> Iterator[Granted]:
    if not isinstance(roles, yaml.MappingNode):
        faults.append(f"{path}, line {_line(roles)}: group “{group}” has no {{tenant: role}}.")
        return
    for tenant, role in _pairs(path, roles, faults):
        if isinstance(role, yaml.ScalarNode) and role.value in Role.values:
            yield Granted(tenant, role.value, _line(role))
        else:
            named = f"“{role.value}”" if isinstance(role, yaml.ScalarNode) else "The value"
            faults.append(
                f"{path}, line {_line(role)}: {named} is not a role, in tenant “{tenant}” for "
                f"group “{group}”. Choose one of {', '.join(Role.values)}."
            )


def _pairs(
    path: Path, mapping: yaml.MappingNode, faults: list[str]
) -> Iterator[tuple[str, yaml.Node]]:
    """Yield keys as written (a group may be called 0123) with their values."""
    seen: set[str] = set()
    for key, value in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            faults.append(f"{path}, line {_line(key)}: a name is expected here.")
        elif key.value in seen:
            faults.append(f"{path}, line {_line(key)}: “{key.value}” appears here a second time.")
        else:
            seen.add(key.value)
            yield key.value, value


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
