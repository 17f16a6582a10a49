"""A stored job has a document that, when submitted, makes the same rows again."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rest_framework.serializers import ValidationError
from rest_framework.utils.encoders import JSONEncoder

from scheduling.api.job_serializers import JobInput
from scheduling.job_fields.faults import LEVELS
from scheduling.models import Cluster, Job
from scheduling.services.jobs.document import document_of
from scheduling.services.jobs.orders import Order, rows_of
from scheduling.services.jobs.validation import job_spec
from tenants.api.base import shared
from tenants.errors import Invalid
from tenants.models import Queue, Tenant
from tests.cases import examples

URL = "/api/v1/jobs"
ARRAYS = "/api/v1/job-arrays"
HELLO = {"name": "hello", "tenant": "vision", "gpu_type": "H100", "gpus": 8}
SHORT = {**HELLO, "cluster": "demo"}
CLAIM = {"name": "data", "persistent_volume_claim": "datasets", "mount_path": "/data"}
CONFIG = {"name": "conf", "config_map": "conf", "mount_path": "/conf"}
# Values that differ between two jobs with the same request.
OWN = {"id", "job", "submitted_at", "reason_at", "array_id", "array_index"}


# --- documents of all kinds -----------------------------------------------------------------------
def mapping(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw some of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


slugs = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
labels = st.dictionaries(slugs, st.just("") | slugs, max_size=2)
texts = st.text(st.characters(exclude_categories=["C"]) | st.sampled_from("\n\t \"'"), max_size=8)
variables = st.sampled_from("ABCD")
levels = st.sampled_from(["", *LEVELS])
tolerations = st.sampled_from(
    [
        {"operator": "Exists"},
        {"key": "a"},
        {"key": "a", "operator": "Equal", "value": "b", "effect": ""},
        {"key": "a", "operator": "Exists", "effect": "NoSchedule"},
    ]
)
terms = st.sampled_from(
    [
        {"match_expressions": [{"key": "a", "operator": "Exists"}]},
        {"match_fields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
        {"match_expressions": [{"key": "a", "operator": "DoesNotExist", "values": []}]},
        {
            "match_expressions": [
                {"key": "a", "operator": "NotIn", "values": ["b", ""]},
                {"key": "a", "operator": "Gt", "values": ["4"]},
            ]
        },
    ]
)
SECRET_KEY = {"secret": "wandb", "key": "api-key"}
volumes = st.sampled_from(
    [
        [],
        [CLAIM],
        [{**CLAIM, "read_only": True}, CONFIG],
        [{**CLAIM, "read_only": False, "secret": None}],
        [{"name": "keys", "secret": "keys", "mount_path": "/keys", "read_only": True}],
    ]
)
gpu_demands = st.one_of(
    mapping(nics=st.integers(0, 8)).map(lambda more: {"gpus": 8, **more}),
    st.integers(1, 1000).map(lambda milli: {"gpus": 1, "gpu_milli": milli}),
    st.integers(0, 81_920).map(lambda mib: {"gpus": 1, "gpu_memory_mib": mib}),
)
gpu_types = st.one_of(
    st.just({}),
    st.just({"gpu_type": None, "gpu_types": []}),
    st.sampled_from(["H100", "A100"]).map(lambda name: {"gpu_type": name}),
    st.lists(st.sampled_from(["H100", "A100", "T4"]), max_size=4).map(lambda n: {"gpu_types": n}),
)
counts = st.one_of(
    st.just({}),
    st.integers(1, 3).map(lambda n: {"count": n}),
    st.integers(1, 3).map(lambda n: {"count": 3, "min_count": n}),
    st.just({"count": 4, "min_count": 2, "slice_size": 2, "required_level": "leaf"}),
)
device_claims = st.sampled_from(
    [
        {"template": "two-gpus"},
        {"device_class": "gpu.example.com", "count": 1},
        {"device_class": "nic.example.com", "count": 2, "selectors": ["device.driver == 'a'"]},
    ]
)
uses = mapping(
    cpu_milli=st.integers(0, 9000),
    memory_mib=st.integers(0, 9000),
    node_selector=labels,
    node_affinity=st.lists(terms, max_size=2),
    tolerations=st.lists(tolerations, max_size=2),
    preferred_level=levels,
    balance_level=levels,
    max_per_node=st.integers(1, 8),
    max_per_leaf=st.integers(1, 8),
    extended=st.just({"vendor.com/card": 2, "vendor.com/none": 0}),
    image=st.sampled_from(["busybox:stable", "registry.example/a:1"]),
    command=st.lists(texts, max_size=3) | texts.map(lambda text: ["/bin/sh", "-c", text]),
    env=st.dictionaries(variables, texts, max_size=3),
    env_from_secrets=st.dictionaries(st.sampled_from("EF"), st.just(SECRET_KEY)),
    device_claims=st.dictionaries(slugs, device_claims, max_size=2),
    annotations=st.dictionaries(slugs, texts, max_size=2),
    service_account=st.sampled_from(["", "trainer"]),
    image_pull_secrets=st.lists(slugs, max_size=2, unique=True),
    shm_mib=st.integers(0, 1024),
    volumes=volumes,
    security_context=st.sampled_from(
        [
            {},
            {"restricted": True, "run_as_user": 1000, "privileged": None},
            {"run_as_non_root": False, "supplemental_groups": [], "drop_capabilities": ["ALL"]},
            {"add_capabilities": ["IPC_LOCK"], "seccomp": "RuntimeDefault", "fs_group": 0},
        ]
    ),
    runtime_class=st.sampled_from(["", "gvisor"]),
    priority_class=st.sampled_from(["", "low"]),
    host_network=st.just(False),
    init_containers=st.just([{"name": "fetch", "image": "busybox", "command": ["sh", "-c", "x"]}]),
    sidecars=st.sampled_from([[], [{"name": "proxy", "image": "envoy:1", "cpu_milli": None}]]),
    probes=st.sampled_from(
        [
            {},
            {"startup": {"command": ["true"], "failures": 30}, "liveness": {"port": 80}},
            {"readiness": {"port": 80, "http_path": "/ready", "period_s": 5, "delay_s": 0}},
        ]
    ),
)
needs = st.tuples(gpu_demands, gpu_types, counts, uses).map(
    lambda parts: {name: value for part in reversed(parts) for name, value in part.items()}
)
wishes = mapping(
    queue=st.sampled_from(["default", "night"]),
    kind=st.sampled_from(["training", "inference", "development"]),
    priority=st.integers(-9, 9),
    preemptible=st.booleans(),
    preempts=st.booleans(),
    uses_spares=st.booleans(),
    declared_s=st.none() | st.integers(1, 9000),
    run_limit_s=st.integers(1, 9000),
    checkpoint_notice_s=st.integers(1, 3600),
    max_restarts=st.sampled_from([None, 0, 1, 1000]),
    not_before=st.datetimes(datetime(2030, 1, 1), timezones=st.just(UTC)),
    held=st.booleans(),
    after=st.lists(st.uuids(), max_size=2),
    after_ok=st.lists(st.uuids(), max_size=2),
    strategy=st.sampled_from(["", "binpack"]),
    labels=labels,
    cluster_selector=labels,
    preferred_cluster_labels=labels,
)
names = st.fixed_dictionaries({"name": slugs, "tenant": st.just("vision")})


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    document = {**draw(names), **draw(wishes)}
    if draw(st.booleans()):
        sets = draw(st.lists(needs, min_size=1, max_size=3))
        for index, one in enumerate(sets):
            one |= draw(st.sampled_from([{}, {"name": None}, {"name": f"own-{index}"}]))
        document |= {"pod_sets": sets, **draw(mapping(required_level=levels))}
    else:
        sets = [draw(needs)]
        document |= sets[0]
        if "count" in document and draw(st.booleans()):
            document["replicas"] = document.pop("count")
    if not any("min_count" in one for one in sets):
        document |= draw(mapping(gang=st.booleans()))
    return document


# --- there and back -------------------------------------------------------------------------------
VISION, DEMO = Tenant(id=1, name="vision"), Cluster(id=1, name="demo")
DEFAULT = Queue(id=1, tenant=VISION, name="default")


def read(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document as REST reads it from JSON."""
    body = json.loads(json.dumps(document, cls=JSONEncoder))
    return dict(shared(JobInput).run_validation(body))


