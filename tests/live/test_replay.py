"""`manage.py replay` sends recorded jobs through a running Kant; the cluster's own record checks
it."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from django.conf import settings

from tests import forked
from tests.cases import NIGHTLY
from tests.live.test_serve import ROOT, WITHIN_S, Serving
from tests.requirements import missing

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
JOBS = 60 if NIGHTLY else 20


@pytest.fixture(scope="module")
def kant(migrated, tmp_path_factory):
    folder = shutil.copytree(migrated, tmp_path_factory.mktemp("replay"), dirs_exist_ok=True)
    serving = Serving(folder)
    serving.folder = folder
    yield serving
    serving.process.terminate()
    serving.process.wait(WITHIN_S)
    serving.process.stdout.close()


def trace(*parts: str) -> Path:
    path = settings.KANT_TRACES.joinpath(*parts)
    if not path.exists():
        missing(str(path), "fetch the public traces and set KANT_TRACES")
    return path


def replay(kant, *arguments):
    return forked.run(
        [sys.executable, "manage.py", "replay", *map(str, arguments), "--url", kant.url, "--json"],
        cwd=ROOT,
        env={**os.environ, "KANT_VAR_DIR": str(kant.folder)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_every_job_of_a_real_trace_ends_and_no_device_is_held_twice(kant):
    done = replay(kant, trace("itp", "cluster02.csv.xz"), "--limit", JOBS, "--speed", 20000)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["states"] == {"SUCCEEDED": JOBS}
    assert report["double_holdings"] == []
    assert len({job["id"] for job in report["jobs"]}) == JOBS
    everyone = report["metrics"]["jwtd"][-1]
    assert (everyone["size"], everyone["waiting"]) == ("all", 0)


def test_a_file_that_is_no_trace_and_a_kant_that_is_not_there(kant, tmp_path):
    path = tmp_path / "wrong.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\na,0,-1,1\n")
    wrong = replay(kant, path)
    assert wrong.returncode == 1
    assert "line 2, column duration: is '-1'" in wrong.stderr
    assert wrong.stdout == ""
