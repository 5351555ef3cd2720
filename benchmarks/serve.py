"""A server of sentence vectors under load: `bertrelay serve` beside FastAPI around sentence-transformers.

Claims: with 50 clients at least 0.8 × the sentences a second of `encode` in process, on the same sentences at once; at
least 3 × those of the peer; with one client a median time of at most 1.3 × that of `encode` of one sentence; and no
other answer than 200.

    python -m benchmarks.serve --data DIR                about 10 minutes on 2 cores

Each client keeps a connection open and sends one request after another, of one to eight sentences that no request has
had. `bertrelay serve` answers in base64, as OpenAI's client asks, and keeps no vectors (`--cache-mb 0`); once more
with `--invariant`. The peer calls `encode` in a function of FastAPI and answers with lists of numbers; its clients send
fewer requests. Server and clients share the cores. p50 and p95 are milliseconds until an answer is there.
"""

import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple
from urllib.request import urlopen

from benchmarks.harness import (
    Answer,
    Claim,
    Result,
    Spread,
    at_least,
    in_fresh_process,
    in_turns,
    latencies,
    main,
    print_results,
    timed,
)
from benchmarks.machine import MINILM, MULTI30K, SICK, STSB, sentences_of
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.settings import ModelSource

SOURCES = {**MULTI30K, **STSB, **SICK}
OF_ENCODE, OF_PEER, TIME_OF_ONE = 0.8, 3.0, 1.3
MOST_SENTENCES, SINGLE_REQUESTS, START_SECONDS = 8, 200, 120
ENCODE, OURS, INVARIANT, PEER = "encode, in process", "bertrelay serve", "with --invariant", "FastAPI"


Requests = Sequence[Sequence[str]]
"""The texts of the requests of a client."""


class Server(NamedTuple):
    """A server: its command without the port, its route, what a request has beside texts, and requests of a client."""

    command: Sequence[str]
    route: str
    fields: dict[str, Any]
    requests: int


@contextmanager
def started(server: Server) -> Iterator[int]:
    """The port of the server, which has answered for its health."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*server.command, str(port)], stdout=sys.stderr)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{' '.join(server.command)}: expected an answer for /health, found none")
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait()


def healthy(port: int) -> bool:
    try:
        return bool(urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200)
    except OSError:
        return False


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, route: str, body: bytes) -> tuple[int, float]:
    """Status and milliseconds of a request; written by hand, as clients share the cores with the server."""
    began = time.perf_counter()
    head = f"POST {route} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    fields = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(fields.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return int(fields.split(maxsplit=2)[1]), (time.perf_counter() - began) * 1e3


async def client(port: int, route: str, bodies: Sequence[bytes]) -> list[tuple[int, float]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = [await ask(reader, writer, route, body) for body in bodies]
    writer.close()
    return answers


async def clients(port: int, route: str, bodies: Sequence[Sequence[bytes]]) -> list[tuple[int, float]]:
    """The answers to all clients at once, each with bodies of its own."""
    answers = await asyncio.gather(*(client(port, route, own) for own in bodies))
    return [answer for own in answers for answer in own]


def load(port: int, server: Server, requests: Sequence[Requests]) -> tuple[list[tuple[int, float]], float]:
    """Answers to requests by client, and the seconds until all were there."""
    bodies = [[json.dumps({"input": texts, **server.fields}).encode() for texts in own] for own in requests]
    return timed(asyncio.run, clients(port, server.route, bodies))


def numbers_of_sentences(options: Namespace) -> list[list[int]]:
    """How many sentences each request of each client has."""
    chance = random.Random(0)
    return [[chance.randint(1, MOST_SENTENCES) for _ in range(options.requests)] for _ in range(options.clients)]


def contend(server: Server, requests: Sequence[Requests], _: int) -> Answer:
    single = [[[text] for texts in requests[0] for text in texts][:SINGLE_REQUESTS]]
    asked = [own[: server.requests] for own in requests]
    with started(server) as port:
        in_fresh_process(load, port, server, [own[-1:] for own in requests])  # a warm-up
        alone = in_fresh_process(load, port, server, single)[0]
        answers, seconds = in_fresh_process(load, port, server, asked)
    times = [milliseconds for _, milliseconds in answers]
    return {
        "seconds": seconds,
        "sentences/s": sum(len(texts) for own in asked for texts in own) / seconds,
        "p50": statistics.median(times),
        "p95": statistics.quantiles(times, n=20)[-1],
        "one client": statistics.median(milliseconds for _, milliseconds in alone),
        "refused": sum(status != 200 for status, _ in [*alone, *answers]),
    }


def encode(model: ModelSource, sentences: Sequence[str]) -> Answer:
    encoder = SentenceEncoder.load(model)
    encoder.encode(sentences[:SINGLE_REQUESTS])  # a warm-up
    one = latencies(lambda sentence: encoder.encode([sentence]), sentences[:SINGLE_REQUESTS])
    _, seconds = timed(encoder.encode, sentences)
    return {"seconds": seconds, "sentences/s": len(sentences) / seconds, "one client": one["p50"], "refused": 0}


def claims(results: dict[str, Result]) -> list[Claim]:
    def ratio(metric: str, above: str, below: str) -> Spread:
        return Spread.of_ratios(results[above].values(metric), results[below].values(metric))

    one = ratio("one client", OURS, ENCODE)
    refused = sum(sum(result.values("refused")) for result in results.values())
    return [
        at_least(OF_ENCODE, "the sentences a second of `encode`", ratio("sentences/s", OURS, ENCODE)),
        at_least(OF_PEER, f"the sentences a second of {PEER}", ratio("sentences/s", OURS, PEER)),
        Claim(f"one client waits at most {TIME_OF_ONE} × `encode`", str(one), one.median <= TIME_OF_ONE),
        Claim("every answer is 200", f"{refused} others", not refused),
    ]


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    numbers = numbers_of_sentences(options)
    sentences = sentences_of(options.data, SOURCES, sum(map(sum, numbers)), seed=0)
    left = iter(sentences)
    requests = [[list(islice(left, number)) for number in own] for own in numbers]
    model = ModelSource.parse(options.model)
    own = [sys.executable, "-m", "pipelines", "serve", f"encoder={model}", "--cache-mb", "0"]
    peer = [sys.executable, "-m", "uvicorn", "--factory", "--log-level", "warning", "benchmarks.serve_peer:application"]
    os.environ["MODEL"] = str(model)  # of the peer
    fields = {"model": "encoder", "encoding_format": "base64"}
    servers = {
        OURS: Server([*own, "--port"], "/v1/embeddings", fields, options.requests),
        INVARIANT: Server([*own, "--invariant", "--port"], "/v1/embeddings", fields, options.requests),
        PEER: Server([*peer, "--port"], "/embed", {}, options.peer_requests),
    }
    works = {ENCODE: lambda _: in_fresh_process(encode, model, sentences)}
    works |= {name: partial(contend, server, requests) for name, server in servers.items()}
    results = in_turns(works, options.rounds)

    def column(metric: str, result: Result) -> str:
        return f"{result.spread(metric):,.1f}" if metric in result.answers[0] else ""

    titles = ("sentences/s", "p50", "p95", "one client")
    print_results(results, {}, {title: partial(column, title) for title in titles})
    return claims(results), {"contenders": results, "sentences": len(sentences)}


if __name__ == "__main__":
    main(measure, __doc__, *SOURCES, model=MINILM, clients=50, requests=200, peer_requests=20, rounds=3)
