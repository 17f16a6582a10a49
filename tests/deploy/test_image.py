"""The image holds nothing but Kant, its packages and the files that it serves."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from django.conf import settings
from packaging.requirements import Requirement

from scheduling import compiled
from tests.deploy import image
from tests.deploy.image import context, environment, path_of, pins, programs, stages
from tests.deploy.manifests import ROOT, command, containers, deployments

# `make test` makes the image first; if these tests run alone, the first of them makes it.
pytestmark = pytest.mark.timeout(1800)


def steps(stage, name):
    return [step.text for step in stage if step.name == name]


def test_both_stages_are_the_python_that_kant_is_written_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version = project["tool"]["mypy"]["python_version"]
    assert [stage[0].text for stage in stages()] == [
        f"python:{version} AS build",
        f"python:{version}-slim",
    ]


def test_the_first_stage_makes_wheels_and_the_second_installs_them():
    build, final = stages()
    assert steps(build, "RUN") == [
        "pip install -r requirements.txt -r requirements-build.txt",
        "pip wheel --no-build-isolation --wheel-dir /wheels .",
    ]
    assert steps(final, "RUN") == [
        "--mount=type=bind,from=build,source=/wheels,target=/wheels "
        "pip install --no-cache-dir --no-index --find-links /wheels kant",
        "python manage.py collectstatic --noinput",
    ]
    assert steps(final, "COPY") == []


def test_what_builds_is_not_needed_by_what_runs():
    parts = ["-r requirements.txt", "-r requirements-build.txt"]
    assert pins("requirements-dev.txt")[:2] == parts
    tools = pins("requirements-build.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["build-system"]["requires"] == tools
    names = {Requirement(each).name for each in pins("requirements.txt")}
    assert names.isdisjoint({Requirement(each).name for each in tools})


def test_the_image_runs_as_nobody_in_particular_where_pip_puts_the_wheel():
    _, final = stages()
    version = final[0].text.removeprefix("python:").removesuffix("-slim")
    assert steps(final, "WORKDIR") == [f"/usr/local/lib/python{version}/site-packages"]
    assert environment(final)["KANT_EMBEDDED"] == "false"
    # A number, because a kubelet cannot tell whether a user name is root.
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", steps(final, "USER")[0])


def test_no_step_is_unknown_here_and_none_sets_a_secret():
    known = {"FROM", "RUN", "ENV", "COPY", "WORKDIR", "USER", "EXPOSE"}
    for stage in stages():
        assert {step.name for step in stage} <= known
        assert environment(stage).keys() <= {
            "KANT_EMBEDDED", "PYTHONUNBUFFERED", "MALLOC_ARENA_MAX",
        }  # fmt: skip


# Start twenty threads that all hold memory of the C library, then read its count of heaps.
THREADS = """
import ctypes, threading
together = threading.Barrier(20)
def allocate():
    held = bytes(100_000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def test_threads_of_requests_share_two_heaps():
    most = environment(stages()[-1])["MALLOC_ARENA_MAX"]
    told = subprocess.run(
        [sys.executable, "-c", THREADS],
        env={"MALLOC_ARENA_MAX": most},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.count("<heap nr=") == 2


APPS = {app.split(".")[0] for app in settings.INSTALLED_APPS}
OURS = sorted(app for app in APPS if (ROOT / app).is_dir())
SHARED = ("static", "templates")
MAKES_THE_WHEEL = {
    "LICENSE", "pyproject.toml", "requirements-build.txt", "requirements.txt", "setup.py",
}  # fmt: skip


def test_every_part_of_kant_is_copied_and_nothing_else():
    assert set(context()) == {*OURS, *SHARED, "manage.py"} | MAKES_THE_WHEEL
    assert all((ROOT / name).exists() for name in context())


@pytest.fixture(scope="session")
def made():
    return image.made()


def run(made, *argv):
    """Run a command of the image in its environment; return its exit status and output."""
    env = {**environment(stages()[-1]), "PATH": path_of(made), "KANT_SECRET_KEY": "of this test"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # others share the folder, and root could write to it
    ran = subprocess.run(argv, cwd=made, env=env, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def files(folders, *kinds):
    """List the files in these folders of the checkout, by their paths in it."""
    found = {path for name in folders for kind in kinds for path in (ROOT / name).rglob(kind)}
    return sorted(path.relative_to(ROOT) for path in found if path.is_file())


def in_the_wheel():
    """List the files of a checkout that go into its wheel."""
    code = [*files(OURS, "*.py", "*.yaml"), Path("manage.py")]
    return {*code, *(Path("kant", path) for path in files(SHARED, "*"))}


def test_the_wheel_has_every_file_of_kant(made):
    assert [str(path) for path in sorted(in_the_wheel()) if not (made / path).is_file()] == []
    # Other files beside modules are for readers of the source.
    assert {path.suffix for path in files(OURS, "*")} <= {".py", ".pyc", ".yaml", ".md"}


def test_the_wheel_has_nothing_but_kant(made):
    [record] = made.glob("kant-*.dist-info/RECORD")
    names = {Path(line.partition(",")[0]) for line in record.read_text().splitlines()}
    core = compiled.SHIPPED.relative_to(ROOT)
    more = {
        path
        for path in names - in_the_wheel()
        if path.suffix != ".pyc" and path.parts[0] != record.parent.name
    }
    assert {path for path in more if not path.is_relative_to(core)} == set()
    assert {path.suffix for path in more} == {".so"}


def test_it_needs_what_requirements_txt_pins_and_no_more(made):
    [metadata] = made.glob("kant-*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    needs = [line.removeprefix("Requires-Dist: ") for line in lines if "Requires-Dist" in line]
    assert needs == pins("requirements.txt")
    assert not [*made.glob("mypy*"), *made.glob("setuptools*")]
    assert run(made, "python", "manage.py", "help")[0] == 0


def named_files(argv):
    """Return the files of Kant that a command names."""
    return [word for word in argv if word.endswith(".py") or ("/" in word and word[0] not in "/-")]


def commands():
    """Return every command that the manifests and the Dockerfile run in the image."""
    for name, deployment in deployments().items():
        for container in containers(deployment):
            yield f"{name} {container['name']}", command(container)
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "exec" in container.get(kind, {}):
                    yield f"{name} {kind}", container[kind]["exec"]["command"]
            for kind, hook in container.get("lifecycle", {}).items():
                if "exec" in hook:
                    yield f"{name} {kind}", hook["exec"]["command"]
    yield "collectstatic", shlex.split(steps(stages()[-1], "RUN")[-1])


@pytest.mark.parametrize(("of", "argv"), list(commands()))
def test_programs_files_and_modules_of_commands_are_in_the_image(made, of, argv):
    assert (programs(made) / argv[0]).exists(), of
    assert [name for name in named_files(argv) if not (made / name).is_file()] == [], of
    modules = [word.partition(":")[0] for word in argv if re.fullmatch(r"kant(\.\w+:\w+)?", word)]
    for module in modules:
        code = f"import importlib.util as u; print(u.find_spec({module!r}).origin)"
        status, said = run(made, "python", "-I", "-c", code)
        assert (status, said.startswith(str(made))) == (0, True), said
    assert named_files(argv) or modules, "it runs nothing of Kant"


@pytest.mark.parametrize("kind", ["startupProbe", "livenessProbe"])
def test_the_probe_of_the_scheduler_tells_one_that_works(made, tmp_path, kind):
    [main] = deployments()["scheduler"]["spec"]["template"]["spec"]["containers"]
    alive = tmp_path / "alive"
    assert {"name": "KANT_ALIVE_FILE", "value": "/tmp/alive"} in main["env"]
    asked = [str(alive) if each == "/tmp/alive" else each for each in main[kind]["exec"]["command"]]
    assert str(alive) in asked
    status, said = run(made, *asked)
    assert (status, "has not begun its work" in said) == (1, True), said
    alive.touch()
    assert run(made, *asked) == (0, "")
    os.utime(alive, (0, 0))
    status, said = run(made, *asked)
    assert (status, "the process hangs" in said) == (1, True), said


def test_commands_that_people_are_told_to_run_are_in_the_image(made):
    texts = [*(ROOT / "docs" / "operating").glob("*.md"), *(ROOT / "deploy").rglob("NOTES.txt")]
    told = {
        name
        for path in texts
        for name in re.findall(r"python (?:-I )?([\w/]+\.py)", path.read_text())
    }
    assert "manage.py" in told
    assert [name for name in sorted(told) if not (made / name).is_file()] == []


def test_static_files_are_collected_and_no_key_or_database_is_made(made):
    collected = made / "kant" / "staticfiles"
    names = yaml.safe_load((collected / "staticfiles.json").read_text())["paths"]
    for path in files(["static"], "*"):
        assert (collected / names[str(path.relative_to("static"))]).exists()
    assert not (made.parents[2] / "var").exists()


SERVED = """
import django
django.setup()
from django.test import Client
at = {"headers": {"host": "localhost"}, "secure": True}
page = Client().get("/login/", **at)
print(page.status_code, "<form" in page.content.decode())
style = page.content.decode().partition('rel="stylesheet" href="')[2].partition('"')[0]
print(Client().get(style, **at).status_code)
print(Client().get("/cli/kant", **at).status_code)
"""


def test_pages_and_their_files_are_served_from_the_wheel(made):
    as_kant = ["env", "DJANGO_SETTINGS_MODULE=kant.settings", "KANT_LOG_LEVEL=ERROR"]
    assert run(made, *as_kant, "python", "-c", SERVED) == (0, "200 True\n200\n200\n")


def test_embedded_it_keeps_its_data_in_the_environment(made):
    code = "from django.conf import settings as s; print(s.VAR_DIR)"
    env = ["env", "DJANGO_SETTINGS_MODULE=kant.settings", "KANT_EMBEDDED=true"]
    assert run(made, *env, "python", "-c", code) == (0, f"{made.parents[2] / 'var'}\n")


def test_it_decides_by_machine_code(made):
    asked = "from scheduling import compiled; print(compiled.in_use(), compiled.SHIPPED.exists())"
    assert run(made, "python", "-c", asked) == (0, "True True\n")


def test_modules_are_compiled_where_nobody_can_do_it_later(made):
    assert list((made / "kant" / "__pycache__").glob("settings.*.pyc"))
