"""The whole of Kant in a browser: sign in, submit a job, watch it run, edit a quota, see the
record."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.e2e.site import ROOT
from tests.kept import kept
from tests.live.conftest import migrate

pytestmark = [pytest.mark.browser, pytest.mark.live]
PASSWORD = "kant-demo"


@pytest.fixture
def kant(tmp_path, tmp_path_factory) -> Iterator[str]:
    """The address of a Kant started as `make run` does, on its own port; its tables come from an
    earlier start."""
    shutil.copytree(kept(tmp_path_factory, "migrated", migrate), tmp_path, dirs_exist_ok=True)
    environment = {
        **os.environ,
        "KANT_VAR_DIR": str(tmp_path),
        "DATABASE_URL": f"sqlite:///{tmp_path / 'kant.sqlite3'}",
        "PYTHONUNBUFFERED": "1",
        "REDIS_URL": "",
        "CELERY_BROKER_URL": "memory://",
    }
    with open(tmp_path / "log", "w+") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--port", "0"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdout is not None
        try:
            found = None
            for line in process.stdout:
                if found := re.search(r"Kant is at (http://127\.0\.0\.1:\d+)/", line):
                    break
            if not found:
                log.seek(0)
                pytest.fail(f"serve ended before it was ready:\n{log.read()[-2000:]}")
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=90)
            # A busy machine may not finish in time; test_ending checks how long it may take.
            assert process.returncode in (0, -signal.SIGALRM)


def test_a_job_runs_and_a_quota_changes_before_the_eyes_of_its_people(kant, new_tab):
    engineer = new_tab(at=kant)
    page = engineer.page
    page.goto(f"{kant}/login/")
    page.get_by_role("button", name="erin").click()
    page.get_by_role("heading", name="Overview").wait_for()
    # The cluster is listed within seconds; from then on the overview shows what can start.
    expect(page.get_by_text("in one leaf ·").first).to_be_visible(timeout=60_000)

    page.goto(f"{kant}/jobs/new/")
    page.locator("#id_name").fill("first-job")
    page.locator("#id_sets-0-count").fill("2")
    page.locator("#id_sets-0-gpus").fill("8")
    page.get_by_text("It would start now: 2 pods on 2 nodes").wait_for()
    page.get_by_role("button", name="Submit job", exact=True).click()
    state = page.locator("#job-live .headline .state")
    # Nobody reloads: the page follows its job by itself.
    expect(state).to_contain_text("Running", timeout=60_000)
    pods = page.get_by_role("region", name="Pods", exact=True)
    expect(pods.locator("tbody tr")).to_have_count(2)
    expect(pods.locator("tbody tr").first).to_contain_text("0–7")
    for event in ("Submitted", "Admitted", "Running"):
        expect(page.locator(".events")).to_contain_text(event)
    assert engineer.axe() == []

    admin = new_tab(at=kant, theme="dark")
    admin.sign_in("vera", PASSWORD)
    admin.open("/quotas/")
    cell = admin.page.get_by_label(re.compile(r"^vision \S*A100\S* guaranteed"))
    before = int(cell.input_value())
    cell.fill(str(before - 1))
    admin.page.get_by_label("Reason").fill("One goes back to the pool")
    admin.page.get_by_role("button", name="Save changes").click()
    admin.page.get_by_text("1 quota changed.").wait_for()
    admin.page.get_by_role("link", name="Changes").click()
    row = admin.page.get_by_role("row").nth(1)
    for text in ("vera", "vision", str(before), str(before - 1), "One goes back to the pool"):
        expect(row).to_contain_text(text)
    assert admin.axe() == []

    operator = new_tab(at=kant)
    operator.sign_in("operator", PASSWORD)
    operator.open("/ops/")
    expect(operator.page.locator("#ops-live")).to_contain_text("16 of 880 GPUs")
    assert operator.axe() == []

    page.get_by_role("button", name="Cancel job").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Its 2 pods on 2 nodes end, 16 GPUs become free")
    dialog.get_by_role("button", name="Cancel job").click()
    expect(state).to_contain_text("Cancelled")
    expect(operator.page.locator("#ops-live")).to_contain_text("0 of 880 GPUs", timeout=60_000)
