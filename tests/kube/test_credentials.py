"""`access` of a cluster may name only files, programs and addresses that the deployment allows.
Kant checks this when `access` is written and on every use."""

import json
import os

import pytest

from scheduling.kube.door.config import load_endpoint
from scheduling.kube.door.credentials import AccessRefused
from scheduling.kube.seam import KubeError
from tests import organisation

URL = "/api/v1/clusters"
HTTPS = "https://127.0.0.1:1"
FIELDS = ("token_file", "ca_file", "cert_file", "kubeconfig")


@pytest.fixture
def org(db):
    return organisation.build()


@pytest.fixture
def allowed(settings, tmp_path):
    """The folder for clusters' files; beside it, in `tmp_path`, is what they must not reach."""
    folder = tmp_path / "clusters"
    folder.mkdir()
    settings.KANT_ACCESS_DIRS = [str(folder)]
    settings.VAR_DIR = tmp_path / "var"
    settings.VAR_DIR.mkdir()
    (settings.VAR_DIR / "secret_key").write_text("django-key")
    (tmp_path / "secret").write_text("nobody's business")
    (folder / "token").write_text("of-the-cluster")
    return folder


def access_of(field, path):
    if field == "kubeconfig":
        return {"kubeconfig": str(path)}
    more = {"key_file": str(path)} if field == "cert_file" else {}
    return {"server": HTTPS, field: str(path), **more}


def escapes(allowed):
    """Return paths, by name, that lead out of the folder or to a secret inside it."""
    outside = allowed.parent / "secret"
    (allowed / "link").symlink_to(outside)
    (allowed / "folder").symlink_to(allowed.parent)
    (allowed / "chain").symlink_to(allowed / "link")
    (allowed / "loop").symlink_to(allowed / "loop")
    os.link(allowed.parent / "var" / "secret_key", allowed / "hard")
    near = allowed.parent / "clusters-of-others"
    near.mkdir()
    (near / "token").write_text("x")
    return {
        "outside": outside,
        "the key": allowed.parent / "var" / "secret_key",
        "dots": f"{allowed}/../secret",
        "dots through a link": f"{allowed}/folder/clusters/../secret",
        "link": allowed / "link",
        "link to a folder": allowed / "folder" / "secret",
        "chain of links": allowed / "chain",
        "loop of links": allowed / "loop",
        "through a loop of links": allowed / "loop" / "token",
        "hard link to the key": allowed / "hard",
        "a folder whose name begins alike": near / "token",
        "the folder itself": allowed,
        "relative": "secret",
        "home": "~/.ssh/id_rsa",
        "process": "/proc/self/environ",
        "service account": "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "two at once": f"{allowed}/token:{outside}",
        "NUL": f"{allowed}/token\0",
    }


@pytest.mark.parametrize("field", FIELDS)
def test_files_elsewhere_are_neither_written_down_nor_read(org, allowed, field):
    ops = org.client("ops")
    for name, path in escapes(allowed).items():
        access = access_of(field, path)
        if "\0" not in str(path):
            for answer in (
                ops.post(URL, {"name": "east", "access": access}, format="json"),
                ops.post(f"{URL}?dry_run=true", {"name": "e", "access": access}, format="json"),
                ops.patch(f"{URL}/demo", {"access": access}, format="json"),
            ):
                assert answer.status_code == 422, (name, answer.content)
                [error] = answer.json()["errors"]
                assert error["pointer"] == f"/access/{field}", name
                assert "KANT_ACCESS_DIRS" in error["detail"] or "name" in error["detail"]
                assert "business" not in answer.content.decode()
        with pytest.raises(AccessRefused) as caught:
            load_endpoint(access)
        assert caught.value.field == field, name


def test_own_secrets_are_refused_even_below_an_allowed_folder(allowed, settings, tmp_path):
    settings.KANT_ACCESS_DIRS = [str(tmp_path)]
    oidc = tmp_path / "oidc"
    oidc.write_text("x")
    settings.KANT_OIDC_CLIENT_SECRET_FILE = str(oidc)
    for path in (settings.VAR_DIR / "secret_key", oidc, allowed / ".." / "oidc"):
        with pytest.raises(AccessRefused, match="Kant's own secrets"):
            load_endpoint(access_of("token_file", path))


