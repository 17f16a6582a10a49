"""Which files, addresses and programs `Cluster.access` may name: what the deployment allows.

Checked when an access is written and again at each use, because files and links change.
"""

import ipaddress
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from scheduling.kube.seam import KubeError

# Fields of an access that hold paths.
PATHS = ("kubeconfig", "token_file", "ca_file", "cert_file", "key_file")
# A pod's own credentials. Only {"in_cluster": true} may use them.
SERVICE_ACCOUNTS = Path("/var/run/secrets/kubernetes.io")
MOST_BYTES = 1 << 20


class AccessRefused(KubeError):
    """An access names something that the deployment does not allow; `field`: which part does."""

    def __init__(self, field: str, reason: str, remedy: str) -> None:
        super().__init__(f'cluster access field "{field}": {reason}', remedy)
        self.field, self.fault, self.remedy = field, reason, remedy


def check(access: Mapping[str, Any]) -> None:
    """Raise AccessRefused for the first field that names something not allowed."""
    for name in PATHS:
        if isinstance(access.get(name), str):
            allowed_file(access[name], name)
    server = access.get("server")
    if isinstance(server, str):
        refuse_more_than_address(server, "server")
        if access.get("token_file"):
            refuse_plain(server, "token_file")


def allowed_file(path: str, field: str) -> Path:
    """Return the real file behind a path, with links followed. Raises AccessRefused."""
    folders = [Path(folder) for folder in settings.KANT_ACCESS_DIRS]
    told = ", ".join(map(str, folders)) or "none"
    remedy = (
        f"put the file below a folder that KANT_ACCESS_DIRS names (now: {told}), or let whoever "
        "deploys Kant name another"
    )
    if os.pathsep in path or "\0" in path:
        raise AccessRefused(field, f"{path!r} is not the path of one file", "name one file")
    try:
        # Not Path.resolve: since Python 3.13 it, too, leaves a loop of links unresolved.
        found = Path(os.path.realpath(Path(path).expanduser()))
        if any(os.path.islink(part) for part in (found, *found.parents)):
            raise RuntimeError("a loop of links")
        real = [folder.resolve() for folder in folders]
    except (OSError, RuntimeError) as error:
        raise AccessRefused(
            field, f"{path} leads nowhere ({type(error).__name__})", remedy
        ) from None
    if not any(found != folder and found.is_relative_to(folder) for folder in real):
        raise AccessRefused(field, f"{path} is in no folder that clusters' files may be in", remedy)
    if found.is_relative_to(SERVICE_ACCOUNTS.resolve()) or any(
        _same(found, secret) for secret in _secrets()
    ):
        raise AccessRefused(
            field, f"{path} is one of Kant's own secrets", "name the cluster's own file"
        )
    return found


def refuse_more_than_address(server: str, field: str) -> None:
    """Raise AccessRefused if an address has more than scheme, host, port and path.

    Everybody who may see the cluster sees its address, and so would see a password in it.
    """
    try:
        parts = urlsplit(server)
    except ValueError:
        return  # the code that uses the address reports this
    if "@" in parts.netloc or set("?#\\").intersection(server):
        # Do not repeat the address: the surplus part may be a secret.
        raise AccessRefused(
            field,
            "the address of the server has a user, a query or a fragment",
            "name host and port alone, and a token_file",
        )


def refuse_plain(server: str, field: str) -> None:
    """Raise AccessRefused if a secret would be sent without TLS; embedded Kant may on loopback."""
    if urlsplit(server).scheme == "https":
        return
    if settings.EMBEDDED and _is_loopback(urlsplit(server).hostname or ""):
        return
    raise AccessRefused(
        field, f"{server} has no TLS, so anybody on the way could read the token", "use https://"
    )


def check_kubeconfig(document: Any, path: Path, context: str | None) -> None:
    """Raise AccessRefused if a context's user or cluster names files or programs not allowed here.

    The same if it would send a secret without TLS. The reader of the kubeconfig reports what is
    malformed.
    """
    cluster, user = _chosen(document, context)
    field = "kubeconfig"
    for part in (cluster, user):
        for name in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
            if isinstance(part.get(name), str) and part[name]:
                allowed_file(str(path.parent / part[name]), f"{field}, {name}")
    for program in _programs(user):
        if program not in settings.KANT_ACCESS_EXEC:
            raise AccessRefused(
                field,
                f"{path} has {program!r} run to sign in, which is not allowed here",
                "use a token or a client certificate, or let whoever deploys Kant name it in "
                "KANT_ACCESS_EXEC",
            )
    secret = {"token", "tokenFile", "exec", "auth-provider", "username", "password"}
    server = cluster.get("server")
    if isinstance(server, str):
        refuse_more_than_address(server, field)
        if not secret.isdisjoint(user):
            refuse_plain(server, field)


def _programs(user: Mapping[str, Any]) -> Iterator[str]:
    plugin = user.get("exec")
    if plugin is not None:
        yield str(plugin.get("command")) if isinstance(plugin, Mapping) else str(plugin)
    provider = user.get("auth-provider")
    settled = provider.get("config") if isinstance(provider, Mapping) else None
    if isinstance(settled, Mapping) and "cmd-path" in settled:
        yield str(settled["cmd-path"])


def _chosen(document: Any, context: str | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return (cluster, user) of a context; both empty if there is none."""
    if not isinstance(document, Mapping):
        return {}, {}
    entry = _named(document, "contexts", context or document.get("current-context"), "context")
    return (
        _named(document, "clusters", entry.get("cluster"), "cluster"),
        _named(document, "users", entry.get("user"), "user"),
    )


def _named(document: Mapping[str, Any], part: str, name: Any, field: str) -> Mapping[str, Any]:
    entries = document.get(part)
    found = [
        entry.get(field)
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping) and entry.get("name") == name
    ]
    # With two entries of one name, readers take the first or the last; neither is safe.
    if len(found) > 1:
        raise AccessRefused("kubeconfig", f"{part} has {name!r} twice", "keep one of them")
    return found[0] if found and isinstance(found[0], Mapping) else {}


def _secrets() -> Iterator[Path]:
    yield settings.VAR_DIR / "secret_key"
    database = settings.DATABASES["default"]
    if "sqlite" in database["ENGINE"]:
        yield from (Path(f"{database['NAME']}{tail}") for tail in ("", "-wal", "-shm"))
    for name in (settings.KANT_OIDC_CLIENT_SECRET_FILE, settings.KANT_OIDC_GROUPS_FILE):
        if name:
            yield Path(name)
    yield Path("/proc")


def _same(found: Path, secret: Path) -> bool:
    """Whether `found` is that file, also under another name, or lies below that folder."""
    if found.is_relative_to(secret.resolve()):
        return True
    try:
        return found.samefile(secret)
    except OSError:
        return False


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
