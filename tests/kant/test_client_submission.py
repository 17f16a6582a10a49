"""`kant submit` turns flags and files into the right job, against a real Kant server."""

import json
from typing import Any

from django.forms import model_to_dict

from kant.client.batch import calls
from scheduling.models import Cluster, Job, NodeRecord
from tenants.models import Quota


def test_flags_become_the_job(kant):
    code, out, told = kant(
        "submit", "-G", "A100", "-G", "H100", "-g", "4", "-r", "2", "--min-count", "1",
        "--time", "1h30m", "--cpu", "0.5", "--near", "leaf", "--no-preemptible", "--label", "a=b",
        "-e", "X=1=2", "--hold",
        "--", "bin/Train.py", "--lr", "0.1",
    )  # fmt: skip
    job = Job.objects.get()
    assert (code, out) == (0, f"Submitted train-py to demo: 8 GPUs.\n{job.pk}\n")
    assert f"kant explain {str(job.pk)[:8]}" in told
    assert (job.tenant.name, job.declared_s, job.preemptible, job.held) == (
        "vision",
        5400,
        False,
        True,
    )
    assert job.labels == {"a": "b"}
    pods = job.pod_sets.get()
    assert (pods.gpu_models, pods.count, pods.cpu_milli) == (["A100", "H100"], 2, 500)
    assert (pods.preferred_level, pods.env) == ("leaf", {"X": "1=2"})
    assert pods.min_count == 1
    assert pods.command == ["bin/Train.py", "--lr", "0.1"]
    after = kant(
        "submit", "-o", "id", "-n", "then", "-g", "1", "-G", "H100", "--after-ok", "train-py"
    )
    assert Job.objects.get(pk=after[1].strip()).after_ok == [str(job.pk)]


def not_called(name):
    return {"key": "metadata.name", "operator": "NotIn", "values": [name]}


def test_nodes_are_kept_out_of_each_term_of_the_affinity(kant, tmp_path):
    new = ("submit", "-n", "new", "-g", "1", "-G", "H100", "-x", "n1", "--exclude-node", "n2")
    assert kant(*new)[0] == 0
    [term] = Job.objects.get(name="new").pod_sets.get().node_affinity
    assert term == {"match_expressions": [], "match_fields": [not_called("n1"), not_called("n2")]}
    assert kant("submit", "--like", "new", "-n", "again", "-x", "n3")[0] == 0
    [term] = Job.objects.get(name="again").pod_sets.get().node_affinity
    assert term["match_fields"] == [not_called(name) for name in ("n1", "n2", "n3")]
    either = [
        {"match_expressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        for zone in "ab"
    ]
    sets = [{"name": n, "gpus": 1, "gpu_type": "H100", "node_affinity": either} for n in "pq"]
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"name": "zones", "pod_sets": sets}))
    assert kant("submit", "-f", str(file), "-x", "n1")[0] == 0
    told = "zone In a and metadata.name NotIn n1 or zone In b and metadata.name NotIn n1"
    assert told in kant("show", "zones")[1]
    for pods in Job.objects.get(name="zones").pod_sets.all():
        affinity = pods.node_affinity
        assert [t["match_fields"] for t in affinity] == [[not_called("n1")]] * 2
        assert [t["match_expressions"] for t in affinity] == [
            t["match_expressions"] for t in either
        ]
    file.write_text(json.dumps({"name": "zones", "gpus": 1, "node_affinity": {"zone": "a"}}))
    code, _, told = kant("submit", "-f", str(file), "-x", "n1")
    assert (code, "node_affinity of the job is not a list of terms" in told) == (2, True)


def test_a_job_without_gpus_says_so(kant):
    NodeRecord.objects.create(cluster=kant.org.cluster, name="cpu", cpu_milli=8000)
    told = kant("submit", "-n", "prep", "--cpu", "2", "--hold", "--", "prep")[1]
    assert told.startswith("Submitted prep to demo: without GPUs.\n")
    told = kant("submit", "-n", "prep", "--cpu", "2", "--array", "3", "--dry-run", "--", "prep")[1]
    assert told.startswith("Would submit prep of vision to demo: 3 jobs, without GPUs.\n")
    shown = kant("show", "prep")[1]
    assert ("cpu_milli  2000" in shown, "gpu_milli" in shown) == (True, False)


