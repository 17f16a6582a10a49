"""`kant templates` and `kant submit --template` against a real Kant server."""

import json

from scheduling.models import Job, JobTemplate


def test_a_job_is_saved_used_and_deleted_as_a_template(kant):
    flags = ("-G", "H100", "-g", "4", "-r", "2", "-e", "LR=1", "-e", "API_TOKEN=abc", "--hold")
    kant("submit", "-n", "bert", *flags)
    assert kant("templates", "save", "big", "--like", "bert")[0] != 0  # an engineer
    kant.sign_in("ada")
    save = ("templates", "save", "big", "--like", "bert", "--description", "Two of four")
    code, out, _ = kant(*save, "--dry-run")
    assert (code, out) == (0, "Would save template big of vision.\n")
    assert not JobTemplate.objects.exists()
    assert kant(*save)[0] == 0
    kant.sign_in("eve")
    code, out, _ = kant("templates")
    assert code == 0
    assert out.splitlines()[1].split()[:7] == ["big", "vision", "Two", "of", "four", "H100", "ada"]
    [told] = json.loads(kant("templates", "-o", "json")[1])
    assert told["name"] == "big"
    for name in ("big", "vision/big", told["id"]):
        code, out, _ = kant("submit", "-o", "id", "--template", name, "-g", "2")
        job = Job.objects.get(pk=out.strip())
        pods = job.pod_sets.get()
        assert (job.name, job.held, pods.gpus, pods.count) == ("big", False, 2, 2)
        assert pods.env == {"LR": "1"}
    assert kant("submit", "--template", "none")[0] == 3
    assert kant("templates", "delete", "big")[0] != 0
    kant.sign_in("ada")
    assert kant("templates", "delete", "big")[:2] == (0, "Template big is deleted.\n")
    assert "There are no templates." in "".join(kant("templates")[1:])


def test_a_name_of_two_templates_is_made_plain(kant):
    kant("submit", "-n", "bert", "-G", "H100", "-g", "1")
    kant.sign_in("root")
    for tenant in ("ml", "vision"):
        assert kant("templates", "save", "one", "--like", "bert", "-t", tenant)[0] == 0
    code, _, told = kant("submit", "--template", "one")
    assert (code, "matches 2 templates" in told) == (2, True)
    kant.sign_in("eve")
    assert kant("submit", "--template", "vision/one")[0] == 0