def test_a_link_that_is_changed_later_is_found_when_it_is_used(allowed):
    link = allowed / "current"
    link.symlink_to(allowed / "token")
    endpoint = load_endpoint(access_of("token_file", link))
    assert endpoint.authorization() == "Bearer of-the-cluster"
    (allowed / "token").write_text("renewed")
    assert endpoint.authorization() == "Bearer renewed"
    link.unlink()
    link.symlink_to(allowed.parent / "secret")
    with pytest.raises(AccessRefused):
        endpoint.authorization()


def test_what_a_secret_of_kubernetes_looks_like_is_read(allowed):
    (allowed / "..2026").mkdir()
    (allowed / "..2026" / "east").write_text("mounted")
    (allowed / "..data").symlink_to("..2026")
    (allowed / "east").symlink_to("..data/east")
    endpoint = load_endpoint(access_of("token_file", allowed / "east"))
    assert endpoint.authorization() == "Bearer mounted"


@pytest.mark.parametrize(
    ("server", "embedded", "good"),
    [
        ("https://east.example", False, True),
        ("http://east.example", False, False),
        ("http://east.example", True, False),
        ("http://127.0.0.1:1", True, True),
        ("http://[::1]:1", True, True),
        ("http://localhost:1", True, True),
        ("http://127.0.0.1:1", False, False),
        ("http://127.0.0.1.example", True, False),
        ("http://localhost.example", True, False),
        ("http://user@127.0.0.1:1@east.example", True, False),
        ("HTTP://east.example", True, False),
    ],
)
def test_a_token_is_not_sent_without_tls(org, allowed, settings, server, embedded, good):
    settings.EMBEDDED = embedded
    access = {"server": server, "token_file": str(allowed / "token")}
    answer = org.client("ops").patch(f"{URL}/demo", {"access": access}, format="json")
    assert answer.status_code == (200 if good else 422), answer.content
    path = kubeconfig(allowed, {"token": "x"}, server=server)
    for given in (access, {"kubeconfig": path}):
        if good:
            assert load_endpoint(given).authorization().startswith("Bearer ")
        else:
            with pytest.raises(KubeError):
                load_endpoint(given)


@pytest.mark.parametrize(
    "server",
    [
        *("https://u:secret-word@east.example", "https://u@east.example:6443/k8s"),
        *("https://:secret-word@east.example", "http://10.0.0.1\\@127.0.0.1"),
        *("https://east.example?token=secret-word", "https://east.example/k8s#c"),
    ],
)
def test_an_address_has_no_user_and_no_query(org, allowed, server):
    """The address is shown to everyone who may see the cluster, and is kept in the audit trail."""
    answer = org.client("ops").patch(f"{URL}/demo", {"access": {"server": server}}, format="json")
    told = answer.content.decode()
    assert answer.status_code == 422, told
    assert "name host and port alone" in told
    assert "secret-word" not in told
    path = kubeconfig(allowed, {"token": "x"}, server=server)
    for access in ({"server": server}, {"kubeconfig": path}):
        with pytest.raises(AccessRefused, match="name host and port alone") as refused:
            load_endpoint(access)
        assert "secret-word" not in str(refused.value)


def kubeconfig(folder, user, *, server=HTTPS, **cluster):
    path = folder / "config"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document))
    return str(path)


def plugin(command, *arguments):
    version = "client.authentication.k8s.io/v1"
    return {"apiVersion": version, "command": command, "args": list(arguments)}


