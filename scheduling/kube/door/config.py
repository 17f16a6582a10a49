"""How to reach a cluster: turns `Cluster.access` into an address, TLS and an Authorization header.

Kubeconfig files, exec plugins and in-cluster accounts are read by the official client's
configuration module; Kant uses nothing else of that client. It is imported only when needed: it
costs 60 MB, which the embedded cluster with its plain address need not pay.
"""

import os
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scheduling.kube.door import credentials
from scheduling.kube.door.credentials import MOST_BYTES, AccessRefused, allowed_file
from scheduling.kube.seam import KubeError
from scheduling.text_files import yaml_of

FORMS = {
    "kubeconfig": {"kubeconfig", "context"},
    "server": {"server", "token_file", "ca_file", "cert_file", "key_file"},
    "in_cluster": {"in_cluster"},
}


# Where a pod finds the name of its namespace (Kubernetes, "Accessing the API from a Pod").
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str:
    """Return the namespace that this process runs in; "" outside Kubernetes."""
    try:
        return OWN_NAMESPACE.read_text().strip()
    except FileNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API server. `authorization` returns the header's value, "" = none.

    It may block: it reads files or runs an exec plugin when its credentials have expired.
    """

    server: str
    tls: ssl.SSLContext | None
    authorization: Callable[[], str]
    origin: str  # where the credentials come from, for messages
    tls_name: str | None = None  # the name on the server's certificate if it differs from the host


def load_endpoint(access: Mapping[str, Any]) -> Endpoint:
    """Read `Cluster.access` afresh.

    Raises KubeError with the field and the remedy, also for what the deployment does not allow.
    """
    form = _form(access)
    credentials.check(access)
    if form == "server":
        return _from_address(access)
    return _from_official_client(access, form)


def check_written(access: Mapping[str, Any]) -> None:
    """Raise AccessRefused for what the deployment does not allow, also inside a kubeconfig.

    A file that does not exist yet, or that is no kubeconfig, is reported only when it is used.
    """
    credentials.check(access)
    if "kubeconfig" not in access:
        return
    path = Path(access["kubeconfig"]).expanduser()
    try:
        document = yaml_of(_read(str(allowed_file(str(path), "kubeconfig")), "kubeconfig"))
    except AccessRefused:
        raise
    except (KubeError, ValueError, yaml.YAMLError, RecursionError):
        return
    credentials.check_kubeconfig(document, path, access.get("context"))


def _form(access: Mapping[str, Any]) -> str:
    forms = [form for form in FORMS if form in access]
    if len(forms) != 1:
        raise KubeError(
            f"cluster access {sorted(access)} is not understood",
            'give exactly one of "kubeconfig", "server", or "in_cluster": true',
        )
    form = forms[0]
    unknown = sorted(set(access) - FORMS[form])
    if unknown:
        raise KubeError(
            f'cluster access has unknown fields {unknown} beside "{form}"',
            f"allowed are {sorted(FORMS[form])}",
        )
    for name, value in access.items():
        wanted: type = bool if name == "in_cluster" else str
        if not isinstance(value, wanted) or not value:
            raise KubeError(
                f'cluster access field "{name}" is {value!r}',
                "it must be true" if wanted is bool else "it must be a text that is not empty",
            )
    return form


# --- a plain address ------------------------------------------------------------------------------
def _from_address(access: Mapping[str, Any]) -> Endpoint:
    server = access["server"].rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise KubeError(
            f'cluster access field "server" is {server!r}', "it must begin with http:// or https://"
        )
    if ("cert_file" in access) != ("key_file" in access):
        raise KubeError(
            'cluster access has only one of "cert_file" and "key_file"', "give both, or neither"
        )
    token_file = access.get("token_file", "")
    checked = ""

    def authorization() -> str:
        # Read it each time: kubelets and secret stores replace token files in place.
        nonlocal checked
        if not token_file:
            return ""
        found = os.path.realpath(os.path.expanduser(token_file))
        if found != checked:
            checked = str(allowed_file(token_file, "token_file"))
        return f"Bearer {_read(checked, 'token_file')}"

    authorization()
    tls = None
    if server.startswith("https://"):
        names = ("ca_file", "cert_file", "key_file")
        tls = _tls(*(allowed_file(access[n], n).as_posix() if n in access else None for n in names))
    origin = f"token file {token_file}" if token_file else "no credentials"
    if "cert_file" in access:
        origin = f"client certificate {access['cert_file']}"
    return Endpoint(server, tls, authorization, origin)


def _read(path: str, field: str) -> str:
    try:
        with Path(path).open() as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("it is no regular file")
            text = file.read(MOST_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        told = error if isinstance(error, OSError) else "it is not UTF-8"
        raise KubeError(
            f'cluster access field "{field}": {path} cannot be read ({told})',
            "make the file readable for Kant, or name another one",
        ) from None
    if not text:
        raise KubeError(f'cluster access field "{field}": {path} is empty', "put the token into it")
    return text


def _tls(
    ca: str | None, cert: str | None, key: str | None, *, verify: bool = True
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if cert:
            context.load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise KubeError(
            f"TLS files of the cluster (CA {ca}, certificate {cert}) cannot be used ({error})",
            "they must exist, be readable, and be in PEM form",
        ) from None
    # Only if the kubeconfig says insecure-skip-tls-verify.
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# --- kubeconfig and in-cluster account, read by the official client ------------------------------
def _from_official_client(access: Mapping[str, Any], form: str) -> Endpoint:
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

    configuration = Configuration()
    try:
        if form == "in_cluster":
            origin = "the in-cluster account"
            load_incluster_config(client_configuration=configuration)
        else:
            path, context = access["kubeconfig"], access.get("context")
            origin = f"kubeconfig {path}" + (f", context {context}" if context else "")
            text = _read(str(allowed_file(path, "kubeconfig")), "kubeconfig")
            path = str(Path(path).expanduser())
            credentials.check_kubeconfig(yaml_of(text), Path(path), context)
            load_kube_config(path, context, configuration, persist_config=False)
    except ConfigException as error:
        raise KubeError(f"{origin} cannot be used ({_one_line(error)})", _REMEDIES[form]) from None
    except (
        *(ValueError, TypeError, KeyError, AttributeError, OSError),
        *(yaml.YAMLError, RecursionError),
    ) as error:
        # The client's YAML and base64 readers raise these on a file that is no kubeconfig. Their
        # messages quote the file, which may hold secrets.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise KubeError(
            f"{origin} is malformed ({type(error).__name__}{where})", _REMEDIES[form]
        ) from None
    server = configuration.host.rstrip("/")
    tls = None
    if server.startswith("https://"):
        tls = _tls(
            configuration.ssl_ca_cert,
            configuration.cert_file,
            configuration.key_file,
            verify=configuration.verify_ssl,
        )

    def authorization() -> str:
        return str(configuration.get_api_key_with_prefix("BearerToken") or "")

    return Endpoint(server, tls, authorization, origin, configuration.tls_server_name)


_REMEDIES = {
    "kubeconfig": "check it with `kubectl --kubeconfig FILE --context NAME get nodes`",
    "in_cluster": "run Kant in a pod with a service account, or name a kubeconfig",
}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
