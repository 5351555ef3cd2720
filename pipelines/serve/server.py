"""The server on a port of this machine: it answers while models load, closes silent connections, ends by signals."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertrelay.errors import RequestError
from bertrelay.progress import log
from bertrelay.signals import on_stop_signal

HEADER_SECONDS = 10.0
"""Seconds within which a connection must have sent the headers of its request."""
ANSWER_SECONDS = 60.0
"""Seconds within which a client must have read what was sent of an answer."""
MOST_CONNECTIONS = 2_048
DRAIN_SECONDS = 30
BACKLOG = 2_048


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with limits: of connections, and of the time to send a request and to read its answer."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_writing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_writing()

    def _wait_for_request(self) -> None:
        """Starts the time within which headers must be complete, unless a request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _close(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class _Server(uvicorn.Server):
    """A server that says when it is ready, and that a second signal ends at once."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(number: int) -> None:
            if not self.should_exit:
                log(f"{signal.Signals(number).name}: requests that have arrived are answered; once more ends at once")
            self.force_exit, self.should_exit = self.should_exit, True

        with on_stop_signal(stop):
            yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises RequestError for an address that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        raise RequestError(
            f"--host {host} --port {port}: expected a free port of this machine, found {words}; give another port"
        ) from error
    # Connections inherit it; asyncio sets it for sockets that it makes itself. Without it the end of an answer waits
    # 40 ms, until the client has confirmed its beginning.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class _LoadingHandler(BaseHTTPRequestHandler):
    """Answers every request by 503, which clients retry."""

    timeout = 5
    content = b'{"status": "loading", "error": {"message": "models are loading", "type": "server_error"}}'

    def do_GET(self) -> None:
        self.send_response(503)
        headers = {"content-type": "application/json", "content-length": len(self.content), "retry-after": 1}
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(self.content)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Logs nothing: a path may hold text."""


@contextmanager
def answer_while_loading(listening: socket.socket) -> Iterator[None]:
    """Answers requests by 503 in another thread; at the end `listening` is free for the server."""
    server = ThreadingHTTPServer(("", 0), _LoadingHandler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening.dup()
    thread = Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def url_of(listening: socket.socket) -> str:
    """The address of a socket, for browsers of this machine."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(application: ASGIApp, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answers requests until SIGTERM or Ctrl-C, and then those that have arrived; a second signal ends at once.

    ready: called when the first request can be answered.
    """
    _raise_file_limit()
    options: dict[str, Any] = {"log_config": None, "log_level": "critical", "access_log": False}
    options |= {"ws": "none", "lifespan": "on", "server_header": False, "proxy_headers": False}
    config = uvicorn.Config(
        application,
        http=LimitedProtocol,
        loop="asyncio",
        timeout_keep_alive=int(HEADER_SECONDS),
        timeout_graceful_shutdown=DRAIN_SECONDS,
        **options,
    )
    server = _Server(config, ready)
    asyncio.run(server.serve([listening]))


def _raise_file_limit() -> None:
    """Lets this process open as many connections as the system allows it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = hard if hard != resource.RLIM_INFINITY else 65_536
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(enough, 65_536)), hard))