def test_what_pods_use_of_their_namespace_is_asked_for_and_shown(kant, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: mine\ngpu_type: H100\ngpus: 8\n"
        "volumes: [{name: data, persistent_volume_claim: sets, mount_path: /data}]\n"
        "env_from_secrets: {OLD: {secret: a, key: b}}\n"
    )
    code, out, _ = kant(
        "submit", "-o", "id", "-f", str(file), "--env-from-secret", "KEY=wandb/api-key",
        "--device-claim", "nic=nic.example.com:2", "--device-claim", "x=template/two",
        "--service-account", "trainer", "--image-pull-secret", "registry", "--shm", "1024",
    )  # fmt: skip
    pods = Job.objects.get(pk=out.strip()).pod_sets.get()
    assert (code, pods.service_account, pods.shm_mib) == (0, "trainer", 1024)
    assert pods.image_pull_secrets == ["registry"]
    assert pods.env_from_secrets == {
        "OLD": {"secret": "a", "key": "b"},
        "KEY": {"secret": "wandb", "key": "api-key"},
    }
    shown = kant("show", "mine")[1]
    for line in (
        "volumes             persistent_volume_claim sets at /data",
        "env_from_secrets    OLD=a/b, KEY=wandb/api-key",
        "service_account     trainer",
        "device_claims       nic=nic.example.com:2, x=template/two",
    ):
        assert line in shown
    code, _, told = kant("submit", "-n", "x", "--env-from-secret", "KEY=wandb")
    assert (code, "is not NAME=SECRET/KEY" in told) == (2, True)


