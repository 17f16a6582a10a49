"""`manage.py bench binds --against kube-scheduler`: who takes turns, and what it tells of them."""

import json
from contextlib import nullcontext

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from metrics.benches import binds
from metrics.benches.native.pods import Native
from metrics.benches.scheduler_process import Statements

AGAINST = ("bench", "binds", "--server", "kube-apiserver", "--against", "kube-scheduler")


def test_both_take_turns_and_medians_are_told(monkeypatch, capsys):
    turns = []
    rates = iter([100.0, 50.0, 10.0, 80.0, 130.0, 60.0])

    def bound_by(name, statements):
        def bound(folder, nodes, pods, *_):
            turns.append((name, folder.name, nodes, pods))
            return Native(next(rates), float(len(turns)), statements)

        return bound

    monkeypatch.setattr(binds, "programs", dict)
    monkeypatch.setattr(binds, "Postgres", nullcontext)
    monkeypatch.setattr(binds, "migrated", lambda *_: None)
    monkeypatch.setattr(binds, "by_kant", bound_by("kant", 0.05))
    monkeypatch.setattr(binds, "by_kube_scheduler", bound_by("kube", None))
    call_command(*AGAINST, "--nodes", "5", "--pods", "40", "--json")
    assert [turn[0] for turn in turns] == ["kant", "kube"] * 3
    assert len({turn[1] for turn in turns}) == 6
    assert {turn[2:] for turn in turns} == {(5, 40)}
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert (figures["native_per_s"], figures["kube_scheduler_per_s"]) == (100.0, 60.0)
    assert (figures["native_cpu_ms"], figures["kube_scheduler_cpu_ms"]) == (3.0, 4.0)
    assert (figures["ratio"], figures["cpu_ratio"]) == (1.667, 0.75)
    assert (figures["native_statements"], figures["rounds"]) == (0.05, 3)


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
