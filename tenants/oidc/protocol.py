"""The authorization code flow with PKCE, up to fully verified claims.

Authlib builds the requests and checks times, nonce and access-token hash; joserfc, which it uses,
checks the signature. This module checks what they leave to the caller: the issuer of the discovery
document and of the token, the audience, and that the algorithm is a public-key signature.

Nothing is cached between sign-ins, so a key that the provider rotates is never missed.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import requests
from authlib.common.security import generate_token
from authlib.integrations.base_client import OAuthError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from tenants.oidc import failures
from tenants.oidc.config import Provider, is_safe

TIMEOUT_S = 5.0
LEEWAY_S = 60  # maximum difference between the two clocks
# Not “none”, and not HMAC, whose secret key cannot be in a public key set.
ALGORITHMS = [f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)]
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
TIMES = frozenset({"exp", "iat", "nbf"})

Claims = Mapping[str, Any]


class Begun(NamedTuple):
    """Where to send the browser, and what Kant keeps to itself until the browser returns."""

    url: str
    state: str
    nonce: str
    verifier: str


def begin(provider: Provider, redirect_uri: str) -> Begun:
    """Begin a sign-in. Raises SignInFailed."""
    metadata = _discover(provider)
    nonce, verifier = generate_token(32), generate_token(64)
    with _client(provider, metadata, redirect_uri) as client:
        url, state = client.create_authorization_url(
            metadata["authorization_endpoint"], nonce=nonce, code_verifier=verifier
        )
    return Begun(url, state, nonce, verifier)


def claims_of(
    provider: Provider, redirect_uri: str, code: str, nonce: str, verifier: str
) -> Claims:
    """Return the claims about the person who signed in. Raises SignInFailed.

    They come from the ID token and, if a claim that Kant needs is missing there, from the userinfo
    endpoint.
    """
    metadata = _discover(provider)
    with _client(provider, metadata, redirect_uri) as client:
        token = _fetch_token(provider, client, metadata, code, verifier)
        claims = _verified(provider, metadata, token, nonce)
        needed = {provider.username_claim, provider.groups_claim} - {""}
        if needed <= claims.keys() or "userinfo_endpoint" not in metadata:
            return claims
        userinfo = _json(provider, client, metadata["userinfo_endpoint"], withhold_token=False)
    if userinfo.get("sub") != claims["sub"]:
        raise failures.not_trusted(
            provider.name,
            f"userinfo is of sub {userinfo.get('sub')!r}, the ID token of {claims['sub']!r}",
        )
    return {**userinfo, **claims}


def _client(provider: Provider, metadata: Claims, redirect_uri: str = "") -> OAuth2Session:
    # RFC 8414: a provider that names no methods supports client_secret_basic.
    methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    basic = "client_secret_basic" in methods or "client_secret_post" not in methods
    return OAuth2Session(
        provider.client_id,
        provider.client_secret,
        token_endpoint_auth_method="client_secret_basic" if basic else "client_secret_post",
        scope=" ".join(provider.scopes),
        redirect_uri=redirect_uri,
        code_challenge_method="S256",
        default_timeout=TIMEOUT_S,
    )


def _discover(provider: Provider) -> Claims:
    url = provider.issuer.rstrip("/") + "/.well-known/openid-configuration"
    with _client(provider, {}) as client:
        metadata = _json(provider, client, url)
    if metadata.get("issuer") != provider.issuer:
        raise failures.not_set_up(
            provider.name,
            f"{url} is of issuer {metadata.get('issuer')!r}, KANT_OIDC_ISSUER is "
            f"{provider.issuer!r}; set it to exactly the former if that is your provider",
        )
    for name in (*ENDPOINTS, "userinfo_endpoint"):
        given = metadata.get(name, "" if name in ENDPOINTS else provider.issuer)
        if not isinstance(given, str) or not is_safe(given):
            raise failures.not_set_up(
                provider.name, f"{url} has {name} {given!r} in place of an address with https://"
            )
    return metadata


def _fetch_token(
    provider: Provider, client: OAuth2Session, metadata: Claims, code: str, verifier: str
) -> Claims:
    url = metadata["token_endpoint"]
    try:
        token: Claims = client.fetch_token(url, code=code, code_verifier=verifier)
    except OAuthError as error:
        cause = f"{url} answers {error.error!r}: {error.description!r}"
        if error.error == "invalid_grant":
            raise failures.lost(cause) from error
        if error.error in ("invalid_client", "unauthorized_client"):
            cause += "; correct KANT_OIDC_CLIENT_ID or the client's secret"
        raise failures.not_set_up(provider.name, cause) from error
    except (requests.RequestException, ValueError) as error:
        raise _unanswered(provider, url, error) from error
    return token


def _verified(provider: Provider, metadata: Claims, token: Claims, nonce: str) -> Claims:
    """Return the ID token's verified claims. First check who signed it, then what it says."""
    signed = token.get("id_token")
    if not isinstance(signed, str):
        raise failures.not_set_up(provider.name, "the token endpoint sends no ID token")
    with _client(provider, metadata) as client:
        keys = _json(provider, client, metadata["jwks_uri"])
    try:
        decoded = jwt.decode(
            signed,
            KeySet.import_key_set(keys),  # type: ignore[arg-type]
            registry=JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False),
        )
    except (JoseError, ValueError, TypeError, KeyError) as error:
        cause = f"the ID token cannot be read by {metadata['jwks_uri']}: {error!r}"
        raise failures.not_trusted(provider.name, cause) from error
    claims = CodeIDToken(
        decoded.claims,
        decoded.header,
        {
            "iss": {"essential": True, "value": provider.issuer},
            "aud": {"essential": True, "value": provider.client_id},
            "sub": {"essential": True},
        },
        {
            "nonce": nonce,
            "client_id": provider.client_id,
            "access_token": token.get("access_token"),
        },
    )
    try:
        claims.validate(leeway=LEEWAY_S)
    except JoseError as error:
        cause = f"the ID token is refused ({error}); it has {_shown(claims)}"
        if isinstance(error, ExpiredTokenError | InvalidClaimError) and error.claim in TIMES:
            cause += f"; Kant's clock is {int(time.time())}"
            raise failures.clocks(provider.name, cause) from error
        raise failures.not_trusted(provider.name, cause) from error
    return dict(claims)


def _shown(claims: Claims) -> str:
    """Format the claims that were checked; they are not secret."""
    return ", ".join(f"{name} {claims.get(name)!r}" for name in ("iss", "aud", "azp", *TIMES))


def _json(
    provider: Provider, client: OAuth2Session, url: str, *, withhold_token: bool = True
) -> Claims:
    try:
        answer = client.request("GET", url, withhold_token=withhold_token)
        answer.raise_for_status()
        document = answer.json()
    except (requests.RequestException, OAuthError, ValueError) as error:
        raise _unanswered(provider, url, error) from error
    if not isinstance(document, dict):
        raise failures.not_set_up(provider.name, f"{url} does not answer with a JSON object")
    return document


def _unanswered(provider: Provider, url: str, error: Exception) -> failures.SignInFailed:
    """Return “away” when waiting may help; otherwise something is misconfigured."""
    gone = isinstance(error, requests.ConnectionError | requests.Timeout)
    if isinstance(error, requests.HTTPError) and error.response is not None:
        gone = error.response.status_code >= 500 or error.response.status_code == 429
    if gone:
        return failures.away(provider.name, f"{url}: {error}")
    return failures.not_set_up(provider.name, f"{url}: {error}")
