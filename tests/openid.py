"""An OpenID provider on loopback: discovery, keys, authorization with PKCE, tokens, userinfo.

It signs in the person described by `claims` without asking. `wrong` overrides what it would send.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT, SECRET = "kant", "s3cret"


@cache  # making one takes a second
def a_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True)


class OpenIDProvider:
    def __init__(self) -> None:
        self.key = a_key()
        self.sign_with = self.key
        self.header: dict[str, Any] = {"alg": "RS256", "kid": self.key.kid}
        self.claims: dict[str, Any] = {"sub": "00u1", "preferred_username": "grace", "groups": []}
        self.wrong: dict[str, Any] = {}  # claims to override in the ID token; None leaves one out
        self.metadata: dict[str, Any] = {}
        self.userinfo: dict[str, Any] = {}
        self.refusal: dict[str, str] = {}  # error that the authorization endpoint returns
        self.answers: dict[str, tuple[int, bytes]] = {}  # by path, instead of the real answers
        self.codes: dict[str, dict[str, str]] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def authorize(self, query: dict[str, str]) -> str:
        """Return the URL to which the provider sends a browser back."""
        if self.refusal:
            return f"{query['redirect_uri']}?{urlencode({**self.refusal, 'state': query['state']})}"
        code = secrets.token_urlsafe(8)
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def document(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "none", "HS256"],
            **self.metadata,
        }

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if authorization != f"Basic {basic}":
            return 401, {"error": "invalid_client", "error_description": "wrong secret"}
        begun = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            begun is None
            or begun["code_challenge"] != challenge
            or begun["redirect_uri"] != form["redirect_uri"]
        ):
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300}
        claims |= {"nonce": begun["nonce"], **self.claims, **self.wrong}
        sent = {name: value for name, value in claims.items() if value is not None}
        algorithms = [self.header["alg"]]
        signed = jwt.encode(self.header, sent, self.sign_with, algorithms=algorithms)
        return 200, {"access_token": "at", "token_type": "Bearer", "id_token": signed}

    def answer(self, path: str, form: dict[str, str], headers: Any) -> tuple[int, Any]:
        match path:
            case "/.well-known/openid-configuration":
                return 200, self.document()
            case "/keys":
                return 200, KeySet([self.key]).as_dict()
            case "/token":
                return self.token(form, headers.get("Authorization", ""))
            case "/userinfo" if headers.get("Authorization") == "Bearer at":
                return 200, {"sub": self.claims["sub"], **self.userinfo}
        return 404, {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path == "/authorize":
                    self.send_response(302)
                    self.send_header("Location", provider.authorize(dict(parse_qsl(parts.query))))
                    self.end_headers()
                    return
                self._send(parts.path, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._send(self.path, {name: v[0] for name, v in parse_qs(body).items()})

            def _send(self, path: str, form: dict[str, str]) -> None:
                if path in provider.answers:
                    status, body = provider.answers[path]
                else:
                    status, document = provider.answer(path, form, self.headers)
                    body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@contextmanager
def running(settings: Any) -> Iterator[OpenIDProvider]:
    """Start the provider and set up Kant as its client."""
    provider = OpenIDProvider()
    settings.KANT_OIDC_ISSUER = provider.issuer
    settings.KANT_OIDC_CLIENT_ID = CLIENT
    settings.KANT_OIDC_CLIENT_SECRET = SECRET
    settings.KANT_OIDC_NAME = "Example ID"
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
