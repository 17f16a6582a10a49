"""A terminal with the command line `kant`, connected to a real Kant server."""

import io

import pytest

from kant.client import api
from kant.client.__main__ import main
from tenants.services.tokens import create_token
from tests.organisation import build


class Shell:
    """Runs commands as one user and returns their output."""

    def __init__(self, org, url, monkeypatch, capsys, tmp_path):
        self.org, self.url = org, url
        self._patch, self._capsys = monkeypatch, capsys
        monkeypatch.setattr(api, "TYPING_S", 60.0)  # the speed of a busy machine is not under test
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("KANT_URL", url)
        monkeypatch.delenv("KANT_TOKEN", raising=False)

    def sign_in(self, who):
        self.token = create_token(self.org.users[who], "test").secret
        self._patch.setenv("KANT_TOKEN", self.token)
        return self

    def __call__(self, *words, stdin=""):
        """Return (exit code, stdout, stderr)."""
        self._patch.setattr("sys.stdin", io.StringIO(stdin))
        try:
            code = main(words)
        except SystemExit as error:  # from argparse
            code = error.code
        return code, *self._capsys.readouterr()


@pytest.fixture
def org(transactional_db):
    return build()


@pytest.fixture
def kant(org, live_server, monkeypatch, capsys, tmp_path):
    return Shell(org, live_server.url, monkeypatch, capsys, tmp_path).sign_in("eve")
