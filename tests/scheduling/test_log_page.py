"""The log page shows the end of a log, or why there is none."""

import pytest
from django.urls import reverse

from scheduling.kube.door.logs import Stopped
from scheduling.kube.seam import KubeError
from scheduling.models import Job
from scheduling.pages.jobs.logs import readable
from scheduling.queries.pod_logs import OpenLog


@pytest.fixture
def job(org):
    document = {"name": "one", "tenant": "vision", "gpu_type": "H100", "gpus": 1, "replicas": 3}
    answer = org.client("eve").post("/api/v1/jobs", document, format="json")
    return Job.objects.get(id=answer.json()["id"])


class Printed:
    """Parts of a log; an exception among them interrupts it."""

    def __init__(self, *parts):
        self._parts = parts

    def parts(self):
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            yield part


BROKE = KubeError("broke", "again")


@pytest.fixture
def page(client, org, job, monkeypatch):
    def shown(*parts, query="", who="eve", names=("main",), **headers):
        asked = []

        def opened(*args):
            asked.append(args)
            return OpenLog(Printed(*parts), None)

        if parts:
            monkeypatch.setattr("scheduling.pages.jobs.logs.open_log", opened)
            monkeypatch.setattr("scheduling.pages.jobs.logs.containers_of", lambda *_, **__: names)
        client.force_login(org.users[who])
        answer = client.get(reverse("job-logs", args=[job.pk]) + query, headers=headers)
        return answer.status_code, answer.content.decode(), asked

    return shown


def test_the_end_of_a_log_is_shown_escaped(page):
    status, text, [asked] = page(b"<b>one\n\x1b[31mtwo\x1b[0m\n", query="?ordinal=2")
    assert (status, "<pre>&lt;b&gt;one\ntwo\n</pre>" in text) == (200, True)
    assert (asked[2].name, asked[3], asked[5].tail) == ("worker", 2, 200)
    assert "kant logs" in text
    assert "<html" not in page(b"x", **{"HX-Request": "true"})[1]


def test_the_containers_of_a_pod_are_offered_where_it_has_several(page, job):
    assert "Container" not in page(b"x")[1]
    names = ("main", "side", "early")
    _, text, [asked] = page(b"x", query="?ordinal=1", names=names)
    assert asked[4] == "main"
    assert 'href="?container=early&amp;ordinal=1"' in text
    assert 'href="?container=main&amp;ordinal=1" aria-current="true"' in text
    assert "--pod 1 --container main</code>" in text
    _, text, [asked] = page(b"x", query="?container=side", names=names)
    assert (asked[4], asked[5].previous) == ("side", False)
    assert '<input type="hidden" name="container" value="side">' in text


def test_the_run_before_a_restart_is_offered(page, job):
    assert "Before the last restart" not in page(b"x")[1]
    Job.objects.filter(pk=job.pk).update(restarts=1)
    _, text, [asked] = page(b"x", query="?ordinal=1")
    assert 'href="?ordinal=1&amp;previous=true"' in text
    assert asked[5].previous is False
    _, text, [asked] = page(b"x", query="?previous=true")
    assert (asked[5].previous, "--previous</code>" in text) == (True, True)
    assert '<input type="hidden" name="previous" value="true">' in text
    assert "must be true, or left out" in page(b"x", query="?previous=yes")[1]


def test_why_there_is_none_is_told(page):
    assert "Pod worker-0 has no place yet, so there is no log." in page()[1]
    assert "Must be from 0 to 2" in page(query="?ordinal=3")[1]
    assert "The pod must be a whole number." in page(query="?ordinal=x")[1]
    assert "has no pod set “none”" in page(query="?pod_set=none")[1]
    assert "There is no filter “q” here" in page(query="?q=1")[1]
    assert page(who="lex")[0] == 404
    assert "The log broke off" in page(BROKE)[1]


BREAKS = [(BROKE, "The log broke off"), (Stopped(), "This server is stopping")]


@pytest.mark.parametrize(("breaks", "why"), BREAKS)
@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ([b"one\ntw", b"o\nthr"], "one\ntwo\nthr"),  # in the middle of a line
        ([b"caf\xc3", b"\xa9 \xe2\x82"], "café \ufffd"),  # of a character
        ([b"10%\r20"], "20"),
        ([b"red \x1b["], "red "),  # sequences that only a terminal understands
    ],
)
def test_what_came_before_a_log_broke_off_is_shown(page, before, shown, breaks, why):
    status, text, _ = page(*before, breaks)
    assert status == 200
    assert f"<pre>{shown}</pre>" in text
    assert why.lower() in text.lower()


def test_lines_that_are_too_long_say_so(page, monkeypatch):
    monkeypatch.setattr("scheduling.pages.jobs.logs.MOST_SHOWN", 1 << 10)
    drawn = b"".join(b"%d%%\r" % n for n in range(100_000))
    _, text, [asked] = page(drawn + b"99%")
    assert "<pre>99%</pre>" in text, "a progress bar is short however long it was drawn"
    assert "are long" not in text
    assert asked[5].limit_bytes == 4 << 20
    _, text, _ = page(b"begin" + 2000 * b"x" + b"end")
    assert f"<pre>{1021 * 'x'}end</pre>" in text
    assert "these are their last 1 KiB" in text
    _, text, _ = page((4 << 20) * b"x")
    assert "were cut after 4 MiB: the end is missing" in text


def test_the_page_of_the_job_leads_there(client, org, job):
    Job.objects.filter(pk=job.pk).update(attempt=1)
    client.force_login(org.users["eve"])
    text = client.get(reverse("job", args=[job.pk])).content.decode()
    assert f'href="/jobs/{job.pk}/logs/"' in text


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "link"),
        ("10%\r50%\r100%\nnext\r\n", "100%\nnext\n"),
        ("a\x00b\x9bc\td", "abc\td"),
        ("bar\r", "bar"),
    ],
)
def test_what_only_a_terminal_understands_is_left_out(printed, read):
    assert readable(printed) == read
