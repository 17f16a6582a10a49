"""The settings that Kant reads, the table of the operator guide, and the ConfigMap."""

import ast
import re

from tests.deploy.manifests import ROOT, config
from tests.guide import guide_text

# For people who work on Kant; no installation sets them.
UNTOLD = {"KANT_DEBUG", "KANT_TRACES"}
GUIDE = guide_text()


def read():
    """{name: default} of all that settings.py reads from the environment; ... where the default
    is made of something else."""
    found = {}
    for node in ast.walk(ast.parse((ROOT / "kant" / "settings.py").read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("env")), args=[ast.Constant(name)]):
                [default] = [each.value for each in node.keywords if each.arg == "default"]
                value = default.value if isinstance(default, ast.Constant) else ...
                found.setdefault(name, value)
    return found


def told():
    """{name: text of its default} of the tables of settings."""
    rows = re.findall(r"^\| ((?:`[A-Z_]+`(?:, | or )?)+) \| .* \| *(.*?) *\|$", GUIDE, re.M)
    return {name: default for names, default in rows for name in re.findall(r"`(.*?)`", names)}


def test_every_setting_is_told_and_none_that_there_is_not():
    assert told().keys() == read().keys() - UNTOLD


def test_defaults_are_told_as_they_are():
    compared = 0
    for name, default in read().items():
        match default:
            case bool():
                wanted = f"`{str(default).lower()}`"
            case int() | float():
                wanted = f"{default:g}"
            case str() if default and name != "KANT_LOG_LEVEL":  # Kant's differs from the others'
                wanted = f"`{default}`"
            case _:
                continue
        compared += name not in UNTOLD
        assert name in UNTOLD or told()[name].strip("`") == wanted.strip("`"), name
    assert compared >= 10


def test_the_config_map_and_the_secret_set_what_kant_reads():
    [commands] = re.findall(r"^## Kubernetes\n.*?^```sh\n(.*?)^```", GUIDE, re.M | re.S)
    secret = set(re.findall(r"\b([A-Z_]+)=", commands))
    assert secret == {"DATABASE_URL", "REDIS_URL", "KANT_SECRET_KEY"}
    assert config().keys() | secret <= read().keys()
    assert not config().keys() & secret
