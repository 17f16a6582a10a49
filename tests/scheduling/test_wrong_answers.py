"""A live scheduler logs it if a remembered answer was wrong."""

from types import SimpleNamespace

from scheduling.engine.decisions import CycleResult, WrongAnswer
from scheduling.session.session import Session


def test_a_wrong_answer_is_logged_with_both(caplog):
    told = WrongAnswer("no start", "the class of job j", "False", "True")
    Session._tell_wrong(SimpleNamespace(scope="", cluster_id=7), CycleResult(wrong=(told,)))
    (line,) = caplog.records
    assert line.levelname == "ERROR"
    assert line.getMessage() == (
        "wrong answer remembered in scope '' of cluster 7: no start, of the class of job j: "
        "remembered False, found anew True"
    )