def test_a_file_is_the_job_and_flags_go_before_it(kant, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("name: mine\ntenant: vision\ngpu_type: H100\ngpus: 8\nlabels: {a: b}\n")
    flags = ("submit", "-o", "json", "-g", "2", "-G", "A100", "--label", "c=d")
    code, out, _ = kant(*flags, "-f", str(file))
    made = json.loads(out)
    assert (code, made["name"], made["gpus"], made["labels"]) == (
        0,
        "mine",
        2,
        {"a": "b", "c": "d"},
    )
    assert made["pod_sets"][0]["gpu_types"] == ["A100"]
    code, out, _ = kant(*flags, "-f", "-", stdin='{"name": "piped"}')
    assert (code, json.loads(out)["name"]) == (0, "piped")
    for text, words in (
        ("[1]", "contains no job"),
        ("a: [", "neither JSON nor YAML"),
        ('{"gpus": 1, "gpus": 2}', "the name 'gpus' appears twice"),
        ("gpus: 1\nenv: {A: x, A: y}", "the name 'A' appears twice"),
        ("\0", "neither JSON nor YAML"),
        ('{"gpus": ' + "9" * 5000 + "}", "cannot be read: Exceeds the limit (4300 digits)"),
        ("not_before: 2026-13-01", "cannot be read: month must be in 1..12"),
        ("gpus: 0x_", "holds a value that cannot be read"),
        ("env: !!set {A}", "a set is not a JSON value"),
        ("env: !!binary YQ==", "a bytes is not a JSON value"),
        ("labels: {1: a}", "the name 1 is not text: put it into quotes"),
        ("labels: {[1]: a}", "neither JSON nor YAML"),
    ):
        file.write_text(text)
        code, _, told = kant("submit", "-f", str(file))
        assert (code, words in told and str(file) in told) == (2, True), told
    code, _, told = kant("submit", "-f", str(tmp_path / "none"))
    assert (code, "cannot be read" in told) == (2, True)


def test_a_dry_run_submits_nothing(now, kant):
    flags = ("submit", "-n", "x", "-g", "8", "-G", "H100", "--dry-run")
    would = "Would submit x of vision to demo: 8 GPUs.\n"
    code, out, told = kant(*flags)
    assert (code, out) == (0, f"{would}quota of H100  vision has none\n")
    assert told == "Warning: Tenant vision has no quota for H100.\n"
    for gpu_type, gpus in (("H100", 4), ("A100", 8)):
        Quota.objects.create(
            tenant=kant.org.tenants["vision"],
            gpu_type=kant.org.gpu_types[gpu_type],
            guaranteed_milli=gpus * 1000,
        )
    assert "can never hold more than 4 H100 GPUs" in kant(*flags)[2]
    Quota.objects.create(
        tenant=kant.org.tenants["law"],
        gpu_type=kant.org.gpu_types["H100"],
        guaranteed_milli=28_000,
    )
    unknown = "Kant cannot tell whether it would start now. "
    assert kant(*flags)[1].startswith(f"{would}{unknown}The scheduler of cluster demo has not")
    Cluster.objects.update(connected=True, last_cycle_at=now)
    code, out, told = kant(*flags)
    assert (code, told) == (0, "")
    assert out.startswith(
        f"{would}It would start now: 1 pod on 1 node in 1 leaf.\n"
        "quota of H100  vision uses 0 of 4; would borrow 4\n"
        "ahead          0 waiting\n"
        "as of  "
    )
    out = kant(*flags, "--array", "3")[1]
    assert "3 jobs, 24 GPUs.\nOf its first job:\nIt would start now: 1 pod" in out
    NodeRecord.objects.filter(gpu_model="H100").update(schedulable=False)
    out = kant(*flags, "-r", "2")[1]
    assert "InsufficientGpus" not in out  # the message names it
    for words in ("0 are free", "try: ", "numbers "):
        assert words in out
    out = kant("submit", "-n", "x", "-g", "4", "-G", "H100", "--dry-run")[1]
    assert "would start now: On A100: 1 pod on 1 node in 1 leaf.\n" in out
    assert not Job.objects.exists()


def asked(job: Job) -> list[dict[str, Any]]:
    """Return what a job and its pod sets request."""
    own = {"id", "job", "submitted_at", "reason_at", "name", "user"}
    return [model_to_dict(row, exclude=own) for row in (job, *job.pod_sets.all())]


def test_a_job_is_submitted_again_with_small_changes(kant):
    kant(
        "submit", "-n", "bert", "-G", "A100", "-G", "H100", "-g", "4", "-r", "2", "--time", "1h",
        "-e", "LR=1", "--label", "team=a", "--near", "leaf", "--", "python", "train.py",
    )  # fmt: skip
    first = Job.objects.get()
    code, out, _ = kant("submit", "-o", "id", "--like", "bert")
    assert (code, asked(Job.objects.get(pk=out.strip()))) == (0, asked(first))
    code, out, _ = kant(
        "submit", "-o", "id", "--like", str(first.pk)[:8], "-n", "bert-2", "-e", "LR=2", "-e",
        "SEED=7", "-G", "H100", "-r", "3", "--time", "none", "--near", "spine", "--", "other",
    )  # fmt: skip
    again = Job.objects.get(pk=out.strip())
    pods = again.pod_sets.get()
    assert (code, again.name, again.declared_s, again.labels) == (0, "bert-2", None, {"team": "a"})
    assert (pods.gpu_models, pods.count, pods.gpus) == (["H100"], 3, 4)
    assert (pods.env, pods.command) == ({"LR": "2", "SEED": "7"}, ["other"])
    assert (pods.preferred_level, again.preferred_level) == ("spine", "")
    code, out, _ = kant("submit", "--like", "bert-2", "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "Would submit bert-2 of vision to demo: 12 GPUs.")
    assert Job.objects.count() == 3
    assert kant("submit", "--like", "nobody")[0] == 3
    code, _, told = kant("submit", "--like", "bert-2", "-f", "-", stdin="{}")
    assert (code, "not allowed with argument" in told) == (2, True)


def test_an_array_is_submitted_again_and_so_is_one_job_of_it(kant):
    array = kant("submit", "-o", "id", "-n", "sweep", "-g", "1", "-G", "H100", "--array", "3")[1]
    again = kant("submit", "-o", "id", "--like", array.strip())[1].strip()
    rows = Job.objects.filter(array_id=again).values_list("name", flat=True)
    assert set(rows) == {"sweep-0", "sweep-1", "sweep-2"}
    more = kant("submit", "-o", "id", "--like", again, "--array", "5")[1].strip()
    assert Job.objects.filter(array_id=more).count() == 5
    member = Job.objects.get(array_id=more, array_index=4)
    one = Job.objects.get(pk=kant("submit", "-o", "id", "--like", str(member.pk))[1].strip())
    assert (one.name, one.array_id) == ("sweep-4", None)
    assert one.pod_sets.get().env["KANT_ARRAY_INDEX"] == "4"


def test_a_flag_goes_to_the_pod_set_that_it_can_mean(kant, tmp_path):
    file = tmp_path / "job.yaml"
    head = "name: pair\ntenant: vision\npreferred_level: spine\npod_sets:\n"
    worker = "- {name: worker, gpu_type: H100, gpus: 8, preferred_level: leaf, env: {A: '1'}}\n"
    file.write_text(head + worker)
    kant("submit", "-f", str(file))
    flags = ("-r", "2", "-g", "4", "-G", "A100", "--near", "superspine", "-e", "B=2", "--", "run")
    for base in (("--like", "pair"), ("-f", str(file))):
        code, out, _ = kant("submit", "-o", "id", *base, "--priority", "3", *flags)
        job = Job.objects.get(pk=out.strip())
        pods = job.pod_sets.get()
        assert (code, job.priority, pods.count, pods.gpus) == (0, 3, 2, 4)
        assert (pods.gpu_models, pods.command) == (["A100"], ["run"])
        assert (job.preferred_level, pods.preferred_level) == ("", "superspine")
        assert pods.env == {"A": "1", "B": "2"}
        kant("cancel", str(job.pk))
    file.write_text(f"{head}{worker}- {{name: head, cpu_milli: 500}}\n".replace("pair", "two"))
    kant("submit", "-f", str(file))
    for base in (("--like", "two"), ("-f", str(file))):
        code, _, told = kant("submit", *base, "-g", "4", "--cpu", "2", "-e", "A=2", "--", "run")
        assert code == 2
        assert told == (
            "The job has several pod sets (worker, head), and it is unclear which one --gpus, "
            "--cpu, the command is for. Set it in the job's document and submit that with --file.\n"
        )
        shared = ("-n", "three", "-e", "A=2", "--near", "leaf", "--label", "a=b")
        code, out, _ = kant("submit", "-o", "id", *base, *shared)
        job = Job.objects.get(pk=out.strip())
        assert (code, job.preferred_level, job.labels) == (0, "leaf", {"a": "b"})
        assert [pods.env for pods in job.pod_sets.all()] == [{"A": "2"}, {"A": "2"}]


def test_what_cannot_be_submitted_again_is_said(kant):
    before = kant("submit", "-o", "id", "-n", "before", "-g", "1", "-G", "H100")[1].strip()
    flags = ("-g", "1", "-G", "H100", "--after", "before", "--after-ok", "before")
    job = Job.objects.get(pk=kant("submit", "-o", "id", "-n", "after", *flags)[1].strip())
    again = kant("submit", "-o", "id", "--like", "after", "-n", "again")[1].strip()
    assert Job.objects.get(pk=again).after == [before]
    Job.objects.get(pk=before).delete()
    code, out, told = kant("submit", "-o", "id", "--like", "after", "-n", "x", "--after-ok", again)
    made = Job.objects.get(pk=out.strip())
    assert (code, made.after, made.after_ok) == (0, [], [again])
    assert told == f"Left out: after {before}, which is deleted, or which you may not see.\n"
    Job.objects.filter(pk=job.pk).update(pod_namespace="web", pod_name="notebook-0")
    code, _, told = kant("submit", "--like", "after")
    assert (code, "stands for pod web/notebook-0" in told) == (1, True)


def test_the_jobs_of_a_file_are_accepted_or_refused_each_for_itself(kant, tmp_path):
    one = {"name": "a", "gpu_type": "H100", "gpus": 1}
    jobs = [one, {**one, "name": "b", "gpus": -1}, {**one, "name": "c", "array": {"count": 3}}]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    code, out, told = kant("submit-many", str(tmp_path / "jobs.json"))
    assert code == 1
    rows = [line.split() for line in out.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["a", "201"], ["b", "422"], ["c", "201"]]
    assert "gpus: Must be" in out.splitlines()[2]
    assert told.splitlines() == ["Submitted 2 of 3.", "1 refused."]
    assert sorted(Job.objects.values_list("name", flat=True)) == ["a", "c-0", "c-1", "c-2"]
    code, out, told = kant("submit-many", "-", "-o", "id", stdin=json.dumps({"jobs": [one] * 2}))
    assert (code, told) == (0, "Submitted 2 of 2.\n")
    assert Job.objects.filter(pk__in=out.split()).count() == 2


def test_a_file_without_jobs_is_told(kant):
    for text, said in (("{}", "contains no jobs"), ("[]", "contains no jobs"), ("[1]", "entry 1")):
        code, out, told = kant("submit-many", "-", stdin=text)
        assert (code, out) == (2, "")
        assert said in told


def test_a_call_has_no_more_documents_and_jobs_than_kant_takes():
    sweeps = [{"array": {"count": n}} for n in (5000, 5000, 5000, 9999)]
    assert [len(some) for some in calls([*sweeps, {}, {}, {"array": "x"}])] == [2, 1, 2, 2]
    assert [len(some) for some in calls([{}] * 2500)] == [1000, 1000, 500]
