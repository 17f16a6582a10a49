"""The settings that Kant reads match the tables of the operator guide and the ConfigMap."""

import ast
import os
import re
import subprocess
import sys

from tests.deploy.manifests import ROOT, config
from tests.guide import guide_text

# For developers of Kant; no installation sets them.
UNTOLD = {"KANT_DEBUG", "KANT_TRACES"}
GUIDE = guide_text()


def read():
    """Return {name: default} of all settings that settings.py reads from the environment; the
    default is ... if settings.py computes it."""
    found = {}
    for node in ast.walk(ast.parse((ROOT / "kant" / "settings.py").read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("env")), args=[ast.Constant(name)]):
                [default] = [each.value for each in node.keywords if each.arg == "default"]
                value = default.value if isinstance(default, ast.Constant) else ...
                found.setdefault(name, value)
    return found


def told():
    """Return {name: text of its default} from the guide's tables of settings."""
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
            case str() if default and name != "KANT_LOG_LEVEL":  # its text names two defaults
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


# A response to a request that reached a proxy by TLS, with the settings from the environment.
ANSWER = """
import django; django.setup()
from django.conf import settings
from django.http import HttpResponse
from django.middleware.security import SecurityMiddleware
from django.test import RequestFactory
request = RequestFactory().get("/", HTTP_X_FORWARDED_PROTO="https")
answer = SecurityMiddleware(lambda _: HttpResponse())(request)
cookies = settings.SESSION_COOKIE_SECURE, settings.CSRF_COOKIE_SECURE
print([answer["Strict-Transport-Security"], settings.KANT_IDLE_MINUTES, *cookies])
"""


def test_a_production_is_strict_about_tls_and_idle_people(tmp_path):
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "kant.settings",
        "KANT_EMBEDDED": "false",
        "KANT_SECRET_KEY": "only for this test",
        "KANT_VAR_DIR": str(tmp_path),
    }
    run = [sys.executable, "-c", ANSWER]
    told = subprocess.run(run, env=env, cwd=ROOT, check=True, capture_output=True, text=True)
    assert ast.literal_eval(told.stdout) == ["max-age=31536000", 120, True, True]
