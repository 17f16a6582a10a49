"""Access to a cluster: credentials, rights, addresses, and the messages when they do not fit."""

import json
import shutil
import subprocess
import time
from base64 import b64encode
from contextlib import ExitStack, contextmanager

import pytest

from metrics.benches.apiserver import TOKENS, ApiServer
from scheduling.kube.seam import (
    Connected,
    CreateAndBind,
    DeletePod,
    Disconnected,
    KubeError,
    PodSeen,
    Result,
)
from tests.kube.api import Api, eventually
from tests.kube.servers import TOKEN
from tests.kube.test_contract_effects import create
from tests.requirements import missing


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """No server is starting here, so a gateway need not wait long before it reports missing
    rights."""
    monkeypatch.setattr("scheduling.kube.door.settle.RIGHTS_WITHIN_S", 1.0)
    monkeypatch.setattr("scheduling.kube.door.gateway.RIGHTS_WITHIN_S", 1.0)


def refused(open_door, access, timeout=60.0):
    """Return the error with which a gateway says that it cannot work; the first error of one that
    keeps trying (`timeout` 0)."""
    door = open_door(access=access, sync=False)
    door.until(lambda each: isinstance(each, Disconnected))
    with pytest.raises(KubeError) as caught:
        door.gateway.wait_synced(timeout)
    return str(caught.value)


def write_kubeconfig(path, access, user):
    cluster = {"server": access["server"]}
    if "ca_file" in access:
        cluster["certificate-authority"] = access["ca_file"]
    entry = {"cluster": "c", "user": "u"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "broken",
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "good", "context": entry}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document))
    return {"kubeconfig": str(path), "context": "good"}


@contextmanager
def fewer_rights(place, less, lost):
    """Run with Kant's role reduced to `less(rule)` of each rule (None drops the rule). The server
    applies role changes with a delay: wait until it refuses the request `lost`, and at the end
    until it no longer does."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kant"
    role = place.api.ok("GET", path)
    kant = Api(place.server.pair.url, token_of(place), str(place.server.pair.ca_file))

    def put(rules):
        place.api.ok("PUT", path, {**place.api.ok("GET", path), "rules": rules})

    put([kept for rule in role["rules"] if (kept := less(rule))])
    try:
        eventually(lambda: kant.call(*lost).code == 403)
        yield
    finally:
        put(role["rules"])
        eventually(lambda: kant.call(*lost).code != 403)


def token_of(place):
    return TOKEN if place.server.name == "embedded" else "kant-token"


# --- ways in --------------------------------------------------------------------------------------
def test_a_kubeconfig_with_a_context(place, open_door, tmp_path):
    user = {"token": token_of(place)}
    access = write_kubeconfig(tmp_path / "config", place.server.access(), user)
    door = open_door(access=access)
    [outcome] = door.carry_out(create(place))
    assert outcome.result is Result.BOUND


def test_a_kubeconfig_with_an_exec_plugin(place, open_door, tmp_path, settings):
    settings.KANT_ACCESS_EXEC = ["printf"]
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token_of(place)},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "printf",
        "args": ["%s", json.dumps(credential)],
        "interactiveMode": "Never",
    }
    access = write_kubeconfig(tmp_path / "config", place.server.access(), {"exec": plugin})
    [outcome] = open_door(access=access).carry_out(create(place))
    assert outcome.result is Result.BOUND


def test_a_token_file_is_read_again_when_the_token_is_refused(
    place, open_door, tmp_path, monkeypatch
):
    monkeypatch.setattr("scheduling.kube.door.client.RELOAD_PAUSE_S", 0.1)
    monkeypatch.setattr("scheduling.kube.door.settle.RIGHTS_WITHIN_S", 120.0)
    token = tmp_path / "token"
    token.write_text(token_of(place))
    door = open_door(access={**place.server.access(), "token_file": str(token)})
    token.write_text("expired")
    door.gateway._client._set_authorization("Bearer expired")  # as after the next renewal
    door.gateway.submit([create(place)])
    door.until(lambda each: isinstance(each, Disconnected))
    token.write_text(token_of(place))
    assert door.outcome(create(place)).result is Result.BOUND
    door.until(lambda each: isinstance(each, Connected))
    place.make_pod("later")
    assert door.until_seen(PodSeen, "later")


# --- ways that are closed -------------------------------------------------------------------------
def test_a_wrong_token_is_told_with_where_it_came_from(place, open_door, tmp_path):
    token = tmp_path / "token"
    token.write_text("wrong")
    error = refused(open_door, {**place.server.access(), "token_file": str(token)})
    assert "does not accept the credentials (401" in error
    assert str(token) in error
    assert "renew the token" in error


def test_nobody_listens(place, open_door):
    access = {**place.server.access(), "server": "http://127.0.0.1:9"}
    error = refused(open_door, access, timeout=0)
    assert "no connection to http://127.0.0.1:9" in error
    assert "check that the API server runs" in error


def test_what_is_not_kubernetes(place, open_door):
    """The path is wrong: something answers, but not the API."""
    access = place.server.access()
    access["server"] += "/elsewhere"
    error = refused(open_door, access, timeout=0)
    assert "when Kant wanted to" in error or "does not allow" in error


def test_a_refused_effect_ends_in_time_and_says_why(place, open_door, tmp_path):
    """Missing rights are reported after a few seconds, without a busy loop."""
    with ExitStack() as stack:
        if place.server.name == "embedded":
            token = tmp_path / "token"
            token.write_text(TOKEN)
            door = open_door(access={**place.server.access(), "token_file": str(token)})
            token.write_text("wrong")
            door.gateway._client._set_authorization("Bearer wrong")
            expected = 401
        else:
            door = open_door()
            stack.enter_context(
                fewer_rights(
                    place,
                    lambda rule: None if "delete" in rule["verbs"] else rule,
                    ("DELETE", f"{place.pods}/absent"),
                )
            )
            expected = 403
        started = time.monotonic()
        effects = [DeletePod(i, place.namespace, f"p-{i}", "uid", 0) for i in range(100)]
        outcomes = door.carry_out(*effects)
        assert {each.result for each in outcomes} == {Result.REFUSED}
        assert {each.code for each in outcomes} == {expected}
        assert time.monotonic() - started > 1


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A kube-apiserver that accepts certificates of an authority made here, and an administrator's
    certificate."""
    if shutil.which("openssl") is None:
        missing("openssl", "install the package openssl")
    folder = tmp_path_factory.mktemp("certificates")
    key, ca, request, cert = (folder / name for name in ("key", "ca", "request", "cert"))
    openssl("genrsa", "-out", str(key), "2048")
    openssl("req", "-x509", "-new", "-key", str(key), "-subj", "/CN=test", "-out", str(ca))
    subject = "/O=system:masters/CN=admin"
    openssl("req", "-new", "-key", str(key), "-subj", subject, "-out", str(request))
    sign = ("-CA", str(ca), "-CAkey", str(key), "-CAcreateserial", "-out", str(cert))
    openssl("x509", "-req", "-in", str(request), *sign)
    with ApiServer(folder / "server", flags=(f"--client-ca-file={ca}",)) as server:
        yield server, cert, key


