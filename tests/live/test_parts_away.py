"""Without the database or Redis, people get an error message or an answer, and nothing hangs."""

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from tests import forked
from tests.cases import some
from tests.live.test_production_shape import ROOT, WITHIN_S, free_port, started, wait_for_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
SETUP = """
import django; django.setup()
from tenants.services.tokens import create_token
from tests import organisation
print(create_token(organisation.build().users["eve"], "test").secret)
"""


@contextmanager
def silent():
    """A port that accepts connections and never answers, like a host that drops packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        yield listener.getsockname()[1]


@contextmanager
def web(folder, **variables):
    env = {
        **os.environ,
        "KANT_VAR_DIR": str(folder),
        "KANT_SECRET_KEY": "only for this test",
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        **variables,
    }
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "kant.asgi:application", "--port", str(port)]
    with started([*command, "--lifespan", "off"], env=env, cwd=ROOT) as process:
        wait_for_port(port, process)
        yield f"http://127.0.0.1:{port}"


def ask(url, body=None, token="kant_x"):
    """Without time limits in Kant the answer would never come."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
            status, kept, text = answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, kept, text = error.code, error.headers, error.read().decode()
    return status, kept, text


@pytest.mark.parametrize("host", some(["is silent", "refuses"]))
def test_without_a_database_rest_and_pages_say_so(tmp_path, host):
    with silent() as port:
        port = port if host == "is silent" else free_port()
        with web(tmp_path, DATABASE_URL=f"postgres://kant@127.0.0.1:{port}/kant") as site:
            status, headers, text = ask(f"{site}/api/v1/jobs")
            assert (status, headers["Content-Type"]) == (503, "application/problem+json")
            assert int(headers["Retry-After"]) > 0
            problem = json.loads(text)
            assert problem["code"] == "unavailable"
            assert problem["detail"].startswith("The database does not answer. Repeat the request")

            status, headers, text = ask(f"{site}/login/")
            assert status == 200, "this page needs no database"
            request = urllib.request.Request(
                f"{site}/jobs/", headers={"Cookie": "sessionid=" + 32 * "x"}
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=WITHIN_S)
            assert refused.value.code == 503
            assert int(refused.value.headers["Retry-After"]) > 0
            page = refused.value.read().decode()
            assert "The database does not answer. Running jobs go on." in page


@pytest.mark.parametrize("part", some(["REDIS_URL", "CELERY_BROKER_URL"]))
def test_without_redis_a_job_is_stored_and_answered(migrated_folder, part):
    env = {
        **os.environ,
        "KANT_VAR_DIR": str(migrated_folder),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }
    shape = {"env": env, "cwd": ROOT, "check": True}
    setup = [sys.executable, "-c", SETUP]
    token = forked.run(setup, capture_output=True, text=True, **shape).stdout.strip()
    job = {"name": "alone", "tenant": "vision", "gpu_type": "H100", "gpus": 1}
    with silent() as port, web(migrated_folder, **{part: f"redis://127.0.0.1:{port}/0"}) as site:
        for number in range(3):
            status, _, text = ask(f"{site}/api/v1/jobs", {**job, "name": f"n-{number}"}, token)
            assert status == 201, text
        _, _, text = ask(f"{site}/api/v1/jobs", token=token)
        assert {j["name"] for j in json.loads(text)["items"]} >= {"n-0", "n-1", "n-2"}
