"""Requests to the REST API; problem documents (RFC 9457) become errors with an exit code."""

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from kant.client.account import ClientAccount, current
from kant.client.errors import DENIED, FAILED, NEVER_RUNS, NOT_FOUND, USAGE, ClientError

TIMEOUT_S = 30.0
TRIES = 4  # of a request that got no answer, or was told to come back later
LATER = frozenset({429, 502, 503, 504})
MOST_RETRY_S = 30.0
TYPING_S = 2.0  # the longest wait for Kant while somebody completes a line

Query = Mapping[str, Any]
Answer = TypeVar("Answer")


class Api:
    """Requests of one account. Paths are below /api/v1/."""

    def __init__(
        self,
        account: ClientAccount,
        *,
        password: tuple[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        tries: int = TRIES,
    ) -> None:
        """`password`: user name and password instead of the token.

        `timeout_s`: for each of the `tries` of a request.
        """
        if urlsplit(account.url).scheme not in ("http", "https"):
            raise ClientError(
                USAGE, f"{account.url!r} is not an address, e.g. http://localhost:8000."
            )
        self._account = account
        self._timeout_s, self._tries = timeout_s, tries
        self._authorization = f"Bearer {account.token}"
        if password is not None:
            pair = base64.b64encode(":".join(password).encode()).decode()
            self._authorization = f"Basic {pair}"

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        return self._send("GET", path, query)

    def csv(self, path: str, query: Query | None = None) -> str:
        """Return the answer as CSV, as the server writes it for spreadsheets."""
        headers = {**self._headers(), "Accept": "text/csv"}
        return self._text(Request(self._address(path, query), headers=headers)).decode()

    def post(
        self,
        path: str,
        body: Any = None,
        query: Query | None = None,
        *,
        guard: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a POST; after a lost answer repeat it with the same key, so it happens at most once.

        `guard`: from `at_version`.
        """
        key = {"Idempotency-Key": str(uuid.uuid4())}
        return self._send("POST", path, query, body, {**key, **(guard or {})})

    def patch(
        self,
        path: str,
        body: Any,
        query: Query | None = None,
        *,
        guard: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        return self._send("PATCH", path, query, body, guard)

    def put(
        self,
        path: str,
        body: Any,
        query: Query | None = None,
        *,
        guard: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a PUT; `guard`: from `at_version`."""
        return self._send("PUT", path, query, body, guard)

    def delete(
        self, path: str, query: Query | None = None, *, guard: Mapping[str, str] | None = None
    ) -> None:
        self._send("DELETE", path, query, None, guard)

    def items(self, path: str, query: Query | None = None) -> Iterator[dict[str, Any]]:
        """Yield all items of a list, fetching pages as needed."""
        page = self.get(path, {"limit": 500, **(query or {})})
        while True:
            yield from page["items"]
            if page["next"] is None:
                return
            page = self._answer(Request(page["next"], headers=self._headers()))

    @contextmanager
    def stream(
        self, path: str, query: Query, *, timeout_s: float | None = None
    ) -> Iterator[Iterable[bytes]]:
        """Give the lines of a text as they arrive, each with its line end.

        `timeout_s` limits each pause. Errors of the connection while reading are raised unchanged
        (OSError, HTTPException).
        """
        request = Request(self._address(path, query), headers=self._headers())
        with self._tried(request, timeout_s or self._timeout_s, lambda answer: answer) as answer:
            yield answer

    def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        address = self._address(path, query)
        data = None if body is None else json.dumps(body).encode()
        all_headers = {**self._headers(), **(headers or {})}
        return self._answer(Request(address, data, all_headers, method=method))

    def _address(self, path: str, query: Query | None) -> str:
        asked = urlencode({k: v for k, v in (query or {}).items() if v is not None}, doseq=True)
        return f"{self._account.url}/api/v1/{path}" + (f"?{asked}" if asked else "")

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._authorization, "Content-Type": "application/json"}

    def _answer(self, request: Request) -> dict[str, Any]:
        text = self._text(request)
        return _document(text, request) if text else {}

    def _text(self, request: Request) -> bytes:
        def read(answer: Any) -> bytes:
            with answer:
                return bytes(answer.read())

        return self._tried(request, self._timeout_s, read)

    def _tried(self, request: Request, timeout_s: float, take: Callable[[Any], Answer]) -> Answer:
        """Return what `take` makes of the answer; send again if that fails on the way."""
        for left in reversed(range(self._tries)):
            wait = 0.5 * (self._tries - left)
            try:
                return take(urlopen(request, timeout=timeout_s))
            except HTTPError as error:
                if error.code not in LATER or not left:
                    raise _problem(error) from None
                wait = _retry_after(error, wait)
            except (URLError, TimeoutError, ConnectionError) as error:
                if not left or isinstance(getattr(error, "reason", error), ConnectionRefusedError):
                    reason = getattr(error, "reason", error)
                    text = f"{self._account.url} does not answer: {reason}."
                    raise ClientError(FAILED, text, "Is Kant running there?") from None
            time.sleep(wait)
        raise AssertionError  # the last try returns or raises


def at_version(version: int | None) -> dict[str, str]:
    """Return headers that allow a write only at this version; None = only if nothing exists yet."""
    return {"If-None-Match": "*"} if version is None else {"If-Match": f'"{version}"'}


def _document(text: bytes, request: Request) -> dict[str, Any]:
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise ClientError(FAILED, f"{request.full_url} answers, but is not Kant.")


def _retry_after(error: HTTPError, default: float) -> float:
    told = error.headers.get("Retry-After", "")
    return min(float(told), MOST_RETRY_S) if told.isascii() and told.isdecimal() else default


def _place(wrong: Mapping[str, str]) -> str:
    """Return where the mistake is: a field of the body, a query parameter or a header."""
    pointer = wrong.get("pointer", "").strip("/").replace("/", ".")
    return pointer or wrong.get("parameter") or wrong.get("header") or "the body"


def _problem(error: HTTPError) -> ClientError:
    """Return the problem document as an error, with the fields at fault."""
    try:
        problem = json.loads(error.read())
        lines = [f"{problem['title']}: {problem['detail']}"]
        faults = [(_place(each), each["detail"]) for each in problem.get("errors") or ()]
        if faults:
            lines = [f"{problem['title']}:", *(f"  {at}: {detail}" for at, detail in faults)]
    except (OSError, ValueError, KeyError, TypeError):
        return ClientError(FAILED, f"{error.url} answers {error.code} {error.reason}.")
    if problem.get("code") in ("ExceedsCapacity", "NoMatchingGpuType"):
        return ClientError(NEVER_RUNS, *lines)
    codes = {400: USAGE, 401: DENIED, 403: DENIED, 404: NOT_FOUND, 422: USAGE}
    code = codes.get(error.code, FAILED)
    return ClientError(code, *lines, problem=problem.get("code", ""), faults=faults)


def while_typing(ask: Callable[[Api], Iterator[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    """Yield what `ask` finds for shell completion; nothing if Kant does not answer in time."""
    try:
        yield from ask(Api(current(), timeout_s=TYPING_S, tries=1))
    except ClientError:
        return  # messages would disturb the line being typed
