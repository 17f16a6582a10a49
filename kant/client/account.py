"""Which Kant to talk to, and as whom: from the environment, otherwise from `kant login`."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from kant.client.errors import DENIED, FAILED, ClientError

DEFAULT_URL = "http://localhost:8000"


class ClientAccount(NamedTuple):
    """The address of a Kant and an API token."""

    url: str
    token: str


def path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "kant" / "login.json"


def current() -> ClientAccount:
    """Return KANT_URL and KANT_TOKEN, or the account of the last `kant login`.

    Raises ClientError if there is no token: a token is only sent to the address that it was made
    for.
    """
    url, token = os.environ.get("KANT_URL", ""), os.environ.get("KANT_TOKEN", "").strip()
    known = kept()
    if not url:
        url = known.url if known is not None else DEFAULT_URL
    url = url.rstrip("/")
    if not token and known is not None and known.url == url:
        token = known.token
    if not token:
        raise ClientError(DENIED, f"You are not signed in to {url}.", f"Run: kant login {url}")
    if not (token.isascii() and token.isprintable()):
        raise ClientError(
            DENIED, "KANT_TOKEN is not an API token of Kant: they begin with “kant_”."
        )
    return ClientAccount(url, token)


def kept() -> ClientAccount | None:
    """Return the account of the last `kant login`; None if there is none."""
    try:
        known = json.loads(path().read_text())
        return ClientAccount(known["url"], known["token"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        text = f"{path()} cannot be read ({error}). Run kant login again, or remove it."
        raise ClientError(FAILED, text) from None


def keep(account: ClientAccount) -> None:
    """Keep the account in a file that only its owner can read."""
    try:
        path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path().unlink(missing_ok=True)
        with os.fdopen(os.open(path(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(account._asdict(), file)
    except OSError as error:
        text = f"The token cannot be saved: {error}. Set KANT_TOKEN, or make the file writable."
        raise ClientError(FAILED, text) from None


def forget() -> None:
    path().unlink(missing_ok=True)