def made_of(document: dict[str, Any]) -> Job:
    """Return a document's job with its pod sets, as it would be written."""
    order = Order(job_spec(read(document)), VISION, DEMO, DEFAULT)
    job, sets = rows_of(None, order, datetime(2030, 1, 1, tzinfo=UTC))
    job._prefetched_objects_cache = {"pod_sets": sets}
    return job


def asked(job: Job) -> list[dict[str, Any]]:
    """Return all columns of a job and its pod sets, except those that differ between equal jobs."""
    rows = [job, *job.pod_sets.all()]
    return [
        {f.attname: getattr(row, f.attname) for f in row._meta.concrete_fields if f.name not in OWN}
        for row in rows
    ]


def said_in_vain(document: dict[str, Any]) -> list[str]:
    """Return the fields that could be left out without any change."""
    whole = asked(made_of(document))

    def is_vain(rest: dict[str, Any]) -> bool:
        try:
            return asked(made_of(rest)) == whole
        except (Invalid, ValidationError):
            return False

    def without(item: dict[str, Any], name: str) -> dict[str, Any]:
        return {other: value for other, value in item.items() if other != name}

    found = [name for name in without(document, "cluster") if is_vain(without(document, name))]
    sets = document.get("pod_sets", [])
    for index, item in enumerate(sets):
        for name in item:
            rest = [*sets[:index], without(item, name), *sets[index + 1 :]]
            found += [name] if is_vain({**document, "pod_sets": rest}) else []
    return found


