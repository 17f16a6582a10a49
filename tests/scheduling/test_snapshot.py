"""Snapshots by REST and `kant`: `manage.py rehearse` decides on one as a scheduler does that
begins with the same rows."""

import gzip
import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.models import Cluster, ClusterPolicy, NodeRecord
from scheduling.queries.known import Known
from scheduling.queries.snapshots.anonymise import anonymised, renaming
from scheduling.queries.snapshots.document import snapshot_of
from tests.cases import seeds
from tests.kant.conftest import kant  # noqa: F401
from tests.scheduling.test_kept_state import World, told
from tests.scheduling.test_rehearsal import fleet, runs, waits  # noqa: F401
from tests.scheduling.test_snapshot_files import decided

URL = "/api/v1/clusters/demo/snapshot"


def rehearsed(file):
    out = StringIO()
    call_command("rehearse", str(file), "--json", stdout=out)
    return json.loads(out.getvalue())["scopes"]


@pytest.mark.parametrize("seed", seeds(12))
def test_what_is_decided_of_it_is_what_a_scheduler_decides(fleet, seed, tmp_path):  # noqa: F811
    world, client, file = World(fleet, seed), fleet.client("ops"), tmp_path / "snapshot.json"
    for _ in range(4):
        for _ in range(9):
            world.turn()
        answer = client.get(URL)
        assert answer.status_code == 200, answer.content
        snapshot = snapshot_of(answer.content.decode())
        facts = Known(world.cluster).facts("")
        assert told(snapshot.scopes[0].facts) == told(facts)
        live = run_cycle(SchedulerState(told_of_runs=True), facts, snapshot.at)
        file.write_bytes(answer.content)
        [said] = rehearsed(file)
        assert [
            (s["job"], [(p["node"], p["devices"]) for p in s["pods"]]) for s in said["starts"]
        ] == [(s.job_id, [(p.node, list(p.devices)) for p in s.placements]) for s in live.started]
        assert [(w["job"], w["reason"]) for w in said["waits"]] == [
            (w.job_id, w.verdict.reason) for w in live.waiting
        ]
        assert [p["job"] for p in said["preempts"]] == [p.job_id for p in live.preempted]
        assert decided(anonymised(snapshot)) == decided(snapshot, renaming(snapshot))


def test_a_snapshot_names_nobody_when_asked(fleet):  # noqa: F811
    runs(fleet, ["h000"], user=fleet.users["lex"])
    waits(fleet, 2, name="secret-plan")
    client = fleet.client("ops")
    plain, without = (client.get(f"{URL}{q}").content.decode() for q in ("", "?anonymise=true"))
    for name in ("law", "vision", "h000", "leaf-0", "secret-plan", "demo"):
        assert (f'"{name}"' in plain, f'"{name}"' in without) == (True, False), name
    assert json.loads(without)["names"] == {}


def test_who_may_not_and_what_is_wrong_is_told(fleet):  # noqa: F811
    assert fleet.client("root").get(URL).status_code == 403
    client = fleet.client("ops")
    assert client.get("/api/v1/clusters/moon/snapshot").status_code == 404
    assert client.get(f"{URL}?anonymise=1").status_code == 400
    Cluster.objects.update(connected=False)  # a snapshot is wanted most where nothing is decided
    assert client.get(URL).status_code == 200
    NodeRecord.objects.all().delete()
    answer = client.get(URL)
    assert (answer.status_code, answer.json()["detail"]) == (
        409, "Kant knows no node of cluster demo yet.",
    )  # fmt: skip


def test_each_shard_decides_for_itself(fleet, tmp_path):  # noqa: F811
    shards = [{"name": "one", "groups": ["leaf-0"]}, {"name": "rest"}]
    ClusterPolicy.objects.create(cluster=fleet.cluster, document={"shards": shards})
    NodeRecord.objects.update(scope="rest")
    NodeRecord.objects.filter(leaf="leaf-0").update(scope="one")
    file = tmp_path / "s.json"
    file.write_bytes(fleet.client("ops").get(URL).content)
    assert [one["scope"] for one in rehearsed(file)] == ["one", "rest"]


@pytest.mark.django_db(transaction=True)
def test_the_command_line_writes_what_rehearse_reads(kant, tmp_path):  # noqa: F811
    runs(kant.org, ["h000"])
    kant.sign_in("lex")("submit", "-n", "new", "-t", "law", "-G", "H100", "-g", "8")
    kant.sign_in("ops")
    for name, flags in (("a.json", ()), ("b.json.gz", ("--anonymise",))):
        file = tmp_path / name
        code, out, note = kant("snapshot", "demo", "-o", str(file), *flags)
        assert (code, out) == (0, "")
        assert note == f"{file}: 6 nodes, 1 waiting jobs, 1 that hold places.\n"
        [said] = rehearsed(file)
        assert [part["name"] for part in said["waits"]] == [None if flags else "new"]
        shown = StringIO()
        call_command("rehearse", str(file), stdout=shown)
        assert "ExceedsMaxQuota" in shown.getvalue()
    code, _, note = kant("snapshot", "-o", str(tmp_path / "no" / "x"))
    assert (code, "cannot be written: No such file or directory." in note) == (1, True)
    assert kant.sign_in("eve")("snapshot", "-o", str(tmp_path / "x"))[0] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json.gz"]


def test_files_that_are_none_are_told(tmp_path):
    file = tmp_path / "x.json"
    for content, text in (
        (None, "cannot be read ("),
        (b"\xff\xfe", "is no UTF-8 text (byte 0)"),
        (b"{", "line 1, column 2: this is not valid JSON"),
        (b'{"format": "kant-snapshot", "version": 9}', "version: is 9, but this Kant reads 1"),
    ):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(CommandError) as error:
            call_command("rehearse", str(file))
        assert str(error.value).startswith(f"{file}: ")
        assert text in str(error.value)
    packed = tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(b"{}" * 99)[:-9])
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("rehearse", str(packed))
