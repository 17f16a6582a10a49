"""The change feed: one look serves all listeners, and no listener occupies a thread."""

import asyncio
import threading

import pytest
from django.db import OperationalError

from scheduling.pages import feed as feeds
from scheduling.pages.feed import Feed
from tenants.models import Tenant, User


class Looks:
    """The result of a look, and how often each thread looked."""

    def __init__(self):
        self.mark, self.threads = "one", []

    def __call__(self):
        self.threads.append(threading.get_ident())
        if isinstance(self.mark, Exception):
            raise self.mark
        return self.mark


@pytest.fixture
def looks(monkeypatch):
    found = Looks()
    monkeypatch.setattr(feeds, "_look", found)
    monkeypatch.setattr(feeds, "LOOK_S", 0.01)
    monkeypatch.setattr(feeds, "BEAT_S", 0.03)
    return found


async def kind(stream):
    """Return the kind of the next event and what its reader learns."""
    async with asyncio.timeout(60):
        lines = (await anext(stream)).decode().split("\n")
    assert lines[2:] == ["data:", "", ""]
    return lines[0].removeprefix("event: "), lines[1].removeprefix("id: ")


def test_all_are_told_of_a_change_and_go_on_where_they_were(looks):
    async def listen():
        feed = Feed()
        streams = [feed.stream(known) for known in ("", "one", "zero", *[""] * 20)]
        told = [await kind(stream) for stream in streams]
        assert [one for one, _ in told[:3]] == ["changed", "same", "changed"]
        assert {known for _, known in told} == {"one"}
        assert await kind(streams[0]) == ("same", "one")
        before = threading.active_count()
        looks.mark = "two"
        for stream in streams:
            while (heard := await kind(stream)) == ("same", "one"):
                pass
            assert heard == ("changed", "two")
        assert threading.active_count() <= before
        assert len(set(looks.threads)) == 1
        for stream in streams:
            await stream.aclose()
        assert feed.listening == 0

    asyncio.run(listen())


def test_it_looks_only_while_somebody_listens_and_tells_so_many_at_most(looks, monkeypatch):
    monkeypatch.setattr(feeds, "MOST_STREAMS", 2)

    async def listen():
        feed = Feed()
        streams = [feed.stream("") for _ in range(3)]
        assert [await kind(s) for s in streams[:2]] == [("changed", "one")] * 2
        assert feed.is_full
        with pytest.raises(StopAsyncIteration):
            await kind(streams[2])
        await streams[0].aclose()
        assert not feed.is_full
        await streams[1].aclose()
        await asyncio.to_thread(feed._thread.submit(int).result)  # after the look under way
        looked = len(looks.threads)
        await asyncio.sleep(0.1)
        assert len(looks.threads) == looked
        assert await kind(feed.stream("")) == ("changed", "one")

    asyncio.run(listen())


@pytest.mark.parametrize("cause", ["the process", "the database", "time"])
def test_streams_end_with(looks, monkeypatch, cause):
    if cause == "time":
        monkeypatch.setattr(feeds, "LASTS_S", 0.05)

    async def listen():
        feed = Feed()
        stream = feed.stream("")
        if cause != "time":  # on a busy machine this may pass before the first event
            await kind(stream)
        if cause == "the process":
            feed.end()
        elif cause == "the database":
            looks.mark = OperationalError("no answer")
        async with asyncio.timeout(60):
            async for _ in stream:
                pass
        if cause == "the process":
            with pytest.raises(StopAsyncIteration):
                await kind(feed.stream(""))
        elif cause == "the database":
            looks.mark = "two"
            assert await kind(feed.stream("one")) == ("changed", "two")

    asyncio.run(listen())


@pytest.mark.django_db
def test_it_is_for_who_is_signed_in_and_there_is_room(client, monkeypatch):
    assert client.get("/feed/").status_code == 204  # no browser reconnects then
    client.force_login(User.objects.create_user("erin"))
    told = client.get("/feed/")
    assert (told.status_code, told["Content-Type"]) == (200, "text/event-stream")
    assert told["X-Accel-Buffering"] == "no"
    monkeypatch.setattr(feeds, "MOST_STREAMS", 0)
    refused = client.get("/feed/")
    assert refused.status_code == 503
    assert int(refused["Retry-After"]) > 0


@pytest.mark.django_db(transaction=True)
def test_what_it_looks_at_changes_with_the_organisation():
    tenant = Tenant.objects.create(name="team")
    before = feeds._look()
    assert feeds._look() == before
    Tenant.objects.filter(pk=tenant.pk).update(version=2)
    assert feeds._look() != before
