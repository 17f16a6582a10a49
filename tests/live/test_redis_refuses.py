"""Jobs start and processes go on while Redis is full, read-only or gone."""

import os
import sys
import time
import urllib.request
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import pytest
from redis import Redis

from tests import forked
from tests.live.test_production_shape import (
    ROOT,
    SETUP,
    WITHIN_S,
    call,
    free_port,
    operations_page,
    postgres,
    redis,
    run_until,
    started,
    static_files,
    wait_for_port,
)

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
BEGAN, OVER = "Redis does not serve (", "Redis serves again"


def until(holds, what):
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(what())
        time.sleep(0.1)


def test_jobs_start_and_all_processes_go_on_whatever_redis_refuses(
    cluster_process, tmp_path, postgres_data
):
    with ExitStack() as stack:
        database = stack.enter_context(postgres(postgres_data))
        broker = stack.enter_context(ExitStack())
        address = broker.enter_context(redis(tmp_path))
        env = {
            **os.environ,
            "KANT_EMBEDDED": "false",
            "KANT_SECRET_KEY": "only for this test",
            "KANT_VAR_DIR": str(tmp_path),
            "KANT_SAMPLE_SECONDS": "1",
            "KANT_METRICS_OPEN": "true",
            "DATABASE_URL": database,
            "REDIS_URL": address,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }
        shape = {"env": env, "cwd": ROOT}
        setup = [sys.executable, "-c", SETUP, str(cluster_process.kubeconfig)]
        made = forked.run(setup, check=True, capture_output=True, text=True, **shape)
        token = made.stdout.strip()
        static_files(shape)

        port = free_port()
        celery = [sys.executable, "-m", "celery", "-A", "kant"]
        uvicorn = [sys.executable, "-m", "uvicorn", "kant.asgi:application", "--port", str(port)]
        commands = {
            "scheduler": [*celery, "worker", "-Q", "sched", "-P", "solo", "-n", "sched@test"],
            "worker": [*celery, "worker", "-Q", "work", "-c", "1", "-n", "work@test"],
            "beat": [*celery, "beat", "-s", str(tmp_path / "beat")],
            "web": [*uvicorn, "--lifespan", "off", "--no-access-log"],
        }
        processes = {}
        for name, command in commands.items():
            log = stack.enter_context((tmp_path / f"{name}.log").open("w"))
            processes[name] = stack.enter_context(started(command, stderr=log, **shape))
        wait_for_port(port, processes["web"])
        site = f"http://127.0.0.1:{port}"

        def said(name, text):
            return (tmp_path / f"{name}.log").read_text().count(text)

        def has_said(name, text, times):
            return said(name, text) == times

        def logs():
            texts = {name: (tmp_path / f"{name}.log").read_text() for name in processes}
            return "\n".join(f"--- {name}\n{text}" for name, text in texts.items())

        def redis_is_up():
            with urllib.request.urlopen(f"{site}/metrics", timeout=WITHIN_S) as answer:
                return "kant_redis_up 1.0" in answer.read().decode()

        def a_job_runs_to_its_end():
            document = {"name": "gang", "tenant": "vision", "gpus": 8, "cpu_milli": 100}
            document["annotations"] = {"sim.kant.io/run-seconds": "0.5"}
            job = call(f"{site}/api/v1/jobs", token, document)
            run_until(f"{site}/api/v1/jobs/{job['id']}", token, {"SUCCEEDED"})

        def all_have_said_that_it_is_over():
            # A wake-up may be lost because the one before it was not heard; the next one arrives.
            a_job_runs_to_its_end()
            return all(said(name, BEGAN) == said(name, OVER) for name in processes)

        a_job_runs_to_its_end()
        assert redis_is_up()
        page = operations_page(site, shape)
        assert "Redis does not accept writes." not in page()
        server = Redis.from_url(address)
        outages = [
            (lambda: server.config_set("maxmemory", 1), lambda: server.config_set("maxmemory", 0)),
            (lambda: server.replicaof("127.0.0.1", "1"), lambda: server.replicaof("NO", "ONE")),
            (broker.close, lambda: broker.enter_context(redis(tmp_path, urlsplit(address).port))),
        ]
        for number, (begin, end) in enumerate(outages, start=1):
            begin()
            assert not redis_is_up()
            assert "Redis does not accept writes." in page()
            for _ in range(2):
                a_job_runs_to_its_end()
            # The others report it only if they had something to hear or to write meanwhile.
            for name in ("beat", "web"):
                until(partial(has_said, name, BEGAN, number), logs)
            end()
            until(redis_is_up, logs)
            until(all_have_said_that_it_is_over, logs)
            ends = {name: process.poll() for name, process in processes.items()}
            assert ends == dict.fromkeys(processes), logs()
        assert said("scheduler", BEGAN) >= 1, "it listened to the one that was gone"
        for name in processes:
            assert said(name, BEGAN) <= len(outages), logs()
            assert "Traceback" not in (tmp_path / f"{name}.log").read_text(), logs()
