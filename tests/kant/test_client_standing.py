"""`kant loans` and `kant pending` against a real Kant."""

import json

from tests.scheduling.test_rehearsal import fleet, waits  # noqa: F401 - a fixture
from tests.scheduling.test_standing import lent  # noqa: F401 - a fixture


def test_how_it_stands(kant, lent):  # noqa: F811
    kant.sign_in("ops")
    code, out, told = kant("loans")
    assert code == 0
    assert out.splitlines()[1].split()[:5] == ["law", "vision", "H100", "8", "0"]
    assert "take" in told
    assert json.loads(kant("loans", "-t", "vision", "-o", "json")[1])[0]["borrower"] == "law"
    assert kant("loans", "-G", "A100")[2].strip() == "Nobody borrows."
    assert kant("pending")[2].strip() == "No job waits that you may see."
    waits(lent, 1)
    assert kant("pending")[1].splitlines()[1].split()[-5:-2] == ["H100", "8", "1"]
    assert kant("pending", "-G", "T5")[0] == 2
