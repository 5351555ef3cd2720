"""The server as an ASGI application: routes, limits, errors and headers."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertrelay.errors import describe_unforeseen
from bertrelay.progress import log
from pipelines.serve.embedding import ServedEncoder
from pipelines.serve.endpoints import Endpoint, ErrorForm, openai_error, parse
from pipelines.serve.guard import HEADERS, Guard, content_policy, request_id
from pipelines.serve.metrics import RequestMetrics, exposition
from pipelines.serve.models import Models, Source, named_sources, open_models
from pipelines.serve.ollama import ENDPOINTS as OLLAMA
from pipelines.serve.ollama import tags
from pipelines.serve.openai import ENDPOINTS as OPENAI
from pipelines.serve.openai import model_list
from pipelines.serve.openapi import STYLE, docs_page, openapi
from pipelines.serve.page import page
from pipelines.serve.requests import Refusal, Usage
from pipelines.serve.rerank import ENDPOINTS as RERANK
from pipelines.serve.settings import ServeSettings
from pipelines.serve.tasks import ENDPOINTS as TASKS
from pipelines.serve.tei import ENDPOINTS as TEI
from pipelines.serve.tei import info

ENDPOINTS = [*OPENAI, *TASKS, *RERANK, *TEI, *OLLAMA]
BODY_SECONDS = 30.0
"""Seconds within which the body of a request must have arrived."""
BODIES = 16
"""Memory of bodies that arrive, in bodies of the largest size."""
CLIENT_GONE = 499  # nginx's status of a request whose client closed the connection
TEXT = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}

Result = TypeVar("Result")


def app(
    models: Mapping[str, Source] | Sequence[Source] | Models,
    settings: ServeSettings | None = None,
    *,
    keys: Sequence[str] = (),
) -> ASGIApp:
    """An ASGI application that serves `models`, for servers such as uvicorn and hypercorn.

    models: folders and hub ids, by name or not; an index needs its encoder among them. A `Table` is indexed first.
    keys: if any, a request must name one: `Authorization: Bearer KEY`.
    Raises RequestError for a model that cannot be opened.

    Example: `app({"sentences": "runs/quickstart/student/latest/model"})`.
    """
    settings = settings or ServeSettings()
    if not isinstance(models, Models):
        pairs = models.items() if isinstance(models, Mapping) else [("", source) for source in models]
        models = open_models(named_sources(pairs), settings)
    return Server(models, settings, keys)


class Server:
    """The application: guards every request, counts it, and lets its route answer."""

    def __init__(self, models: Models, settings: ServeSettings, keys: Sequence[str]) -> None:
        self.models, self.settings = models, settings
        self.guard = Guard(settings, keys)
        self.started = time.time()
        self._body_bytes = 0
        self.metrics = RequestMetrics()
        self.endpoints = [one for one in ENDPOINTS if models.of_kind(one.kind)]
        routes = [Route(one.path, partial(self._answer, one), methods=["POST"]) for one in self.endpoints]
        routes += [Route(path, answer, methods=["GET"]) for path, answer in self._pages().items()]
        self._paths = {route.path for route in routes}
        handlers: Any = {HTTPException: _http_error}
        self._routes = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        self._routes.router.redirect_slashes = False

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(self.models.close)

    def _pages(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """The routes that answer GET."""
        answers: dict[str, Callable[[Request], Response]] = {
            "/": lambda _: _html(*page()),
            "/about": lambda _: json_response({"version": version("bertrelay"), "models": self.models.about}),
            "/health": lambda _: json_response({"status": "ok"}),
            "/v1/models": lambda _: json_response(model_list(self.models, int(self.started))),
            "/metrics": lambda _: Response(exposition(self.metrics, self.models), headers=TEXT),
            "/openapi.json": lambda _: json_response(openapi(self.endpoints)),
            "/docs": self._docs,
        }
        if self.models.of_kind(ServedEncoder):
            answers["/info"] = lambda _: json_response(info(self.models))
            answers["/api/tags"] = lambda _: json_response(tags(self.models, self.started))

        def as_route(answer: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
            async def respond(request: Request) -> Response:
                return answer(request)

            return respond

        return {path: as_route(answer) for path, answer in answers.items()}

    def _docs(self, request: Request) -> Response:
        return _html(docs_page(self.endpoints, str(request.base_url).rstrip("/")), content_policy(styles=[STYLE]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._routes(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope["request_id"] = identifier = request_id(headers) or uuid.uuid4().hex
        origin, started, status = headers.get("origin", ""), time.monotonic(), 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "x-request-id": identifier}.items():
                    sent.setdefault(name, value)
                if self.guard.is_other_site(origin):
                    sent.update({"access-control-allow-origin": origin, "vary": "origin"})
                    sent["cross-origin-resource-policy"] = "cross-origin"
            await send(message)

        is_preflight = scope["method"] == "OPTIONS" and self.guard.is_other_site(origin)
        try:
            if not is_preflight:
                self.guard.check(scope["path"], headers)
        except Refusal as refusal:
            await refused(refusal)(scope, receive, send_guarded)
        else:
            await (PREFLIGHT if is_preflight else self._routes)(scope, receive, send_guarded)
        route = scope["path"] if scope["path"] in self._paths else "other"
        self.metrics.observe(route, status, time.monotonic() - started)

    async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
        """The answer of an endpoint; an error in its form."""
        usage = Usage(request.scope["request_id"])
        try:
            body = parse(endpoint.body, await self._body(request))
            content = await _unless_gone(endpoint.answer(self.models, body, usage), request)
        except Refusal as refusal:
            return refused(refusal, endpoint.error)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        except Exception as error:
            # The words of the error may quote a text.
            log(f"request {usage.request_id}: {describe_unforeseen(error)}")
            failure = Refusal(f"the server failed; its log names request {usage.request_id}", "internal")
            return refused(failure, endpoint.error)
        return json_response(content, headers=usage.headers)

    async def _body(self, request: Request) -> bytes:
        """The body of a request. Raises Refusal for one that is too large, packed or slow."""
        most = self.settings.max_body_mb << 20
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refusal("body: expected plain JSON, found it packed; send it without Content-Encoding", "unsupported")
        content, refusal = bytearray(), Refusal(f"body: expected at most {most >> 20} MB, found more", "too_large")
        if int(request.headers.get("content-length", 0)) > most:
            raise refusal
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    content += chunk
                    self._body_bytes += len(chunk)
                    if len(content) > most:
                        raise refusal
                    if self._body_bytes > BODIES * most:
                        raise Refusal("too many requests arrive at once", "busy", retry_seconds=1)
        except TimeoutError:
            raise Refusal(f"body: expected within {BODY_SECONDS:.0f} seconds", "slow") from None
        finally:
            self._body_bytes -= len(content)
        return bytes(content)


async def _unless_gone(work: Awaitable[Result], request: Request) -> Result:
    """The result of `work`, which is cancelled when the client closes the connection. Raises ClientDisconnect then."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        watching.cancel()


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON; a number that is not finite is null."""
    return Response(to_json(content, inf_nan_mode="null"), status, headers, "application/json")


def _html(page: str, policy: str) -> Response:
    return HTMLResponse(page, headers={"content-security-policy": policy})


def refused(refusal: Refusal, form: ErrorForm = openai_error) -> Response:
    """The answer to a request that is refused; the connection is closed where its body was not read."""
    headers = {} if refusal.retry_seconds is None else {"retry-after": str(refusal.retry_seconds)}
    if refusal.kind == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    if refusal.kind in ("too_large", "slow", "unsupported"):
        headers["connection"] = "close"
    status, content = form(refusal)
    return json_response(content, status, headers)


async def _http_error(_: Request, error: Exception) -> Response:
    """The answer to a path or method that no route has."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = "expected a route that /docs lists" if status == 404 else "expected another method"
    content = openai_error(Refusal(message, "not_found"))[1]
    return json_response(content, status, getattr(error, "headers", None))


PREFLIGHT = Response(
    status_code=204,
    headers={
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "authorization, content-type, x-request-id",
        "access-control-max-age": "600",
    },
)
