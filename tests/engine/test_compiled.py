"""The compiled core is used only if it matches the sources, and decides exactly as they do."""

import copy
import copyreg
import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from kant import embedded
from scheduling import compile_core, compiled
from scheduling.engine.cluster.cluster import FACTS, REGISTRY, ClusterState
from scheduling.engine.cluster.columns import COLUMNS
from scheduling.simulator.workload import Variant
from tests.cases import NIGHTLY
from tests.kube.api import eventually

# Days of a small busy cluster; prints what each policy decides.
RUN = """
import json
from scheduling import compiled
from metrics.simulate import results as simulation
from metrics.simulate.inputs import fleet_of
from scheduling.engine.placement.strategies.by_name import STRATEGIES
from scheduling.simulator import workload
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Settings
from scheduling.simulator.nodes import engine_nodes

nodes = engine_nodes(fleet_of("24x8"))
variant = workload.Variant(load=1.2)
arrivals = list(
    workload.generate(variant, gpus=192, gpu_model=nodes[0].gpu_model, seed=5, hours=HOURS)
)
tenants, quotas = workload.tenants_of(192, nodes[0].gpu_model)
decided = {}
for policy in ("kant", "strict-fifo+binpack", "best-effort-fifo+e-binpack"):
    run = Simulation(
        nodes,
        arrivals,
        policy=simulation.policy_of(policy, list(STRATEGIES)),
        tenants=tenants,
        quotas=quotas,
        settings=Settings(stop_s=HOURS * 3600.0),
    )
    outcome = run.run()
    jobs = outcome.observer.jobs
    columns = {name: repr(getattr(jobs, name)) for name in ("ids", "started", "ended", "groups")}
    decided[policy] = [len(jobs.ids), columns, simulation.summary(outcome, nodes)]
print(json.dumps([compiled.in_use(), decided]))
"""
HOURS = 168 if NIGHTLY else 36


def needs_machine_code() -> None:
    if not compiled.folder().is_dir():
        pytest.skip(f"the core was not compiled: {compile_core.missing() or 'run make setup'}")


