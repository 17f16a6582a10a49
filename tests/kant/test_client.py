"""The command line `kant` against a real Kant server."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from django.db import IntegrityError, InterfaceError
from django.utils import timezone
from redis import RedisError

from kant.client import account, jobs
from kant.client.__main__ import main
from kant.client.api import Api
from kant.client.submission import duration_s, name_of
from scheduling.engine.states import JobState
from scheduling.models import Cluster, Job, NodeRecord, PodSet, StartEstimate
from scheduling.models.jobs import PlacementState
from tenants.models import ApiToken
from tests.kant.conftest import Shell


def test_the_file_that_kant_serves_runs_by_itself(kant, tmp_path):
    file = tmp_path / "kant"
    with urllib.request.urlopen(f"{kant.url}/cli/kant") as answer:
        file.write_bytes(answer.read())
    assert file.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    env = {"PATH": os.environ["PATH"], "KANT_URL": kant.url, "KANT_TOKEN": kant.token}
    ran = subprocess.run(
        [sys.executable, "-I", file, "whoami"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "user     eve\ntenants  vision (engineer)\n"
    plugin = shutil.copy(file, tmp_path / "kubectl-kant")
    for called, usage in ((plugin, "usage: kubectl kant "), (file, "usage: kant ")):
        ran = subprocess.run(
            [sys.executable, "-I", called, "--help"], capture_output=True, text=True
        )
        assert (ran.returncode, ran.stdout.startswith(usage)) == (0, True), ran.stdout


def test_login_keeps_a_token_for_its_owner_alone(kant, monkeypatch, tmp_path):
    monkeypatch.delenv("KANT_TOKEN")
    assert kant("whoami")[0] == 4
    code, _, told = kant("login", "-u", "eve", stdin="wrong\n")
    assert (code, "You are not signed in" in told) == (4, True)
    assert kant("login", kant.url, "-u", "eve", stdin="x\n")[0] == 0
    kept = tmp_path / "kant" / "login.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    token = ApiToken.objects.get(name__startswith="kant on")
    assert json.loads(kept.read_text())["token"].startswith(token.prefix)
    assert token.expires_at is not None
    assert kant("whoami")[1].startswith("user     eve")
    # The client sends a token only to the address that issued it.
    monkeypatch.setenv("KANT_URL", "http://elsewhere.example")
    code, _, told = kant("whoami")
    assert (code, "kant login http://elsewhere.example" in told) == (4, True)
    monkeypatch.setenv("KANT_URL", kant.url)
    assert kant("logout")[:2] == (0, f"Signed out of {kant.url}.\n")
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert kant("whoami")[0] == 4
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("{}")
    code, _, told = kant("whoami")
    assert (code, str(kept) in told) == (1, True)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("submit", "-n", "x", "-g", "80", "-G", "H100"), 5, "gpus: A pod asks for 80 GPUs"),
        (("submit", "-n", "x", "-g", "1", "-G", "none"), 2, "gpu_type"),
        (("submit", "-n", "x", "-g", "1", "-t", "law"), 3, "law"),
        (("submit", "-g", "1"), 2, "has no name"),
        (("submit", "--time", "soon"), 2, "'soon' is not a time"),
        (("submit", "--env", "X"), 2, "'X' is not NAME=VALUE"),
        (("jobs", "-s", "lost"), 2, "state: Choose one of PENDING"),
        (("jobs", "-t", "nobody"), 2, "tenant: There is no tenant “nobody” that you may see"),
        (("jobs", "-G", "A1000"), 2, "gpu_type: There is no GPU type “A1000”, but there is “A100”"),
        (("show", "nothing"), 3, "There is no job 'nothing'"),
        (("show", "00000000-0000-0000-0000-000000000000"), 3, "There is no job"),
        (("change", "nothing"), 2, "Nothing to change"),
        ((), 2, "required: COMMAND"),
    ],
)
def test_what_is_wrong_is_told_with_an_exit_code_of_its_own(kant, words, code, told):
    got, out, text = kant(*words)
    assert (got, out) == (code, ""), text
    assert told in text


def test_who_may_not_is_told_so(kant):
    kant.sign_in("vic")
    code, _, told = kant("submit", "-n", "x", "-g", "1", "-G", "H100")
    assert (code, told.startswith("You may not do this")) == (4, True)
    kant.sign_in("ops")
    code, _, told = kant("submit", "-n", "x", "-g", "1", "-G", "H100")
    assert (code, "--tenant" in told) == (2, True)


def submit(kant, name, *flags):
    return kant("submit", "-o", "id", "-n", name, "-g", "1", "-G", "H100", *flags)[1].strip()


def test_how_often_a_job_is_restarted_is_asked_for_changed_and_shown(kant):
    def shown(name):
        lines = kant("show", name)[1].splitlines()
        return [line.split(maxsplit=1) for line in lines if "restarts" in line]

    job = submit(kant, "job", "--max-restarts", "5")
    assert shown("job") == [["restarts", "0 of 5"]]
    Job.objects.filter(pk=job).update(restarts=2)
    assert kant("change", "job", "--max-restarts", "7")[0] == 0
    assert shown("job") == [["restarts", "2 of 7"]]
    assert kant("change", "job", "--max-restarts", "1001")[0] == 2
    assert shown(submit(kant, "many", "--array", "3")) == []


def test_a_job_for_any_cluster_is_told_where_it_runs_and_why(kant):
    Cluster.objects.create(name="far", labels={"data": "local"})
    flags = ["-g", "1", "-G", "H100", "--cluster-selector", "data=local"]
    flags += ["--prefer-cluster", "rack=new"]
    code, said, note = kant("submit", "-n", "anywhere", "--cluster", "any", *flags)
    why = "Sent to far: not heard from yet."
    assert (code, said.splitlines()[0]) == (0, "Submitted anywhere to far: 1 GPU.")
    assert why in note
    lines = [line.split(maxsplit=1) for line in kant("show", "anywhere")[1].splitlines() if line]
    told = {name: value for name, *more in lines for value in more}
    assert told["cluster"] == f"far: {why}"
    assert told["any_cluster"] == "yes"
    assert (told["cluster_selector"], told["preferred_cluster_labels"]) == (
        "data=local",
        "rack=new",
    )
    assert why in kant("submit", "-n", "x", "--dry-run", *flags)[1]
    assert kant("submit", "-n", "x", "--cluster", "no-such", *flags)[0] == 2


def test_jobs_are_listed_filtered_and_paged(kant):
    ids = [submit(kant, f"job-{i}") for i in range(3)]
    assert kant("jobs", "-o", "id")[1].split() == ids[::-1]
    code, out, told = kant("jobs", "--limit", "2")
    assert (code, told) == (0, "The newest 2; --all shows all.\n")
    heads, first, _ = out.splitlines()
    assert heads.split() == [
        "ID",
        "NAME",
        "TENANT",
        "USER",
        "STATE",
        "REASON",
        "GPUS",
        "TYPES",
        "AGE",
    ]
    assert first.split()[:5] == [ids[2][:8], "job-2", "vision", "eve", "PENDING"]
    assert len(kant("jobs", "--limit", "2", "--all")[1].splitlines()) == 4
    assert [j["id"] for j in json.loads(kant("jobs", "-q", "job-1", "-o", "json")[1])] == [ids[1]]
    assert kant("jobs", "-s", "running")[1:] == ("", "No such jobs.\n")


def test_a_list_of_several_pages_is_read_whole(kant):
    ids = {submit(kant, f"job-{i}") for i in range(3)}
    found = [job["id"] for job in Api(account.current()).items("jobs", {"limit": 1})]
    assert (set(found), len(found)) == (ids, 3)


def test_a_job_is_named_by_id_its_beginning_or_name(kant):
    one, two = submit(kant, "same"), submit(kant, "same")
    other = submit(kant, "other")
    for text in (other, other[:8].upper(), "other"):
        assert f"id            {other}" in kant("show", text)[1]
    code, _, told = kant("show", "same")
    assert (code, one in told and two in told) == (2, True)
    assert kant("cancel", one)[0] == 0
    assert f"id            {two}" in kant("show", "same")[1]  # the one that has not ended
    assert kant("cancel", two)[0] == 0
    assert kant("show", "same")[0] == 2
    assert kant("show", "oth")[0] == 3  # part of a name matches nothing


def test_an_empty_name_is_no_jobs(kant):
    job = submit(kant, "only")
    code, _, told = kant("cancel", "")
    assert (code, told) == (2, "Name a job by its id, the start of the id, or its name.\n")
    assert Job.objects.get(pk=job).state == JobState.PENDING


def test_a_job_is_found_by_its_name_among_many_whose_names_contain_it(kant):
    old = submit(kant, "train")
    row, sets = Job.objects.get(pk=old), list(PodSet.objects.all())
    later = row.submitted_at + timedelta(seconds=1)
    for i in range(500):
        row.pk, row.name, row.submitted_at = uuid.uuid4(), f"train-{i}", later
        row.save(force_insert=True)
        sets[0].pk, sets[0].job = None, row
        sets[0].save(force_insert=True)
    assert f"id            {old}" in kant("show", "train")[1]


def test_the_pod_that_a_job_was_made_of_is_shown_by_its_name(kant):
    job = submit(kant, "first")
    assert "\npod " not in kant("show", job)[1]
    Job.objects.update(pod_namespace="default", pod_name="first")
    assert "\npod           default/first\n" in kant("show", job)[1]
    Job.objects.update(pod_gang="train")
    assert "\npod           default/first, first of gang train\n" in kant("show", job)[1]


def test_a_waiting_job_is_explained(now, kant):
    name = submit(kant, "next")
    code, out, _ = kant("explain", name)
    assert (code, out.splitlines()[0]) == (0, "PENDING: PendingEvaluation")
    assert "\ngates               · spec" in out
    assert "\nplace in the queue  1\n" in out
    assert json.loads(kant("explain", name, "-o", "json")[1])["reason"] == "PendingEvaluation"
    silent = "Scheduling of this job has stopped. The scheduler of cluster demo has not"
    assert silent in out
    assert silent in kant("wait", name, "--timeout", "0")[2]
    Cluster.objects.update(connected=True, last_cycle_at=now)
    assert silent not in kant("explain", name)[1]
    assert silent not in kant("wait", name, "--timeout", "0")[2]
    assert "SUBMITTED" in kant("events", name)[1]
    assert kant("pods", name)[1:] == ("", "The job has no pods yet.\n")


def test_an_elastic_gang_is_told_why_it_has_no_more_pods(kant):
    name = submit(kant, "elastic", "--replicas", "4", "--min-count", "2")
    assert "why no more" not in kant("explain", name)[1]
    Job.objects.update(state=JobState.RUNNING, attempt=1)
    out = kant("explain", name)[1]
    assert "\npods         0 of 4\n" in out
    assert "\nwhy no more  The scheduler has not looked for more places yet.\n" in out
    growth = {"reason": "InsufficientGpus", "summary": "None is free.", "evidence": {"free": 0}}
    Job.objects.update(growth=growth | {"at": "2026-11-23T07:00:00+00:00"})
    assert "\nwhy no more  None is free.\n" in kant("explain", name)[1]
    job = Job.objects.get()
    place = {"pod_set": 0, "node": "n", "intended_at": job.submitted_at, "attempt": 1}
    job.placements.create(ordinal=0, state=PlacementState.SUCCEEDED, **place)
    job.placements.create(ordinal=1, state=PlacementState.RUNNING, **place)
    told = json.loads(kant("explain", name, "-o", "json")[1])["growth"]
    assert (told["has"], told["reason"], told["since"]) == (2, "", None)
    assert told["summary"].endswith("the job is about to end and no longer grows.")


def test_jobs_and_arrays_are_changed_held_released_and_cancelled(kant):
    job, array = submit(kant, "job", "--hold"), submit(kant, "many", "--array", "3")
    code, out, _ = kant("change", "job", "--priority", "7", "--time", "2h")
    assert (code, out) == (0, f"{job[:8]}  job  PENDING (held)\n")
    assert Job.objects.filter(pk=job, priority=7, declared_s=7200).exists()
    assert kant("release", job)[0] == 0
    assert not Job.objects.get(pk=job).held
    for words in (("cancel", array), ("change", array, "--priority", "7")):
        assert kant(*words, "--preview")[0] == 0
    code, _, told = kant("cancel", job, array, "--preview")
    assert (code, "Preview an array by itself" in told) == (2, True)
    assert not Job.objects.filter(array_id=array, priority=7).exists()
    code, out, told = kant("cancel", "none", job, array)
    assert (code, told) == (3, "There is no job 'none'. See: kant jobs\n")
    assert out.splitlines() == [f"{job[:8]}  job  CANCELLED", f"{array[:8]}  many  3 CANCELLED"]
    assert set(Job.objects.values_list("state", flat=True)) == {JobState.CANCELLED}
    assert kant("hold", job)[0] == 1
    code, _, told = kant("explain", array)
    assert (code, f"kant jobs --array {array}" in told) == (2, True)


def test_a_job_is_scaled_by_its_pod_sets(kant, tmp_path):
    job = submit(kant, "web", "--no-gang", "-r", "2")
    code, out, told = kant("scale", "web", "12")
    assert (code, out) == (0, "web asks for worker=12: 12 GPUs.\n")
    assert f"kant explain {job[:8]}" in told
    assert json.loads(kant("scale", job, "worker=3", "-o", "json")[1])["gpus"] == 3
    assert kant("scale", "web", "1")[1] == "web asks for worker=1: 1 GPU.\n"
    code, _, told = kant("scale", "web", "nix=3")
    assert (code, "it has worker." in told) == (2, True)
    code, _, told = kant("scale", "web", "0")
    assert (code, "pod_sets.0.count: Must be from 1" in told) == (2, True)
    file = tmp_path / "job.json"
    sets = [{"name": name, "gpus": 1, "min_count": 1, "count": 2} for name in ("a", "b")]
    file.write_text(json.dumps({"name": "two", "pod_sets": sets}))
    assert kant("submit", "-f", str(file))[0] == 0
    code, _, told = kant("scale", "two", "3")
    assert (code, "Name the ones to scale: a=N b=N" in told) == (2, True)
    assert kant("scale", "two", "a=4", "b=1")[1] == "two asks for a=4 b=1: 5 GPUs.\n"
    code, _, told = kant("scale", "two", "a=4", "b=1", "--min-count", "1")
    assert (code, "With --min-count, name one pod set." in told) == (2, True)
    assert kant("scale", "two", "a=4", "--min-count", "3")[0] == 0
    assert Job.objects.get(name="two").pod_sets.get(name="a").min_count == 3
    array = submit(kant, "many", "--array", "3")
    assert kant("scale", array, "2")[0] == 2


@pytest.mark.parametrize("text", ["", "x", "-1", "=3", "a=", "a=x", "1.5"])
def test_what_is_no_count_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        main(["scale", "web", "--", text])
    assert f"{text!r} is not a count, e.g. 12 or server=12" in capsys.readouterr().err


def test_what_was_said_before_is_taken_away_by_none(kant, tmp_path):
    times = ("--time", "2h", "--time-limit", "3h", "--checkpoint-notice", "60s",
             "--begin", "2030-01-31T12:00Z")  # fmt: skip
    job = Job.objects.get(pk=submit(kant, "job", *times))
    names = ("declared_s", "run_limit_s", "checkpoint_notice_s", "start_not_before")
    assert None not in [getattr(job, name) for name in names]
    assert kant("change", "job", "--time", "none", "--time-limit", "none")[0] == 0
    job.refresh_from_db()
    assert [getattr(job, name) for name in names[:2]] == [None, None]
    assert (job.checkpoint_notice_s, job.priority) == (60, 0)
    assert kant("change", "job", "--checkpoint-notice", "none", "--begin", "none")[0] == 0
    job.refresh_from_db()
    assert [getattr(job, name) for name in names] == [None] * 4
    file = tmp_path / "job.json"
    file.write_text('{"name": "filed", "gpus": 1, "declared_s": 60, "run_limit_s": 90}')
    assert kant("submit", "-f", str(file), "--time", "none")[0] == 0
    assert Job.objects.filter(name="filed", declared_s=None, run_limit_s=90).exists()
    code, _, told = kant("change", "job", "--priority", "none")
    assert (code, "'none' is not a whole number" in told) == (2, True)


def test_waiting_ends_with_the_job_or_with_its_time(kant, monkeypatch):
    job = submit(kant, "job")
    code, _, told = kant("wait", job, "--timeout", "0")
    assert (code, "job is PENDING after 0 s" in told) == (6, True)
    rows = Job.objects.filter(pk=job)

    def at_the_third_look(state):
        """Change the job in the pause before the third look, when no request locks SQLite."""
        pauses = itertools.count(1)

        def pause(_):
            if next(pauses) == 2:
                rows.update(state=state, message="It broke.")

        monkeypatch.setattr(jobs, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))

    at_the_third_look(JobState.RUNNING)
    assert kant("wait", job, "--until", "running")[:2] == (0, "RUNNING\n")
    at_the_third_look(JobState.FAILED)
    code, out, told = kant("wait", job)
    assert (code, out, "job: It broke." in told) == (1, "FAILED\n", True)


def test_nobody_waits_for_what_will_never_run(kant):
    job = submit(kant, "job")
    Job.objects.filter(pk=job).update(reason="ExceedsMaxQuota", message="Its tenant has 0 GPUs.")
    code, _, told = kant("wait", job)
    assert (code, "job will never run: Its tenant has 0 GPUs." in told) == (5, True)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InterfaceError("connection already closed"), "The database does not answer."),
        (IntegrityError("x"), ""),
        (RedisError("x"), ""),
        (TimeoutError("x"), ""),
    ],
    ids=repr,
)
def test_only_of_the_database_it_is_said_that_it_does_not_answer(kant, monkeypatch, error, said):
    def fails(*_):
        raise error

    monkeypatch.setattr("scheduling.queries.selectors.visible_jobs", fails)
    monkeypatch.setattr("tenants.api.problems.RETRY_AFTER_S", 0)
    code, out, told = kant("jobs")
    assert (code, out) == (1, "")
    assert said in told
    assert ("database" in told) is bool(said)
    assert "Traceback" not in told


def test_quotas_nodes_and_clusters(kant):
    assert kant("quotas")[1:] == ("", "There are no quotas that you may see.\n")
    heads, *rows = kant("nodes")[1].splitlines()
    assert heads.split() == [
        *("NODE", "TYPE", "GPUS", "HEALTHY", "ALLOCATED", "CPU", "GIB", "LEAF", "STATE")
    ]
    assert [row.split()[0] for row in rows] == ["a000", "a001", "h000", "h001", "h002", "h003"]
    amounts = {"cpu_milli": 64_000, "memory_mib": 262_144}
    NodeRecord.objects.filter(name="a000").update(
        **amounts, allocated_cpu_milli=31_850, allocated_memory_mib=65_536
    )
    assert kant("nodes")[1].splitlines()[1].split()[5:7] == ["31.9/64", "64/256"]
    assert kant("clusters")[1].splitlines()[1].split()[0] == "demo"
    assert kant("nodes", "none")[0] == 3
    assert kant("nodes", "no such/cluster ä")[0] == 3


def test_a_token_that_can_be_none_is_told(kant, monkeypatch):
    monkeypatch.setenv("KANT_TOKEN", f"{kant.token}\n")
    assert kant("whoami")[0] == 0
    monkeypatch.setenv("KANT_TOKEN", "kant_ä")
    assert kant("whoami")[::2] == (
        4,
        "KANT_TOKEN is not an API token of Kant: they begin with “kant_”.\n",
    )


class Flaky(BaseHTTPRequestHandler):
    """Answer the first POST with 503 and the next with 201; answer a GET with a page."""

    keys: list[str] = []

    def do_POST(self):
        self.keys.append(self.headers["Idempotency-Key"])
        self.rfile.read(int(self.headers["Content-Length"]))
        first = len(self.keys) == 1
        self.send_response(503 if first else 201)
        if first:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(b"" if first else b'{"id": "x", "name": "n", "cluster": "c", "gpus": 1}')

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_):
        pass


def test_a_submission_without_an_answer_is_sent_again_with_the_same_key(
    monkeypatch, capsys, tmp_path
):
    server = HTTPServer(("127.0.0.1", 0), Flaky)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    shell = Shell(None, url, monkeypatch, capsys, tmp_path)
    monkeypatch.setenv("KANT_TOKEN", "kant_x")
    assert shell("submit", "-n", "n", "-t", "t", "-o", "id")[:2] == (0, "x\n")
    assert len(Flaky.keys) == 2
    assert len(set(Flaky.keys)) == 1
    code, _, told = shell("jobs")
    assert (code, "answers, but is not Kant" in told) == (1, True)
    server.shutdown()
    server.server_close()
    code, _, told = shell("jobs")
    assert (code, f"{url} does not answer" in told) == (1, True)
    monkeypatch.setenv("KANT_URL", "ftp://x")
    assert shell("jobs")[0] == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("1d12h", 129_600), ("1w", 604_800)],
)
def test_durations(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("word", "name"), [("python", "python"), ("/bin/Train_1.py", "train-1-py"), ("---", "job")]
)
def test_a_job_is_named_after_its_command(word, name):
    assert name_of([word]) == name


def test_when_a_waiting_job_starts_is_shown_in_a_line(kant):
    job = submit(kant, "waits")
    line = next(each for each in kant("show", job)[1].splitlines() if each.startswith("starts "))
    assert "no estimate: Kant is still working it out" in line
    Job.objects.update(reason="InsufficientGpus")
    at = timezone.now() + timedelta(hours=1)
    told = StartEstimate.objects.create(
        job_id=job, p10=at, p50=at, p90=at + timedelta(hours=1), basis="declared", as_of=at
    )
    assert re.search(r"starts +between \d{4}-.* and \d{4}-", kant("show", job)[1])
    at = timezone.now() - timedelta(hours=3)
    StartEstimate.objects.filter(pk=told.pk).update(p10=at, p50=at, p90=at)
    assert re.search(r"starts +overdue; expected before \d{4}-", kant("show", job)[1])
    late = {"none": "It is too late to tell.", "earliest": timezone.now() + timedelta(days=4)}
    StartEstimate.objects.filter(pk=told.pk).update(p10=None, p50=None, p90=None, **late)
    assert re.search(r"starts +hardly before \d{4}-", kant("show", job)[1])
    assert re.match(r"Nine in ten after \d{4}-.*\. It is too late to tell\.", kant("eta", job)[1])
    Job.objects.update(state="SUCCEEDED")
    assert "\nstarts " not in kant("show", job)[1]