@given(documents())
@settings(max_examples=examples(100))
def test_the_document_of_a_job_makes_the_same_rows_and_says_no_more_than_that(document):
    job = made_of(document)
    short = document_of(job)
    assert asked(made_of(short)) == asked(job)
    assert said_in_vain(short) == []


def test_of_every_field_the_round_trip_is_tried():
    said: set[str] = set()

    @given(documents())
    @settings(max_examples=400, phases=[Phase.generate], database=None, derandomize=True)
    def draw(document):
        said.update(document, *document.get("pod_sets", []))

    draw()
    assert said | {"array", "cluster"} == set(JobInput().fields)  # of one job, on one cluster


def posted(client: Any, document: dict[str, Any]) -> str:
    answer = client.post(URL, document, format="json")
    assert answer.status_code == 201, answer.json()
    return answer.json()["id"]


@pytest.mark.parametrize(
    ("document", "short"),
    [
        (HELLO, SHORT),
        ({**HELLO, "count": 1, "priority": 0, "gang": True, "labels": {}, "env": None}, SHORT),
        ({**HELLO, "count": 3}, {**SHORT, "replicas": 3}),
        ({**HELLO, "gpu_type": None, "gpu_types": ["H100"]}, SHORT),
        (
            {**HELLO, "gpu_type": None, "gpu_types": ["A100", "H100"], "gpus": 4},
            {
                **{name: SHORT[name] for name in ("name", "tenant", "cluster")},
                "gpu_types": ["A100", "H100"],
                "gpus": 4,
            },
        ),
        (
            {**HELLO, "kind": "inference", "gang": False},
            {**SHORT, "kind": "inference", "gang": False},
        ),
        (
            {**HELLO, "kind": "inference", "gang": False, "max_restarts": 0},
            {**SHORT, "kind": "inference", "gang": False, "max_restarts": 0},
        ),
        (
            {**HELLO, "volumes": [{**CLAIM, "read_only": False}, {**CONFIG, "read_only": True}]},
            {**SHORT, "volumes": [CLAIM, CONFIG]},
        ),
        (
            {**HELLO, "tolerations": [{"key": "a", "operator": "Equal", "effect": ""}]},
            {**SHORT, "tolerations": [{"key": "a"}]},
        ),
        (
            {**HELLO, "not_before": "2030-01-31T13:00:00+01:00"},
            {**SHORT, "not_before": "2030-01-31T12:00:00Z"},
        ),
        (
            {"name": "hello", "tenant": "vision", "pod_sets": [{"gpu_type": "H100", "gpus": 8}]},
            SHORT,
        ),
    ],
)
def test_rest_gives_the_document_as_short_as_people_write_it(eve, document, short):
    answer = eve.get(f"{URL}/{posted(eve, document)}/document")
    assert (answer.status_code, answer.json()) == (200, short)
    assert answer["Cache-Control"] == "no-store"
    again = Job.objects.get(pk=posted(eve, short))
    first = Job.objects.exclude(pk=again.pk).get()
    assert asked(again) == asked(first)


