"""What `kant submit` makes of flags and files, against a Kant that really answers."""

import json

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


def test_what_pods_use_of_their_namespace_is_asked_for_and_shown(kant, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: mine\ngpu_type: H100\ngpus: 8\n"
        "volumes: [{name: data, persistent_volume_claim: sets, mount_path: /data}]\n"
        "env_from_secrets: {OLD: {secret: a, key: b}}\n"
    )
    code, out, _ = kant(
        "submit", "-o", "id", "-f", str(file), "--env-from-secret", "KEY=wandb/api-key",
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
    for text, words in (("[1]", "holds no job"), ("a: [", "neither JSON nor YAML")):
        file.write_text(text)
        code, _, told = kant("submit", "-f", str(file))
        assert (code, words in told and str(file) in told) == (2, True)
    code, _, told = kant("submit", "-f", str(tmp_path / "none"))
    assert (code, "cannot be read" in told) == (2, True)


def test_a_dry_run_submits_nothing(now, kant):
    flags = ("submit", "-n", "x", "-g", "8", "-G", "H100", "--dry-run")
    would = "Would submit x to demo: 8 GPUs of vision.\n"
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
    unknown = "Whether it would start now cannot be told. "
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
    assert "3 jobs, 24 GPUs of vision.\nOf its first job:\nIt would start now: 1 pod" in out
    NodeRecord.objects.filter(gpu_model="H100").update(schedulable=False)
    out = kant(*flags, "-r", "2")[1]
    assert "InsufficientGpus" not in out  # the sentence tells
    for words in ("0 H100 GPUs free", "try: ", "numbers "):
        assert words in out
    out = kant("submit", "-n", "x", "-g", "4", "-G", "H100", "--dry-run")[1]
    assert "would start now: On A100: 1 pod on 1 node in 1 leaf.\n" in out
    assert not Job.objects.exists()
