"""One of several threads makes the calls of all those that arrive meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, get_ident

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from kant.sqlite3.base import writers
from tenants.models import Tenant
from tenants.services import joined
from tenants.services.joined import EachAlone, Joined, one_transaction
from tests.waiting import until


class Asked:
    """A `Joined` that blocks on "first" until `go`, and refuses texts that begin with "bad"."""

    def __init__(self, most=32):
        self.go, self.calls, self.threads = Event(), [], {}
        self.raised = None
        self.joined = Joined(self.alone, self.together, most)

    def alone(self, asked):
        self.calls.append([asked])
        self.threads[asked] = get_ident()
        if asked == "first":
            assert self.go.wait(60)
        return self.answer(asked)

    def together(self, many):
        self.calls.append(list(many))
        if self.raised is not None:
            raise self.raised
        answers = []
        for one in many:
            try:
                answers.append(EachAlone() if one == "apart" else self.answer(one))
            except ValueError as error:
                answers.append(error)
        return answers

    def answer(self, asked):
        if asked.startswith("bad"):
            raise ValueError(asked)
        return asked.upper()

    def waiting(self):
        return len(self.joined._waiting)

    @contextmanager
    def meanwhile(self, *asked):
        """Return {asked: future} of the calls that arrive while "first" is in progress, in this
        order."""
        with ThreadPoolExecutor(len(asked) + 1) as pool:
            told = {"first": pool.submit(self.joined, "first")}
            until(lambda: self.calls)
            for number, one in enumerate(asked, 1):
                told[one] = pool.submit(self.joined, one)
                until(lambda number=number: self.waiting() == number)
            try:
                yield told
            finally:
                self.go.set()


def told(future):
    return future.exception() or future.result()


@pytest.fixture
def asked():
    return Asked()


def test_who_is_alone_goes_at_once_and_alone(asked):
    assert [asked.joined("a"), asked.joined("b")] == ["A", "B"]
    with pytest.raises(ValueError, match="bad"):
        asked.joined("bad")
    assert asked.joined("c") == "C"
    assert asked.calls == [["a"], ["b"], ["bad"], ["c"]]


def test_who_comes_meanwhile_goes_together_in_the_order_of_coming(asked):
    with asked.meanwhile("a", "b", "bad", "c") as answers:
        assert asked.calls == [["first"]]
    assert asked.calls == [["first"], ["a", "b", "bad", "c"]]
    assert [answers[name].result() for name in ("first", "a", "b", "c")] == ["FIRST", "A", "B", "C"]
    assert str(answers["bad"].exception()) == "bad"
    assert asked.joined("d") == "D"
    assert asked.calls[-1] == ["d"]


def test_no_more_go_together_than_may():
    asked = Asked(most=2)
    with asked.meanwhile("a", "b", "c", "d", "e") as answers:
        pass
    assert asked.calls == [["first"], ["a", "b"], ["c", "d"], ["e"]]
    assert [answers[name].result() for name in "abcde"] == list("ABCDE")


def test_what_one_does_wrong_harms_no_other(asked):
    """The joint call fails, so each is made alone, in its own thread."""
    asked.raised = EachAlone()
    with asked.meanwhile("a", "bad", "c") as answers:
        pass
    assert (answers["a"].result(), answers["c"].result()) == ("A", "C")
    assert isinstance(answers["bad"].exception(), ValueError)
    assert asked.calls[1] == ["a", "bad", "c"]
    assert sorted(map(tuple, asked.calls[2:])) == [("a",), ("bad",), ("c",)]
    assert len({asked.threads[name] for name in ("a", "bad", "c")}) == 3


def test_one_that_is_to_be_asked_alone_is(asked):
    with asked.meanwhile("a", "apart", "c") as answers:
        pass
    assert [answers[name].result() for name in ("a", "apart", "c")] == ["A", "APART", "C"]
    assert asked.calls[1:] == [["a", "apart", "c"], ["apart"]]


@pytest.mark.parametrize("error", [OperationalError("away"), RuntimeError("x"), SystemExit()])
def test_what_nobody_knows_to_be_undone_is_told_to_each(asked, error):
    asked.raised = error
    with asked.meanwhile("a", "b") as answers:
        pass
    assert [answers[name].exception() for name in ("a", "b")] == [error, error]
    assert asked.calls == [["first"], ["a", "b"]]
    assert asked.joined("c") == "C"


def test_nobody_waits_for_long_for_one_on_its_way(asked, monkeypatch):
    monkeypatch.setattr(joined, "TURN_S", 0.01)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(asked.joined, "first")
        until(lambda: asked.calls)
        assert pool.submit(asked.joined, "a").result(30) == "A"
        assert not first.done()
        assert asked.waiting() == 0
        asked.go.set()
        assert first.result(30) == "FIRST"
    assert asked.joined("b") == "B"


@pytest.mark.django_db
def test_who_is_in_a_transaction_is_done_by_it(asked):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(asked.joined, "first")
        until(lambda: asked.calls)
        with transaction.atomic():
            assert asked.joined("a") == "A"
        asked.go.set()
        assert first.result(30) == "FIRST"


# --- the transaction ------------------------------------------------------------------------------
def tenants():
    return set(Tenant.objects.values_list("name", flat=True))


def make_in_one_transaction(name, then=lambda: None, **columns):
    with one_transaction():
        Tenant.objects.create(name=name, **columns)
        then()


@pytest.mark.django_db(transaction=True)
def test_what_is_wrong_within_undoes_all_and_each_is_asked_alone():
    make_in_one_transaction("there")
    for wrong in (lambda: Tenant.objects.create(name="there"), lambda: [].pop()):
        with pytest.raises(EachAlone):
            make_in_one_transaction("a", wrong)
    assert tenants() == {"there"}


@pytest.mark.django_db(transaction=True)
def test_a_reference_that_breaks_at_the_commit_undoes_all():
    with pytest.raises(EachAlone) as apart:
        make_in_one_transaction("a", parent_id=2**40)
    assert isinstance(apart.value.__cause__, IntegrityError)
    assert tenants() == set()


@pytest.mark.django_db(transaction=True)
def test_a_commit_that_is_not_answered_is_not_tried_again(monkeypatch):
    """It may have taken effect."""

    def lost():
        connection.connection.rollback()
        raise OperationalError("server closed the connection unexpectedly")

    with pytest.raises(OperationalError, match="closed"):
        make_in_one_transaction("a", lambda: monkeypatch.setattr(connection, "_commit", lost))


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has many writers")
def test_who_gets_no_turn_to_write_on_sqlite_is_told_so(monkeypatch):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.01)
    assert writers.acquire(5)
    try:
        with pytest.raises(OperationalError, match="no turn"):
            make_in_one_transaction("a")
    finally:
        writers.release()
