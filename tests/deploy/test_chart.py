"""The chart rendered by Helm: what it produces, what it refuses, and what a trial consists of."""

import json
from urllib.parse import urlsplit

import pytest
import yaml

from metrics.prometheus.alerts import prometheus_rules
from metrics.prometheus.dashboards import BOARDS, grafana
from tests.deploy.chart import CHART, Refused, chart_documents, made, needs_helm, rendered, watched
from tests.deploy.manifests import DEPLOY, FILE, ROOT, containers

pytestmark = pytest.mark.apiserver  # Helm's engine is built beside it
TRIAL = {"trial": {"postgresql": {"enabled": True}, "redis": {"enabled": True}}}


@pytest.fixture(autouse=True)
def _engine():
    needs_helm()


def named(found, kind, name):
    [one] = [each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return one


def test_the_manifests_are_those_that_the_chart_makes():
    for path, text in (watched() | made()).items():
        told = f"{path.relative_to(ROOT)} is not what the chart makes: run `make manifests`"
        assert path.read_text() == text.rstrip("\n") + "\n", told
    by_hand = {DEPLOY / "namespace.yaml", DEPLOY / FILE}
    assert set(DEPLOY.glob("*.yaml")) - by_hand == {
        path for path in made() if path.parent == DEPLOY
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 2}, "'replicas' not allowed"),
        ({"web": {"replicas": "two"}}, "at '/web/replicas'"),
        ({"web": {"resources": {"requests": {"cpu": [1]}}}}, "at '/web/resources/requests/cpu'"),
        ({"keptOut": ["kube-public"]}, "at '/keptOut'"),
        ({"priorityClass": {"value": 2 * 10**9}}, "at '/priorityClass/value'"),
        ({"settings": {"kant_lower": "x"}}, "propertyName 'kant_lower'"),
        ({"settings": {"DATABASE_URL": "postgres://kant:secret@db/kant"}}, "settings.DATABASE_URL"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_values_that_cannot_be_meant_are_refused_by_name(values, said):
    with pytest.raises(Refused, match=said) as refused:
        rendered(values)
    assert "secret@db" not in str(refused.value)


def test_every_value_changes_something():
    """The chart has no option that nothing reads, except the name of a Secret that only a
    ServiceMonitor uses."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    templates = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name, value in values.items():
        assert name in templates, name
        if isinstance(value, dict) and name not in ("settings", "trial", "web"):
            assert all(f".{each}" in templates for each in value), name


def test_a_trial_has_all_that_kant_needs():
    found = chart_documents(TRIAL)
    secret = named(found, "Secret", "kant-trial")["stringData"]
    assert secret.keys() == {"password", "KANT_SECRET_KEY", "DATABASE_URL", "REDIS_URL"}
    assert len(secret["KANT_SECRET_KEY"]) >= 50
    for name in ("DATABASE_URL", "REDIS_URL"):
        url = urlsplit(secret[name])
        assert url.password == secret["password"]
        service = named(found, "Service", url.hostname)["spec"]
        [port] = service["ports"]
        assert port["port"] == url.port or (url.port is None and port["port"] == 5432)
        stateful = named(found, "StatefulSet", url.hostname)["spec"]
        assert stateful["template"]["metadata"]["labels"] == service["selector"]
        door = named(found, "NetworkPolicy", url.hostname)["spec"]
        assert door["podSelector"]["matchLabels"] == service["selector"]
    for each in found:
        for container in containers(each):
            names = [next(iter(source.values()))["name"] for source in container["envFrom"]]
            assert names == ["kant", "kant-trial", "kant"]
    # Passwords are never the same twice, and the objects of a trial exist only in a trial.
    assert named(chart_documents(TRIAL), "Secret", "kant-trial")["stringData"] != secret
    assert not {"Secret", "StatefulSet"} & {each["kind"] for each in chart_documents({})}


def test_what_watches_kant_finds_it():
    found = chart_documents({"monitoring": {"enabled": True, "labels": {"release": "prom"}}})
    monitor = named(found, "ServiceMonitor", "kant")
    service = named(found, "Service", "web")
    assert monitor["metadata"]["labels"] == {"release": "prom"}
    assert service["metadata"]["labels"] == monitor["spec"]["selector"]["matchLabels"]
    [endpoint] = monitor["spec"]["endpoints"]
    [port] = service["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    [address] = [r["replacement"] for r in endpoint["relabelings"] if r["action"] == "replace"]
    assert address == f"web.kant.svc:{port['port']}"
    hosts = named(found, "ConfigMap", "kant")["data"]["KANT_ALLOWED_HOSTS"].split(",")
    assert address.partition(":")[0] in hosts
    assert named(found, "PrometheusRule", "kant")["spec"] == prometheus_rules()
    for board in BOARDS:
        config_map = named(found, "ConfigMap", board.uid)
        assert json.loads(config_map["data"][f"{board.uid}.json"]) == grafana(board)
        assert config_map["metadata"]["labels"] == {"grafana_dashboard": "1"}


def test_a_further_cluster_gets_rights_and_nothing_that_runs():
    found = chart_documents({"otherCluster": True})
    assert {each["kind"] for each in found} == {
        *("ServiceAccount", "ClusterRole", "ClusterRoleBinding"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
    # On a further cluster web reads logs with the shared account; in its own cluster it has its
    # own.
    assert ["pods/log"] in [r["resources"] for r in named(found, "ClusterRole", "kant")["rules"]]
    here = named(chart_documents({}), "ClusterRole", "kant")["rules"]
    assert ["pods/log"] not in [rule["resources"] for rule in here]