def test_several_pod_sets_and_levels_for_all_of_them_stay_what_they_are(eve):
    document = {
        "name": "pair",
        "tenant": "vision",
        "cluster": "demo",
        "required_level": "spine",
        "pod_sets": [{"gpus": 8, "required_level": "leaf"}, {"name": "head", "cpu_milli": 500}],
    }
    assert eve.get(f"{URL}/{posted(eve, document)}/document").json() == document


def test_the_document_says_what_was_changed_since(eve):
    job = posted(eve, HELLO)
    eve.patch(f"{URL}/{job}", {"priority": 7, "declared_s": 60}, format="json")
    eve.post(f"{URL}/{job}/hold")
    changed = {**SHORT, "priority": 7, "declared_s": 60, "held": True}
    assert eve.get(f"{URL}/{job}/document").json() == changed


def test_an_array_is_repeated_whole_or_one_job_of_it(eve):
    sweep = {**SHORT, "name": "sweep", "gpus": 1, "array": {"count": 3}}
    for env in ({}, {"env": {"SEED": "7"}}):
        array = posted(eve, {**sweep, **env})
        assert eve.get(f"{ARRAYS}/{array}/document").json() == {**sweep, **env}
        member = Job.objects.get(array_id=array, array_index=2)
        one = eve.get(f"{URL}/{member.pk}/document").json()
        own = {"KANT_ARRAY_COUNT": "3", "KANT_ARRAY_INDEX": "2"}
        assert one == {**SHORT, "name": "sweep-2", "gpus": 1, "env": {**env.get("env", {}), **own}}
        assert asked(Job.objects.get(pk=posted(eve, one))) == asked(member)
        again = posted(eve, {**sweep, **env})
        for index in range(3):
            first, second = (Job.objects.get(array_id=a, array_index=index) for a in (array, again))
            assert asked(first) == asked(second)


def test_what_cannot_be_repeated_says_so(eve):
    before = posted(eve, HELLO)
    after = posted(eve, {**HELLO, "after": [before]})
    Job.objects.filter(pk=before).delete()
    document = eve.get(f"{URL}/{after}/document").json()
    assert document == {**SHORT, "after": [before]}
    refused = eve.post(URL, document, format="json").json()
    assert [e["pointer"] for e in refused["errors"]] == ["/after/0"]
    assert f"There is no job or array {before} that you may see." in refused["detail"]
    Job.objects.filter(pk=after).update(pod_namespace="web", pod_name="notebook-0")
    answer = eve.get(f"{URL}/{after}/document")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "stands for pod web/notebook-0, which Kant did not create." in answer.json()["detail"]
    Job.objects.update(pod_gang="train")
    said = eve.get(f"{URL}/{after}/document").json()["detail"]
    assert "stands for the pods of gang web/train, which Kant did not create. Create" in said


def test_who_may_read_a_job_may_read_its_document(org, eve):
    job = posted(eve, {**HELLO, "env": {"A": "1"}})
    array = posted(eve, {**HELLO, "array": {"count": 2}})
    for path in (f"{URL}/{job}", f"{ARRAYS}/{array}"):
        for who, status in (("vic", 200), ("root", 200), ("ops", 200), ("lex", 404)):
            answers = [org.client(who).get(address) for address in (path, f"{path}/document")]
            assert [a.status_code for a in answers] == [status, status], who
    missing = f"{URL}/00000000-0000-4000-8000-000000000000/document"
    assert eve.get(missing).status_code == 404
    assert eve.get(f"{URL}/{job}/document?x=1").json()["code"] == "bad-query"


def test_the_document_is_described_as_what_is_sent_in(client):
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    sent = paths[URL]["post"]["requestBody"]["content"]["application/json"]["schema"]
    for path in (f"{URL}/{{job_id}}/document", f"{ARRAYS}/{{array_id}}/document"):
        given = paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert given == sent