def told(**environment: str) -> list:
    done = subprocess.run(
        [sys.executable, "-c", RUN.replace("HOURS", str(HOURS))],
        cwd=compiled.ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_it_decides_what_the_interpreted_core_decides() -> None:
    needs_machine_code()
    native, decided = told(KANT_INTERPRETED="0")
    interpreted, otherwise = told(KANT_INTERPRETED="1")
    assert (native, interpreted) == (True, False)
    assert all(ended > 6 * HOURS for ended, *_ in decided.values())
    assert decided == otherwise


def test_machine_code_of_other_sources_is_not_used(tmp_path, monkeypatch) -> None:
    before = compiled.folder()
    source = tmp_path / "scheduling" / "engine" / "cycle.py"
    source.parent.mkdir(parents=True)
    source.write_text("changed = True\n")
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    assert compiled.folder() != before


def test_what_the_machine_lacks_is_named(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(compile_core, "folder", lambda: tmp_path / "none")
    monkeypatch.setattr(compile_core, "HOME", tmp_path)
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    assert compile_core.main([]) == 0
    assert "no C compiler (no-such-compiler)" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.fixture
def builds(monkeypatch, tmp_path) -> list[str]:
    """Builds take a moment, make one file and are recorded; they fail when space is lacking."""
    made: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        made.append(command[-1])
        time.sleep(0.3)
        if (tmp_path / "full").exists():
            return subprocess.CompletedProcess(command, 1)
        Path(command[-1], "lib").mkdir()
        Path(command[-1], "lib", "code").touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(compile_core.subprocess, "run", run)
    monkeypatch.setattr(compile_core, "HOME", tmp_path / "home")
    monkeypatch.setattr(compile_core, "missing", lambda: "")
    monkeypatch.setattr(compile_core.os, "nice", lambda by: 0)
    return made


def test_of_two_at_once_one_builds_and_the_other_waits(builds, tmp_path, capsys) -> None:
    where = tmp_path / "home" / "new"
    (tmp_path / "home" / "old").mkdir(parents=True)
    (tmp_path / "home" / "tmp-killed").mkdir()
    two = [
        threading.Thread(target=compile_core.ensure, args=[where], kwargs={"beside": beside})
        for beside in (True, False)
    ]
    for each in two:
        each.start()
    for each in two:
        each.join()
    assert len(builds) == 1
    assert (where / "code").exists()
    assert {path.name for path in where.parent.iterdir()} == {"new", "lock", "build.log"}
    assert "waiting for it" in capsys.readouterr().out


def test_a_failed_build_is_tried_again_only_by_who_asks_for_it(builds, tmp_path, capsys) -> None:
    where = tmp_path / "home" / "new"
    (tmp_path / "full").touch()
    compile_core.ensure(where, beside=True)
    compile_core.ensure(where, beside=True)
    assert len(builds) == 1
    assert capsys.readouterr().out.count("cannot be compiled here") == 1
    (tmp_path / "full").unlink()
    compile_core.ensure(where, beside=False)
    assert (where / "code").exists()
    assert not where.with_suffix(".failed").exists()


def a_wheel(path: Path, name: str) -> str:
    """What pip installs on its own: a package with one module."""
    with zipfile.ZipFile(path / f"{name}-1-py3-none-any.whl", "w") as file:
        about = f"{name}-1.dist-info/"
        file.writestr(f"{name}.py", "")
        file.writestr(f"{about}METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        file.writestr(f"{about}WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{about}RECORD", "")
    return str(path / file.filename)


def test_what_compiles_is_there_only_while_it_does(monkeypatch, tmp_path) -> None:
    """The package is not installed."""
    tools = tmp_path / "tools.txt"
    tools.write_text(a_wheel(tmp_path, "of_a_compiler"))
    monkeypatch.setattr(compile_core, "TOOLS", tools)
    monkeypatch.setattr(compile_core, "_has_tools", lambda: False)
    monkeypatch.setattr(compile_core, "HOME", tmp_path / "home")
    monkeypatch.setenv("PYTHONPATH", "/of/whoever/calls")
    run, found = subprocess.run, {}

    def build(command: list[str], **how: Any) -> subprocess.CompletedProcess:
        if "--into" not in command:
            return run(command, **how)
        found["paths"] = paths = how["env"]["PYTHONPATH"].split(os.pathsep)
        found["modules"] = {path.name for path in Path(paths[0]).glob("*.py")}
        Path(command[-1], "lib").mkdir()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(compile_core.subprocess, "run", build)
    compile_core.ensure(tmp_path / "home" / "new", beside=False)
    assert found["modules"] == {"of_a_compiler.py"}
    assert found["paths"][1:] == ["/of/whoever/calls"]
    assert {path.name for path in (tmp_path / "home").iterdir()} == {"new", "lock", "build.log"}


def test_what_compiles_cannot_be_fetched_and_is_asked_for_again(monkeypatch, tmp_path, capsys):
    tools = tmp_path / "tools.txt"
    tools.write_text(str(tmp_path / "gone-1-py3-none-any.whl"))
    monkeypatch.setattr(compile_core, "TOOLS", tools)
    monkeypatch.setattr(compile_core, "_has_tools", lambda: False)
    monkeypatch.setattr(compile_core, "HOME", tmp_path / "home")
    where = tmp_path / "home" / "new"
    compile_core.ensure(where, beside=False)
    told = capsys.readouterr().out
    assert "stays interpreted" in told
    assert "what compiles it cannot be fetched (" in told
    assert not where.exists()
    assert not where.with_suffix(".failed").exists()


def test_whoever_runs_interpreted_is_told_when_it_is_compiled(monkeypatch, tmp_path) -> None:
    said: list[str] = []
    monkeypatch.setattr(compiled, "in_use", lambda: False)
    monkeypatch.setattr(compiled, "unwanted", lambda: False)
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path)
    monkeypatch.setattr(embedded.sys, "executable", "/bin/true")
    embedded.Compilation(said.append).start()
    eventually(lambda: said)
    assert re.fullmatch(
        r"The decision core is compiled \(\d+ s\); the next start uses it.\n", said[0]
    )


def test_its_compilers_end_with_kant(monkeypatch, tmp_path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nsleep 600 & echo $! > " + str(tmp_path / "pid") + "\nwait\n")
    slow.chmod(0o755)
    monkeypatch.setattr(compiled, "in_use", lambda: False)
    monkeypatch.setattr(compiled, "unwanted", lambda: False)
    monkeypatch.setattr(embedded.sys, "executable", str(slow))
    said: list[str] = []
    compilation = embedded.Compilation(said.append)
    compilation.start()
    pid = int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    compilation.stop()
    eventually(lambda: said)
    assert said == [""]
    eventually(lambda: not running(pid))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def frozen_classes() -> list[type]:
    names = [
        path.relative_to(compiled.ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in compiled.sources()
    ]
    modules = [importlib.import_module(name) for name in names]
    return [
        found
        for module in modules
        for found in vars(module).values()
        if isinstance(found, type) and found.__module__ == module.__name__ and is_dataclass(found)
        if found.__dataclass_params__.frozen
    ]


def test_frozen_classes_say_how_they_are_copied() -> None:
    """Python would set the fields of the copy, which fields of compiled classes refuse."""
    found = frozen_classes()
    assert len(found) > 15
    assert [each for each in found if each not in copyreg.dispatch_table] == []


def test_a_copy_of_the_cluster_leaves_nothing_out() -> None:
    cluster = ClusterState()
    names = set(getattr(ClusterState, "__mypyc_attrs__", None) or vars(cluster))
    made_anew = {
        "levels",
        "followers",
        "node_followers",
        "fact_followers",
        "_own_jobs",
        "_gained",
        "_most",
        "_totals",
    }
    made_anew.add("_index")
    assert names == {*COLUMNS, *REGISTRY, *FACTS} | made_anew


def test_they_are_copied_and_pickled() -> None:
    variant = Variant(load=1.05, declared=False)
    assert pickle.loads(pickle.dumps(variant)) == copy.deepcopy(variant) == variant