# --- kube-apiserver alone: TLS and RBAC -----------------------------------------------------------
@pytest.mark.parametrize("server", [pytest.param("kube-apiserver", marks=pytest.mark.apiserver)],
                         indirect=True)  # fmt: skip
class TestRightsAndCertificates:
    def test_a_client_certificate(self, place, open_door, certificates):
        """Needs a server of its own: the accepted authorities are set at start."""
        server, cert, key = certificates
        access = {
            "server": server.url,
            "ca_file": str(server.ca_file),
            "cert_file": str(cert),
            "key_file": str(key),
        }
        [outcome] = open_door(access=access).carry_out(create(place))
        assert outcome.result is Result.BOUND

    def test_a_client_certificate_inside_a_kubeconfig(
        self, place, open_door, certificates, tmp_path
    ):
        server, cert, key = certificates
        user = {
            "client-certificate-data": b64encode(cert.read_bytes()).decode(),
            "client-key-data": b64encode(key.read_bytes()).decode(),
        }
        access = {"server": server.url, "ca_file": str(server.ca_file)}
        door = open_door(access=write_kubeconfig(tmp_path / "config", access, user))
        [outcome] = door.carry_out(create(place))
        assert outcome.result is Result.BOUND

    def test_an_account_without_rights(self, place, open_door):
        assert "nobody" in TOKENS
        error = refused(open_door, place.server.pair.access("nobody"))
        assert "does not allow Kant to" in error
        assert 'User "nobody" cannot' in error
        assert "grant that right to Kant's account" in error

    def test_who_may_not_make_namespaces_is_told_and_works_in_those_that_exist(
        self, place, open_door
    ):
        def reading(rule):
            return {**rule, "verbs": ["get"]} if rule["resources"] == ["namespaces"] else rule

        door = open_door()
        with fewer_rights(place, reading, ("POST", "/api/v1/namespaces")):
            theirs = create(place, "theirs")
            nowhere = f"{place.namespace}-b"
            theirs.manifest["metadata"]["namespace"] = nowhere
            effect = CreateAndBind(
                "theirs", nowhere, "theirs", theirs.manifest, theirs.node, theirs.annotations
            )
            refused, made = door.carry_out(effect, create(place, "made"))
            assert (refused.result, refused.code) == (Result.REFUSED, 403)
            assert f"does not allow Kant to create the namespace {nowhere}" in refused.message
            assert "grant that right to Kant's account" in refused.message
            assert made.result is Result.BOUND
            assert not [each for each in door.seen if isinstance(each, Disconnected)]

    def test_a_certificate_of_an_unknown_authority(self, place, open_door):
        access = place.server.access()
        del access["ca_file"]
        error = refused(open_door, access, timeout=0)
        assert "certificate" in error
        assert "is not trusted" in error
        assert "name its CA" in error

    def test_a_host_that_the_certificate_does_not_name(self, place, open_door):
        access = place.server.access()
        access["server"] = access["server"].replace("127.0.0.1", "127.0.0.2")
        error = refused(open_door, access, timeout=0)
        assert "127.0.0.2" in error

    def test_a_client_that_speaks_plainly_to_tls(self, place, open_door):
        access = place.server.access()
        access["server"] = access["server"].replace("https", "http")
        error = refused(open_door, access, timeout=0)
        assert "400" in error
