"""Shell completion of the command line, run by a shell and read from the file that Kant serves."""

import os
import shutil
import subprocess
import urllib.request

import pytest

from kant.client.__main__ import _parser
from tests.requirements import missing


@pytest.fixture
def job(kant):
    # Not letters that start ids, which are completed too.
    kant("submit", "-o", "id", "-n", "gpt-large", "-g", "1", "-G", "H100")
    return kant("submit", "-o", "id", "-n", "resnet", "-g", "1", "-G", "H100")[1].strip()


def asked(kant, *words) -> list[str]:
    code, out, told = kant("complete", *words)
    assert (code, told) == (0, "")
    return [line.partition("\t")[0] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("can",), ["cancel"]),
        (("quota", ""), ["set", "changes", "revert", "draft", "order", "orders"]),
        (("show", "-o", ""), ["table", "json"]),
        (("show", "-o", "=", "j"), ["json"]),
        (("submit", "--no"), ["--no-gang", "--no-preemptible", "--no-preempts", "--node-selector"]),
        (("quota", "set", "vision", "H100", "--mode", "i"), ["isolated"]),
        (("quota", "set", "vision", "H100", "--b"), ["--borrow-limit"]),
        (("wait", "--until", "r"), ["running"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("submit", "-g", ""), []),
        (("change", "--time-limit", ""), ["none"]),
        (("change", "--begin", "no"), ["none"]),
        (("change", "--time", "2"), []),
        (("wait", "--timeout", ""), []),
        (("submit", "--dry-run", "--", "--n"), []),
        (("usage", "--by", "t"), ["tenant"]),
        (("usage", "--by", "tenant,u"), ["tenant,user"]),
        (("usage", "--by", "user,u"), []),
        (("usage", "-o", "c"), ["csv"]),
        (("nonsense", ""), []),
        (("complet",), ["completion"]),
    ],
)
def test_words_are_completed_from_the_parser(kant, words, found):
    assert asked(kant, *words) == found


def test_every_command_and_flag_is_offered_with_its_help(kant):
    offered = dict(line.split("\t") for line in kant("complete", "")[1].splitlines())
    told = _parser().format_help()
    assert len(offered) > 15
    for name, text in offered.items():
        assert text
        assert f"\n    {name}" in told
        flags = asked(kant, name, "-")
        assert {"-h", "--help"} <= set(flags)


def test_jobs_are_completed_by_name_and_by_id(kant, job):
    assert asked(kant, "cancel", "gp") == ["gpt-large"]
    assert asked(kant, "cancel", "gpt-large", "res") == ["resnet"]
    assert asked(kant, "show", job[:6]) == [job]
    assert asked(kant, "submit", "--after", "") == ["resnet", "gpt-large"]
    assert asked(kant, "submit", "--like", "gp") == ["gpt-large"]
    assert kant("complete", "show", "res")[1] == "resnet\tPENDING\n"


def test_who_is_not_signed_in_is_not_disturbed(kant, job, monkeypatch):
    monkeypatch.delenv("KANT_TOKEN")
    assert asked(kant, "cancel", "gp") == []
    monkeypatch.setenv("KANT_TOKEN", "kant_wrong")
    assert asked(kant, "cancel", "gp") == []
    monkeypatch.setenv("KANT_URL", "http://127.0.0.1:1")
    assert asked(kant, "cancel", "gp") == []
    assert asked(kant, "can") == ["cancel"]


def test_bash_completes_with_the_file_that_kant_serves(kant, job, tmp_path):
    if (bash := shutil.which("bash")) is None:
        missing("bash", "install it")
    file = tmp_path / "kant"
    with urllib.request.urlopen(f"{kant.url}/cli/kant") as answer:
        file.write_bytes(answer.read())
    file.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KANT_URL": kant.url}

    def completed(*words: str, token: str = kant.token) -> list[str]:
        typed = " ".join(f"'{word}'" for word in words)
        script = f"""
            source <({file} completion bash) || exit 1
            complete -p kant >/dev/null || exit 2
            COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}
            _kant_complete
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        ran = subprocess.run(
            [bash, "--norc", "-c", script],
            env={**env, "KANT_TOKEN": token},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout.split()

    assert completed(str(file), "ho") == ["hold"]
    assert completed("~/kant", "explain", "g") == ["gpt-large"]
    assert completed(str(file), "explain", "g", token="") == []
    assert completed(str(file), "quota", "set", "vision", "H100", "--mode", "") == [
        "shared",
        "isolated",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_that_a_shell_of_this_machine_can_read_are_read(kant, shell):
    code, out, told = kant("completion", shell)
    assert (code, told) == (0, "")
    assert "complete" in out
    if found := shutil.which(shell):
        ran = subprocess.run([found, "-n"], input=out, text=True, capture_output=True)
        assert (ran.returncode, ran.stderr) == (0, "")
    assert kant("completion", "tcsh")[0] == 2
