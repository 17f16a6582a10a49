"""`kant drain`, `cordon`, `uncordon` and `capacity` against a real Kant server."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.models import Cluster, NodeOrder, PlanOrder
from tenants.models import Quota
from tests.scheduling.test_rehearsal import runs


@pytest.fixture
def ops(kant):
    Cluster.objects.update(connected=True, last_cycle_at=timezone.now() + timedelta(hours=1))
    kant.job = runs(kant.org, ["h000"], declared_s=7200)
    return kant.sign_in("ops")


def test_a_drain_is_previewed_done_listed_and_stopped(ops):
    code, out, _ = ops("drain", "h000", "--deadline", "0s", "--preview")
    assert code == 0
    assert out.splitlines()[1].split()[:2] == ["stops", "runs-h000"]
    assert not NodeOrder.objects.exists()
    code, out, told = ops("drain", "h000", "h001", "--deadline", "2h", "--reason", "fans")
    assert (code, told) == (0, "")
    states = [line.split()[:3] for line in out.splitlines()[1:]]
    assert states == [["h000", "draining", "1"], ["h001", "drained", "0"]]
    left = NodeOrder.objects.get(node="h000").evict_at - timezone.now()
    assert timedelta(minutes=119) < left <= timedelta(hours=2)
    out = ops("nodes", "demo")[1]
    assert "draining, 1 of 1 pods left" in out
    code, out, _ = ops("uncordon", "h000", "--reason", "done")
    assert (code, "takes jobs" in out) == (0, True)
    assert ops("uncordon", "h000", "--reason", "done")[0] == 1


def test_whole_nodes_are_planned_and_freed_for_a_price(ops):
    Quota.objects.create(
        tenant=ops.org.tenants["law"], gpu_type=ops.org.gpu_types["H100"], guaranteed_milli=64000
    )
    runs(ops.org, ["h001"], gpus=2, declared_s=7200)
    runs(ops.org, ["h002"], gpus=4, declared_s=7200)
    code, out, told = ops("defrag", "--plan", "-n", "1", "-G", "H100")
    assert (code, told) == (0, "")
    assert out.splitlines()[1].split() == ["runs-h001", "law", "2", "all", "0.17", "h002"]
    lines = dict(line.split(maxsplit=1) for line in out.splitlines()[2:] if line)
    assert (lines["emptied"], lines["GFR"]) == ("h001", "50.0% → 25.0%")
    plan = json.loads(ops("defrag", "--plan", "-n", "1", "-G", "H100", "-o", "json")[1])
    assert (plan["nodes"], plan["reached"]) == (["h001"], True)
    asked = ("defrag", "--apply", "-n", "1", "-G", "H100", "--reason", "gangs")
    code, _, told = ops(*asked, "--at-most", "0.1")
    assert (code, "0.17 GPU-hours would be lost" in told) == (1, True)
    assert not NodeOrder.objects.exists()
    assert ops(*asked)[0] == 0
    assert NodeOrder.objects.get().node == "h001"
    for words, text in (
        (("defrag", "--plan"), "Give --count and --gpu-type, or --job."),
        (("defrag", "--apply", "-n", "1", "-G", "H100"), "Give a reason with --reason TEXT"),
    ):
        code, _, told = ops(*words)
        assert (code, text in told) == (2, True), told


def test_whole_nodes_are_ordered_for_a_time_listed_and_called_off(ops):
    Quota.objects.create(
        tenant=ops.org.tenants["law"], gpu_type=ops.org.gpu_types["H100"], guaranteed_milli=64000
    )
    runs(ops.org, ["h001"], gpus=2, declared_s=7200)
    runs(ops.org, ["h002"], gpus=4, declared_s=7200)
    asked = ("defrag", "--at", "6h", "-n", "1", "-G", "H100")
    assert ops(*asked)[0] == 2  # without a reason
    code, out, told = ops(*asked, "--until", "8h", "--at-most", "5", "--reason", "gangs")
    assert (code, "emptied" in out, "at most 5.00 GPU-hours and 1 jobs" in told) == (0, True, True)
    order = PlanOrder.objects.get()
    assert (order.most_lost_gpu_s, order.most_moves, order.state) == (18000, 1, "scheduled")
    assert timedelta(hours=1) < order.ends_at - order.starts_at <= timedelta(hours=2, minutes=1)
    _, out, _ = ops("defrag", "--orders")
    assert out.splitlines()[1].split()[:4] == [str(order.pk)[:8], "1", "×", "H100"]
    assert json.loads(ops("defrag", "--orders", "-o", "json")[1])[0]["id"] == str(order.pk)
    assert ops("defrag", "--cancel", "nope", "--reason", "x")[0] == 1
    code, _, told = ops("defrag", "--cancel", str(order.pk)[:8], "--reason", "not tonight")
    assert (code, "called it off: not tonight" in told) == (0, True)
    assert PlanOrder.objects.get().state == "cancelled"
    assert ops("defrag", "--plan", "--until", "8h", "-n", "1", "-G", "H100")[0] == 2


def test_nodes_that_cost_least_are_named_and_wrong_words_explained(ops):
    code, _, told = ops("capacity", "--remove", "3", "-G", "H100", "-c", "demo")
    assert (code, told.splitlines()[0]) == (0, "Nodes: h001, h002, h003")
    found = json.loads(ops("drain", "-n", "4", "-G", "H100", "--preview", "-o", "json")[1])
    assert found["nodes"] == ["h001", "h002", "h003", "h000"]
    for words, text in (
        (("drain", "--preview"), "Name nodes, or give --count and --gpu-type."),
        (("drain", "--reason", "x"), "Name nodes."),
        (("cordon", "h000"), "Give a reason with --reason TEXT"),
        (("drain", "h000", "--deadline", "soon"), "'soon' is not a time"),
    ):
        code, _, told = ops(*words)
        assert (code, text in told) == (2, True), told
