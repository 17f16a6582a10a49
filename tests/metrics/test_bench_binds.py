"""`manage.py bench binds --against kube-scheduler`: which scheduler takes its turn, and what is
reported."""

import json
import queue
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from metrics.benches import binds
from metrics.benches.native import idle as native_idle
from metrics.benches.native.idle import Idle
from metrics.benches.native.pods import UNBOUND, Native, NativeKant, pause
from metrics.benches.scheduler_process import Statements

AGAINST = ("bench", "binds", "--server", "kube-apiserver", "--against", "kube-scheduler")


def test_both_take_turns_and_medians_are_told(monkeypatch, capsys):
    turns = []
    rates = iter([100.0, 50.0, 10.0, 80.0, 130.0, 60.0])

    def bound_by(name, kind, *of_kant):
        def bound(folder, nodes, pods, *_):
            turns.append((name, folder.name, nodes, pods))
            return kind(next(rates), float(len(turns)), *of_kant)

        return bound

    monkeypatch.setattr(binds, "programs", dict)
    monkeypatch.setattr(binds, "Postgres", nullcontext)
    monkeypatch.setattr(binds, "migrated", lambda *_: None)
    monkeypatch.setattr(binds, "by_kant", bound_by("kant", NativeKant, 0.05, 2.5, 300.2))
    monkeypatch.setattr(binds, "by_kube_scheduler", bound_by("kube", Native))
    monkeypatch.setattr(binds, "idle", lambda *_: Idle(0.0123, 0.004))
    call_command(*AGAINST, "--nodes", "5", "--pods", "40", "--json")
    assert [turn[0] for turn in turns] == ["kant", "kube"] * 3
    assert len({turn[1] for turn in turns}) == 6
    assert {turn[2:] for turn in turns} == {(5, 40)}
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert (figures["native_per_s"], figures["kube_scheduler_per_s"]) == (100.0, 60.0)
    assert (figures["native_cpu_ms"], figures["kube_scheduler_cpu_ms"]) == (3.0, 4.0)
    assert (figures["ratio"], figures["cpu_ratio"]) == (1.667, 0.75)
    assert (figures["native_statements"], figures["rounds"]) == (0.05, 3)
    assert (figures["native_pause_ratio"], figures["native_peak_mb"]) == (2.5, 300.2)
    assert (figures["idle_p50_ms"], figures["kube_scheduler_idle_p50_ms"]) == (12.3, 4.0)
    assert figures["idle_ratio"] == 3.08


def test_a_pause_is_told_in_times_of_a_hundredth_of_the_pods():
    # 400 pods, one every 10 ms, except for 2 s in which none is bound.
    bound = [n * 0.01 + (2.0 if n >= 200 else 0.0) for n in range(400)]
    assert pause(bound) == pytest.approx(2.01 / 0.04)


def test_pods_that_are_not_bound_yet_are_seen(db):
    """Without a column in its SELECT, the statement would return nothing, whatever the table
    holds."""
    with connection.cursor() as cursor:
        cursor.execute(UNBOUND.replace("scheduling_job WHERE bound_at IS NULL", "(SELECT 1) one"))
        assert cursor.fetchall() == [(1,)]


class TwoSchedulers:
    """Stands in for an API server with both schedulers: one binds long after it is told, the other
    soon."""

    def __init__(self, folder):
        self.made, self.came = [], queue.Queue()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.came.put(None)

    def request(self, method, path, body=None):
        if method == "POST":
            self.made.append((body["metadata"]["name"], body["spec"]["schedulerName"]))
            self.came.put((0.0, self.told(body["metadata"]["name"])))
            after = 0.05 if body["spec"]["schedulerName"] == "kant" else 0.01
            self.came.put((after, self.told(body["metadata"]["name"], node="n")))
        return {"metadata": {"resourceVersion": "5"}, "items": []}

    def told(self, name, node=""):
        spec = {"nodeName": node} if node else {}
        return json.dumps({"object": {"metadata": {"name": name}, "spec": spec}}).encode()

    def stream(self, path):
        assert path.endswith("?watch=1&resourceVersion=5")
        for after, line in iter(self.came.get, None):
            time.sleep(after)
            yield line

    def access(self, user):
        return {}

    def start_scheduler(self):
        return 1


def test_lone_pods_come_in_turn_and_medians_are_of_their_nodes(monkeypatch, tmp_path):
    server = TwoSchedulers(tmp_path)
    monkeypatch.setattr(native_idle, "ApiServer", lambda folder: server)
    monkeypatch.setattr(native_idle, "PODS", 4)
    monkeypatch.setattr(native_idle, "EVERY_S", 0.0)
    monkeypatch.setattr(native_idle, "bound_one", lambda _: True)
    for name in ("create_nodes", "run_python"):
        monkeypatch.setattr(native_idle.stage, name, lambda *_: None)
    monkeypatch.setattr(native_idle.stage, "scheduler", nullcontext)
    postgres = SimpleNamespace(rows=lambda *_: [], url=lambda *_: "")
    found = native_idle.idle(tmp_path / "idle", 5, postgres)
    assert [scheduler for _, scheduler in server.made] == ["kant", "default-scheduler"] * 4
    assert found.kant_s > found.other_s > 0.0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--server", "embedded", "--against", "kube-scheduler"), "--server kube-apiserver"),
        ((*AGAINST[2:], "--nodes", "2", "--pods", "17"), "--pods: 2 nodes have 16 GPUs"),
        ((*AGAINST[2:], "--pods", "0"), "--pods: "),
    ],
)
def test_what_cannot_be_compared_is_told_before_anything_starts(options, told):
    with pytest.raises(CommandError, match=told):
        call_command("bench", "binds", *options)


def test_statements_are_counted_as_they_are_sent(db):
    counter = Statements()
    with connection.execute_wrapper(counter), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.execute("CREATE TEMPORARY TABLE counted (n integer)")
        cursor.executemany("INSERT INTO counted VALUES (%s)", [(1,), (2,), (3,)])
    assert counter.count == 3
