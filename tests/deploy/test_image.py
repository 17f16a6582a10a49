"""The Dockerfile and what it makes: nothing but Kant, its packages, and what it serves."""

import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from django.conf import settings

from tests.deploy.image import Step, assemble, context, environment, stages
from tests.deploy.manifests import ROOT


def steps(stage, name):
    return [step.text for step in stage if step.name == name]


def test_both_stages_are_the_python_that_kant_is_written_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version = project["tool"]["mypy"]["python_version"]
    assert [stage[0].text for stage in stages()] == [
        f"python:{version} AS build",
        f"python:{version}-slim",
    ]


def test_packages_are_those_of_requirements_txt_and_no_others():
    build, final = stages()
    assert [run for run in steps(build, "RUN") if "pip" in run] == [
        "pip install --no-cache-dir -r requirements.txt"
    ]
    assert steps(final, "RUN") == []
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert not [line for line in lines if line.startswith("-")]


def test_the_image_holds_what_was_built_and_runs_as_nobody_in_particular():
    build, final = stages()
    [venv] = [run.split()[-1] for run in steps(build, "RUN") if run.startswith("python -m venv ")]
    [home] = steps(final, "WORKDIR")
    assert steps(final, "COPY") == [f"--from=build {path} {path}" for path in (venv, home)]
    assert environment(final)["PATH"] == environment(build)["PATH"] == f"{venv}/bin:$PATH"
    assert environment(final)["KANT_EMBEDDED"] == environment(build)["KANT_EMBEDDED"] == "false"
    # By number, which a kubelet can tell from that of root.
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", steps(final, "USER")[0])


def test_no_step_is_unknown_here_and_none_sets_a_secret():
    known = {"FROM", "RUN", "ENV", "COPY", "WORKDIR", "USER", "EXPOSE"}
    for stage in stages():
        assert {step.name for step in stage} <= known
        assert environment(stage).keys() <= {
            "PATH", "KANT_EMBEDDED", "PYTHONUNBUFFERED", "MALLOC_ARENA_MAX",
        }  # fmt: skip


# Twenty threads that all hold memory of the C library, and then its account of its heaps.
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


def test_every_part_of_kant_is_copied_and_nothing_else():
    apps = {app.split(".")[0] for app in settings.INSTALLED_APPS}
    ours = {app for app in apps if (ROOT / app).is_dir()}
    assert set(context()) == {*ours, "manage.py", "requirements.txt", "static", "templates"}
    assert all((ROOT / name).exists() for name in context())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return assemble(tmp_path_factory.mktemp("image"))


def test_static_files_are_collected_and_no_key_or_database_is_made(made):
    assert {path.name for path in made.iterdir()} == {*context(), "staticfiles", "__pycache__"}
    names = yaml.safe_load((made / "staticfiles" / "staticfiles.json").read_text())["paths"]
    for path in (ROOT / "static").rglob("*"):
        if path.is_file():
            assert (made / "staticfiles" / names[str(path.relative_to(ROOT / "static"))]).exists()


def test_it_decides_by_machine_code(made):
    [build] = [step for step in stages()[0] if "compile_core" in step.text]
    assert build == Step("RUN", "python -m scheduling.compile_core")
    asked = "from scheduling import compiled; print(compiled.in_use())"
    told = subprocess.run([sys.executable, "-c", asked], cwd=made, capture_output=True, text=True)
    assert told.stdout == "True\n", told.stderr


def test_modules_are_compiled_where_nobody_can_do_it_later(made):
    assert Step("RUN", "python -m compileall -q .") in stages()[0]
    assert list((made / "kant" / "__pycache__").glob("settings.*.pyc"))
