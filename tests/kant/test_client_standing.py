"""`kant loans` and `kant pending` against a real Kant server."""

import json
from datetime import timedelta

from scheduling.session.pace import Pace
from tests.scheduling.test_rehearsal import fleet, waits  # noqa: F401 - a fixture
from tests.scheduling.test_schedulers import led, written  # noqa: F401 - a fixture
from tests.scheduling.test_standing import lent  # noqa: F401 - a fixture


def test_how_it_stands(kant, lent):  # noqa: F811
    kant.sign_in("ops")
    code, out, told = kant("loans")
    assert code == 0
    assert out.splitlines()[1].split()[:5] == ["law", "vision", "H100", "8", "0"]
    assert "take" in told
    sums = out.partition("\n\n")[2].splitlines()
    assert sums[1].split() == ["law", "8", "0", "0", "0"]
    assert sums[2].split() == ["vision", "0", "0", "8", "0"]
    assert json.loads(kant("loans", "-t", "vision", "-o", "json")[1])[0]["borrower"] == "law"
    assert kant("loans", "-G", "A100")[2].strip() == "No loan matches."
    assert kant("pending")[2].strip() == "No job waits that you may see."
    waits(lent, 1)
    assert kant("pending")[1].splitlines()[1].split()[-5:-2] == ["H100", "8", "1"]
    assert kant("pending", "-G", "T5")[0] == 2


def test_how_it_stood(kant, lent):  # noqa: F811
    kant.sign_in("ops")
    at = lent.cluster.jobs.get(name="runs-h002").submitted_at + timedelta(minutes=1)
    code, out, told = kant("past", at.isoformat(), "-G", "H100")
    assert (code, told) == (0, "")
    assert out.splitlines()[0] == "H100: 16 of 32 GPUs allocated"
    assert "0 jobs waited for 0 GPUs" in out
    found = json.loads(kant("past", "1m", "-o", "json")[1])
    assert sum(node["allocated"] for node in found["nodes"]) == 24
    assert "What is kept begins at" in kant("past", "2w")[2]


def test_how_schedulers_fare(kant, led):  # noqa: F811
    _, lease, begun = led
    pace = Pace()
    pace.mark(begun)
    pace.took(200)
    written(lease, pace)
    kant.sign_in("ops")
    code, out, told = kant("schedulers")
    assert code == 0
    assert out.splitlines()[1].split()[1:5] == ["(all)", "host-a:1:x", "10", "min"]
    assert "divide the cluster into shards" in told
    assert json.loads(kant("schedulers", "-o", "json")[1])[0]["passes"] == 1
