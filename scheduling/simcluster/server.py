"""The HTTP server: authentication, faults, the API and the admin endpoint `/sim/`."""

import asyncio
import hmac
import logging
from collections.abc import Callable

import msgspec
from aiohttp import web

from scheduling.simcluster.cluster import EmbeddedCluster
from scheduling.simcluster.faults import LoseReply, Restart, TooManyRequests, delay, parse_fault
from scheduling.simcluster.handlers import Call, HandlerReply, handle, parse_query, verb_of
from scheduling.simcluster.logs import serve_log
from scheduling.simcluster.objects import status
from scheduling.simcluster.objects.status import ApiError
from scheduling.simcluster.objects.watch import watch_options
from scheduling.simcluster.routing import VERSION, Target, discovery, known_group, route

log = logging.getLogger(__name__)

HEALTH = ("/readyz", "/livez", "/healthz")
# Larger requests are refused, as by kube-apiserver (3 MiB).
MAX_BODY = 3 << 20
_JSON = {"Content-Type": "application/json"}


class Server:
    """Serves one cluster; a restart replaces the cluster by a new one from its disk."""

    def __init__(self, open_cluster: Callable[[], EmbeddedCluster], token: str = "") -> None:
        self._open_cluster = open_cluster
        self._token = token
        self.cluster = open_cluster()
        self._http = web.Server(
            self._serve, handler_cancellation=True, access_log=None, keepalive_timeout=3600
        )
        self._listener: asyncio.Server | None = None
        self._address: tuple[str, int] = ("", 0)
        self._background: set[asyncio.Task[None]] = set()
        self._restarting = asyncio.Lock()

    # --- life ---------------------------------------------------------------------------------
    async def start(self, host: str, port: int) -> int:
        """Start listening; return the port.

        Raises:
            OSError: the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._http, host, port, backlog=1024)
        self._address = (host, self._listener.sockets[0].getsockname()[1])
        self.cluster.timers.start(loop)
        self._spawn(self._drop_slow_readers())
        return self._address[1]

    def _spawn(self, work: "asyncio.coroutines.Coroutine[object, object, None]") -> None:  # type: ignore[name-defined]
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def stop(self) -> None:
        for task in self._background:
            task.cancel()
        self._hang_up()
        await self._http.shutdown(0)
        self.cluster.close()

    def _hang_up(self) -> None:
        if self._listener:
            self._listener.close()
        self.cluster.watches.drop()
        for connection in list(self._http.connections):
            if connection.transport:
                connection.transport.abort()

    async def _restart(self, down_s: float) -> None:
        """Close everything and come back with the state on disk."""
        await asyncio.sleep(0.05)  # lets the reply to the restart request leave
        # Nothing can be closed twice: a second restart begins after the first.
        async with self._restarting:
            self._hang_up()
            self.cluster.abandon()
            await asyncio.sleep(down_s)
            loop = asyncio.get_running_loop()
            self.cluster = self._open_cluster()
            self.cluster.timers.start(loop)
            self._listener = await loop.create_server(self._http, *self._address, backlog=1024)

    async def _drop_slow_readers(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.cluster.watches.drop_slow()

    # --- requests -----------------------------------------------------------------------------
    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as error:
            return _refusal(error)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.raw_path)
            return _refusal(status.internal_error(f"{type(error).__name__}: {error}"))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query_text = request.raw_path.partition("?")
        if path in HEALTH:
            return web.Response(body=b"ok", content_type="text/plain")
        self._authenticate(request)
        target = route(path)
        if target is not None:
            return await self._resource(request, target, parse_query(query_text))
        if path.startswith("/sim/"):
            return await self._admin(request, path, parse_query(query_text))
        document = VERSION if path == "/version" else discovery(path)
        if document is None:
            if known_group(path):
                raise status.no_such_resource()
            return web.Response(status=404, body=b"404 page not found\n", content_type="text/plain")
        if request.method != "GET":
            raise status.method_not_allowed()
        return _json(document)

    def _authenticate(self, request: web.BaseRequest) -> None:
        if not self._token:
            return
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise status.unauthorized()

    async def _resource(
        self, request: web.BaseRequest, target: Target, query: dict[str, str]
    ) -> web.StreamResponse:
        verb = verb_of(request.method, target, query)
        cluster = self.cluster
        faults = cluster.faults.taken(verb, target.kind.plural)
        for fault in faults:
            if isinstance(fault, TooManyRequests):
                raise status.too_many_requests(fault.retry_after_s)
        if verb == "watch":
            await delay(faults)
            options = watch_options(target.kind, target.namespace, query)
            return await cluster.watches.serve(request, target.kind, options)
        if verb == "log":
            await delay(faults)
            if any(isinstance(f, LoseReply) for f in faults):
                return _hang_up(request)
            return await serve_log(cluster, request, target, query)
        body = await _body(request)
        content_type = request.headers.get("Content-Type", "")
        call = Call(request.method, target, query, content_type, body)
        try:
            reply = handle(cluster, verb, call)
        finally:
            # A refused request is delayed like a good one; a lost reply is lost either way.
            if faults:
                await delay(faults)
        if faults and any(isinstance(f, LoseReply) for f in faults):
            return _hang_up(request)
        return _respond(reply)

    async def _admin(
        self, request: web.BaseRequest, path: str, query: dict[str, str]
    ) -> web.StreamResponse:
        cluster, method = self.cluster, request.method
        if path == "/sim/audit" and method == "GET":
            return _json(cluster.audit.report(**_only(query, ("node", "pod"))))
        if path == "/sim/faults" and method == "GET":
            return _json({"faults": list(cluster.faults.active.values())})
        if path == "/sim/faults" and method == "POST":
            fault = parse_fault(await _body(request))
            if isinstance(fault, Restart):
                self._spawn(self._restart(fault.down_s))
                return _json(fault, 202)
            return _json(cluster.faults.apply(fault), 201)
        if path == "/sim/faults" and method == "DELETE":
            cluster.faults.clear_all()
            return _json({"faults": []})
        head, _, number = path.rpartition("/")
        if head == "/sim/faults" and method == "DELETE" and number.isdigit():
            cluster.faults.clear(int(number))
            return _json({"faults": list(cluster.faults.active.values())})
        if path in ("/sim/audit", "/sim/faults"):
            raise status.method_not_allowed()
        raise status.no_such_resource()


def _only(query: dict[str, str], known: tuple[str, ...]) -> dict[str, str]:
    for name in query:
        if name not in known:
            raise status.bad_request(f"{name}: is not a parameter; known are {', '.join(known)}")
    return query


async def _body(request: web.BaseRequest) -> bytes:
    length = request.content_length
    if length is not None and length > MAX_BODY:
        raise _too_large()
    body = await request.read()
    if len(body) > MAX_BODY:
        raise _too_large()
    return body


def _too_large() -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")


def _hang_up(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection; the client never learns the outcome of its request."""
    if request.transport:
        request.transport.abort()
    return web.Response(status=503)


def _respond(reply: HandlerReply) -> web.Response:
    return web.Response(status=reply.code, body=reply.body, headers=_JSON)


def _json(value: object, code: int = 200) -> web.Response:
    return web.Response(status=code, body=msgspec.json.encode(value) + b"\n", headers=_JSON)


def _refusal(error: ApiError) -> web.Response:
    headers = dict(_JSON)
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return web.Response(
        status=error.code, body=status.encoded(error.status()) + b"\n", headers=headers
    )
