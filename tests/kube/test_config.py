"""`Cluster.access`: what is accepted, and the one line that says what is wrong."""

import pytest

from scheduling.kube.door.config import load_endpoint
from scheduling.kube.door.gateway import Gateway
from scheduling.kube.seam import KubeError


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


def test_a_plain_address(token):
    endpoint = load_endpoint({"server": "http://localhost:1/", "token_file": str(token)})
    assert endpoint.server == "http://localhost:1"
    assert endpoint.tls is None
    assert endpoint.authorization() == "Bearer secret"
    token.write_text("renewed")
    assert endpoint.authorization() == "Bearer renewed"


def test_an_address_without_credentials():
    assert load_endpoint({"server": "https://localhost:1"}).authorization() == ""


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ({}, "give exactly one of"),
        ({"kubeconfig": "a", "server": "b"}, "give exactly one of"),
        ({"server": "localhost"}, "must begin with http:// or https://"),
        ({"server": 7}, 'field "server" is 7'),
        ({"server": ""}, "a text that is not empty"),
        ({"server": "http://a", "tokenfile": "x"}, "unknown fields ['tokenfile']"),
        ({"server": "https://a", "token_file": "/none"}, '"token_file": /none cannot be read'),
        ({"server": "https://a", "ca_file": "/none"}, "they must exist, be readable"),
        ({"server": "https://a", "cert_file": "/c"}, 'only one of "cert_file" and "key_file"'),
        ({"in_cluster": False}, "it must be true"),
        ({"in_cluster": True}, "run Kant in a pod with a service account"),
        ({"kubeconfig": "/none"}, '"kubeconfig": /none cannot be read'),
    ],
)
def test_what_cannot_be_used(access, words, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeError) as caught:
        load_endpoint(access)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{{{", "a: b", "[]", "apiVersion: v1\nkind: Config\n", "\x00\x01"],
)
def test_a_file_that_is_no_kubeconfig(tmp_path, text):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeError) as caught:
        load_endpoint({"kubeconfig": str(path)})
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_context_that_is_not_there(tmp_path):
    path = tmp_path / "config"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: []\nusers: []\n"
        "contexts: [{name: a, context: {cluster: c, user: u}}]\n"
    )
    with pytest.raises(KubeError, match="context b"):
        load_endpoint({"kubeconfig": str(path), "context": "b"})


def test_an_empty_token_file(token):
    token.write_text("")
    with pytest.raises(KubeError, match="is empty"):
        load_endpoint({"server": "https://a", "token_file": str(token)})


def test_a_label_map_is_checked_before_anything_starts():
    with pytest.raises(KubeError, match=r"no fact 'rack'.*correct the cluster's label map"):
        Gateway({"server": "http://a"}, namespace="n", label_map={"rack": "x"})


def test_a_configuration_that_cannot_be_read_is_told_and_tried_again(tmp_path):
    gateway = Gateway(
        {"server": "http://127.0.0.1:9", "token_file": str(tmp_path / "late")},
        namespace="n",
        label_map={},
    )
    gateway.start()
    try:
        with pytest.raises(KubeError, match="cannot be read"):
            gateway.wait_synced(0.2)
        (tmp_path / "late").write_text("token")
        with pytest.raises(KubeError, match="no connection to"):
            gateway.wait_synced(3)
    finally:
        gateway.stop()