def test_programs_run_only_from_the_list(allowed, settings, tmp_path):
    ran = tmp_path / "ran"
    exec_ = plugin("/bin/sh", "-c", f"touch {ran}")
    gcp = {"config": {"cmd-path": "/bin/sh", "cmd-args": f"-c 'touch {ran}'"}, "name": "gcp"}
    for user in ({"exec": exec_}, {"auth-provider": gcp}):
        path = kubeconfig(allowed, user)
        for listed in ([], ["sh"], ["/bin/sh -c"]):
            settings.KANT_ACCESS_EXEC = listed
            with pytest.raises(AccessRefused, match=r"'/bin/sh' run to sign in.*KANT_ACCESS_EXEC"):
                load_endpoint({"kubeconfig": path})
    assert not ran.exists()
    program = tmp_path / "sign-in"
    program.write_text(
        '#!/bin/sh\necho \'{"apiVersion": "client.authentication.k8s.io/v1", '
        '"kind": "ExecCredential", "status": {"token": "made"}}\'\n'
    )
    program.chmod(0o755)
    settings.KANT_ACCESS_EXEC = [str(program)]
    path = kubeconfig(allowed, {"exec": plugin(str(program))})
    assert load_endpoint({"kubeconfig": path}).authorization() == "Bearer made"


@pytest.mark.parametrize(
    ("user", "cluster", "told"),
    [
        ({"exec": {"command": "/bin/sh"}}, {}, "has '/bin/sh' run to sign in"),
        (
            {"auth-provider": {"config": {"cmd-path": "/bin/sh"}}},
            {},
            "has '/bin/sh' run to sign in",
        ),
        ({"tokenFile": "../secret"}, {}, "in no folder that clusters' files may be in"),
        ({"client-key": "../secret"}, {}, "in no folder that clusters' files may be in"),
        ({}, {"certificate-authority": "../secret"}, "in no folder that clusters' files may be in"),
        ({"token": "x"}, {"server": "http://10.0.0.1"}, "has no TLS"),
        ({}, {"server": "https://u:p@east.example"}, "name host and port alone"),
    ],
)
def test_what_a_kubeconfig_names_is_refused_when_it_is_written(org, allowed, user, cluster, told):
    server = {"server": HTTPS, **cluster}
    answer = org.client("ops").patch(
        f"{URL}/demo",
        {"access": {"kubeconfig": kubeconfig(allowed, user, **server)}},
        format="json",
    )
    (fault,) = answer.json()["errors"]
    assert answer.status_code == 422
    assert (fault["pointer"], told in fault["detail"]) == ("/access/kubeconfig", True), fault


@pytest.mark.parametrize("text", [None, "", "[", "a: 1\na: 2", "- &a [*a]", "[" * 9999, "\0", "x"])
def test_a_kubeconfig_that_is_not_there_yet_or_is_none_is_told_when_it_is_used(org, allowed, text):
    path = allowed / "later"
    if text is not None:
        path.write_text(text)
    access = {"access": {"kubeconfig": str(path)}}
    assert org.client("ops").patch(f"{URL}/demo", access, format="json").status_code == 200
    with pytest.raises(KubeError):
        load_endpoint(access["access"])


@pytest.mark.parametrize(
    "server", ["https://east.example/\x07", "https://east\x1b[31m", "https://a b"]
)
def test_an_address_has_no_character_that_none_has(org, allowed, server):
    answer = org.client("ops").patch(f"{URL}/demo", {"access": {"server": server}}, format="json")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/access/server")


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"tokenFile": "{secret}"}, {}),
        ({"tokenFile": "../secret"}, {}),
        ({"client-certificate": "{secret}", "client-key": "{secret}"}, {}),
        ({"client-key": "{secret}"}, {}),
        ({"token": "x"}, {"certificate-authority": "{secret}"}),
    ],
)
def test_files_that_a_kubeconfig_names_count_too(allowed, user, cluster):
    secret = str(allowed.parent / "secret")
    user, cluster = (
        {name: text.format(secret=secret) for name, text in part.items()}
        for part in (user, cluster)
    )
    with pytest.raises(AccessRefused, match="is in no folder"):
        load_endpoint({"kubeconfig": kubeconfig(allowed, user, **cluster)})


@pytest.mark.parametrize("text", ["hunter2: [", "'hunter2", "\thunter2", "- hunter2", "hunter2"])
def test_errors_do_not_quote_the_file(allowed, text):
    path = allowed / "config"
    path.write_text(text)
    with pytest.raises(KubeError) as caught:
        load_endpoint({"kubeconfig": str(path)})
    assert "hunter2" not in str(caught.value)
