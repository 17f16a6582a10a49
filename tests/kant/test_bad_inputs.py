"""Bad input costs little CPU and memory, in proportion to its size."""

import asyncio
import gzip
import json
import lzma
import time
from argparse import Namespace

import pytest

from kant.bodies import MOST_ADDRESS, MOST_ANONYMOUS, BoundedBodies
from kant.client import submission
from kant.client.errors import ClientError
from metrics.simulate import inputs
from scheduling import text_files
from scheduling.job_fields.secrets import (
    MOST,
    command_without_secrets,
    looks_secret,
    without_secrets,
)
from scheduling.models import Job
from scheduling.pages.jobs.logs import MOST_BYTES, readable
from scheduling.text_files import InputError, lines_of
from tests.cases import some

SIZE = 2_400_000
MOST_CPU_S, MOST_MIB, MOST_ANSWER = 5.0, 200, 100_000
COUNTING_S = 0.5  # CPU seconds for COUNTED on a machine on which the bounds hold
COUNTED = 10**7


def many(item, separator=","):
    return separator.join([item] * (SIZE // (len(item) + 1)))


def numbered(value, size=20):
    return ",".join(f'"k{i}":{value}' for i in range(SIZE // (size + len(value))))


def job(field):
    return f'{{"name":"x","tenant":"vision","gpus":1,{field}}}'


def affinity(part):
    return job(f'"node_affinity":[{{"match_expressions":[{part}]}}]')


# Built when sent: together they are as large as everything that the tests import.
JOBS = {
    "one name of many twice": lambda: "{" + numbered("1") + ',"k5":1}',
    "one name for all": lambda: "{" + many('"a":1') + "}",
    "many objects with a name twice": lambda: "[" + many('{"a":1,"a":1}') + "]",
    "many unknown names": lambda: "{" + numbered("1") + "}",
    "unknown names, few enough": lambda: "{" + ",".join(f'"k{i}":1' for i in range(90_000)) + "}",
    "deep arrays": lambda: "[" * SIZE,
    "deep objects": lambda: '{"a":' * (SIZE // 5),
    "deep, and closed": lambda: '{"labels":' + "[" * 900 + "]" * 900 + "}",
    "a long number": lambda: job('"priority":' + "9" * SIZE),
    "many long numbers": lambda: job('"command":[' + many("9" * 4000) + "]"),
    "a long fraction": lambda: job('"priority":0.' + "3" * SIZE),
    "escapes": lambda: job('"image":"' + "\\u0061" * (SIZE // 6) + '"'),
    "a long name": lambda: job('"image":"' + "a-" * (SIZE // 2) + '"'),
    "a long key": lambda: job('"' + "a-" * (SIZE // 2) + '":1'),
    "blanks": lambda: "{" + " " * SIZE + "}",
    "labels": lambda: job('"labels":{' + numbered('"v"') + "}"),
    "environment": lambda: job('"env":{' + numbered("1") + "}"),
    "annotations": lambda: job('"annotations":{' + numbered("1") + "}"),
    "secrets": lambda: job('"env_from_secrets":{' + numbered("{}") + "}"),
    "extended resources": lambda: job('"extended":{' + numbered("-1") + "}"),
    "a long time": lambda: job('"not_before":"' + "1" * SIZE + '"'),
    "terms": lambda: job('"node_affinity":[' + many("1") + "]"),
    "expressions": lambda: affinity(many('{"key":"a"}')),
    "values": lambda: affinity('{"key":"a","operator":"In","values":[' + many("1") + "]}"),
    **{
        f"{item} in {name}": lambda name=name, item=item: job(f'"{name}":[{many(item)}]')
        for name in ("pod_sets", "tolerations", "command", "after", "gpu_types", "volumes")
        for item in ("1", "{}", '""')
    },
    **{
        f"{item} in {name}, few enough": lambda name=name, item=item: job(
            f'"{name}":[{",".join([item] * 90_000)}]'
        )
        for name in ("pod_sets", "command", "after", "volumes")
        for item in ("1", "{}")
    },
}
POLICY = "clusters/demo/policy"
OTHERS = {
    "policy": ("put", POLICY, lambda: '{"policy":{' + numbered("1") + "}}"),
    "strategies": ("put", POLICY, lambda: '{"policy":{"strategies":{' + numbered('"v"') + "}}}"),
    "labels of a cluster": (
        "patch",
        "clusters/demo",
        lambda: '{"label_map":{' + numbered('"v"') + "}}",
    ),
    "access": ("patch", "clusters/demo", lambda: '{"access":{' + numbered('"v"') + "}}"),
    "quotas of a replay": (
        "post",
        "replays",
        lambda: '{"cluster":"demo","quotas":[' + many("{}") + "]}",
    ),
    "nodes of a replay": (
        "post",
        "replays",
        lambda: '{"cluster":"demo","nodes":[' + many("1") + "]}",
    ),
    "a long title": ("patch", "tenants/vision", lambda: '{"title":"' + "x" * SIZE + '"}'),
    "a fine quota": ("put", "quotas/vision/H100", lambda: '{"guaranteed":0.' + "3" * SIZE + "}"),
    "a long quota": ("put", "quotas/vision/H100", lambda: '{"guaranteed":' + "3" * 4000 + "}"),
}
BODIES = {**{name: ("post", "jobs", body) for name, body in JOBS.items()}, **OTHERS}


class Spent:
    """CPU seconds used within `with`, and the growth of the process in MiB."""

    def __enter__(self):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts anew
        self._cpu, self._before = time.process_time(), self._peak()
        return self

    def __exit__(self, *_):
        self.cpu_s = time.process_time() - self._cpu
        self.mib = self._peak() - self._before

    @staticmethod
    def _peak():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def slowness():
    """Return by how much this machine is now slower than one on which the bounds hold, at least
    1."""
    began, number = time.process_time(), 0
    while number < COUNTED:
        number += 1
    return max(1.0, (time.process_time() - began) / COUNTING_S)


def within_bounds(spent, name):
    is_quick = spent.cpu_s <= MOST_CPU_S or spent.cpu_s <= MOST_CPU_S * slowness()
    assert is_quick, f"{name}: {spent.cpu_s:.1f} s of CPU"
    assert spent.mib <= MOST_MIB, f"{name}: {spent.mib:.0f} MiB"


@pytest.mark.parametrize("name", some(BODIES))
def test_a_bad_body_costs_little(org, name):
    method, url, make = BODIES[name]
    body = make()
    assert len(body) <= 2_621_440, "else the size alone is refused"
    ops = org.client("ops")
    send = getattr(ops, method)
    with Spent() as spent:
        answer = send(
            f"/api/v1/{url}?dry_run=true",
            body.encode(),
            content_type="application/json",
            headers={"If-Match": '"0"'},
        )
    assert answer.status_code in (400, 413, 422), answer.content[:500]
    assert len(answer.content) <= MOST_ANSWER
    assert answer.json()["detail"]
    within_bounds(spent, name)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "unit", some(["://a:", "://", ":", "pass ", "--password ", "-----BEGIN ", "a_"])
)
def test_a_variable_that_might_be_a_secret_costs_little(unit):
    looked_at = "://" + unit * (MOST // len(unit) - len(unit))
    with Spent() as spent:
        # One as long as may be shown, and one that is too long to be shown.
        for _ in range(10):
            assert not looks_secret("A", looked_at) or "pass" in unit
        assert looks_secret("A", unit * (SIZE // len(unit)))
    within_bounds(spent, unit)


@pytest.mark.parametrize(
    "unit",
    some(["a", " ", "\n", "'", "\"", "\\", "\\\"", "\"' ", "\"a b\" ", "\\\"a b", "a 'b c' ", "a=",
     "token=",
     "token=$", "password:'a", "--a ", "--password ", "x@", "a:b", "a.a:", "://a:", "login(", "sk-",
     "`", "$(", "-p ", "mysql -p ", "curl -u ", "echo a | ", "| passwd ", "<<< ", "Bearer ",
     "Authorization: ", "mc alias set https:// ", "-----BEGIN PRIVATE KEY", "-----END ",
     "env A=1 "]),
)  # fmt: skip
def test_a_command_that_might_have_secrets_costs_little(unit):
    with Spent() as spent:
        # As long as may be shown, and ten times as many words.
        for _ in range(10):
            without_secrets(unit * (MOST // len(unit)))
        command_without_secrets([unit] * 2560)
    within_bounds(spent, unit)


@pytest.mark.parametrize("unit", ["x", "\r", "x\r", "\x1b[", "\x1b[0", "\x1b]", "\x1b ", "x\n"])
def test_a_log_of_whatever_lines_costs_little(unit):
    with Spent() as spent:
        readable(unit * (MOST_BYTES // len(unit)))
    within_bounds(spent, unit)


def test_the_name_that_stands_twice_is_told(org):
    body = '{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}'
    answer = org.client("eve").post("/api/v1/jobs", body, content_type="application/json")
    assert "the name 'c' appears twice in one object" in answer.json()["detail"]


# --- before anything is read ----------------------------------------------------------------------
class Wire:
    """Send a body in pieces of 64 KiB through the ASGI application, and count those taken."""

    def __init__(self, size, headers=(), *, path="/api/v1/jobs", query=b"", declared=True):
        self.size, self.sent, self.answers = size, 0, []
        length = [(b"content-length", str(size).encode())] if declared else []
        self.scope = {
            "type": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [*length, *headers],
        }

    async def receive(self):
        piece = min(65_536, self.size - self.sent)
        await asyncio.sleep(0.001 if piece else 3600)
        self.sent += piece
        return {"type": "http.request", "body": bytes(piece), "more_body": self.sent < self.size}

    async def send(self, message):
        self.answers.append(message)

    def run(self):
        kept = []

        async def app(scope, receive, send):
            more = True
            while more:
                message = await receive()
                kept.append(len(message["body"]))
                more = message["more_body"]
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        asyncio.run(BoundedBodies(app)(self.scope, self.receive, self.send))
        self.kept = sum(kept)
        return self.answers[0]["status"]

    @property
    def told(self):
        return json.loads(b"".join(a.get("body", b"") for a in self.answers[1:]))


TOKEN = (b"authorization", b"Bearer kant_x")
SESSION = (b"cookie", b"a=b; sessionid=x")


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("size", "headers", "status"),
    [
        (60_000_000, [], 413),
        (60_000_000, [TOKEN], 413),
        (60_000_000, [SESSION], 413),
        (MOST_ANONYMOUS + 1, [], 413),
        (MOST_ANONYMOUS + 1, [(b"authorization", b"Basic x")], 413),
        (MOST_ANONYMOUS, [], 200),
        (2_600_000, [TOKEN], 200),
        (2_600_000, [SESSION], 200),
        (2_600_000, [(b"cookie", b"csrftoken=x")], 413),
    ],
)
def test_a_large_body_is_refused_before_it_is_read(size, headers, status, declared):
    wire = Wire(size, headers, declared=declared)
    assert wire.run() == status
    if status == 200:
        assert wire.kept == size
        return
    assert wire.kept <= (0 if declared else 2_700_000)
    assert wire.told["code"] == "too-large"
    assert (b"connection", b"close") in wire.answers[0]["headers"]


def test_a_long_address_is_refused():
    wire = Wire(0, [TOKEN], query=b"state=" + b"RUNNING," * (MOST_ADDRESS // 8))
    assert (wire.run(), wire.told["code"]) == (414, "address-too-long")
    page = Wire(0, path="/" + "a" * MOST_ADDRESS)
    assert page.run() == 414
    assert sum(len(a.get("body", b"")) for a in page.answers) < 1000


# --- files ----------------------------------------------------------------------------------------
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 10)}]}}\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
ROUND = "a: &a [*a]\n"
DEEP = "[" * 5000


@pytest.mark.parametrize(
    "text", [LAUGHS, MERGES, ROUND, DEEP], ids=["laughs", "merges", "round", "deep"]
)
def test_aliases_of_yaml_are_counted_before_they_are_followed(tmp_path, text):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with Spent() as spent, pytest.raises(InputError, match=r"fleet\.yaml: .*(alias|nested)"):
        inputs.fleet_of(str(path))
    within_bounds(spent, "inventory")
    with Spent() as spent, pytest.raises(ClientError, match=r"fleet\.yaml .*(alias|nested)"):
        submission.read(str(path))
    within_bounds(spent, "job")


def test_aliases_that_people_write_are_read(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: x\nenv: &env {A: '1'}\npod_sets: [{env: *env}, {env: {<<: *env, B: '2'}}]\n"
    )
    found = submission.read(str(path))
    assert found["pod_sets"] == [{"env": {"A": "1"}}, {"env": {"A": "1", "B": "2"}}]
    assert submission.document_of(_no_flags(), found)["name"] == "x"


def _no_flags():
    return Namespace(
        **dict.fromkeys(flag.field for flag in submission.FLAGS), command=[], array=None, flags={}
    )


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)], ids=["gz", "xz"]
)
@pytest.mark.parametrize("unit", [b"0", b"a,b,c,d\n"], ids=["one line", "lines"])
def test_archives_made_to_fill_memory(tmp_path, monkeypatch, suffix, pack, unit):
    monkeypatch.setattr(text_files, "MOST_UNPACKED", 8 << 20)
    path = tmp_path / f"trace.csv{suffix}"
    path.write_bytes(pack(unit * (16_000_000 // len(unit))))
    with (
        Spent() as spent,
        pytest.raises(InputError, match=r"trace\.csv\.[gx]z: line \d+.* more than"),
    ):
        for _ in lines_of(path):
            pass
    within_bounds(spent, suffix)


def test_a_document_is_not_read_beyond_its_limit(tmp_path):
    for name in ("policy.json", "fleet.yaml"):
        path = tmp_path / name
        line = b"# \n"
        path.write_bytes(line * (text_files.MOST_OF_A_DOCUMENT // len(line) + 1))
        read = inputs.policy_of if name.endswith("json") else inputs.fleet_of
        with Spent() as spent, pytest.raises(InputError, match="more than 16,777,216 characters"):
            read(str(path))
        within_bounds(spent, name)
