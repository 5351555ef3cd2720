"""`bertrelay serve` on a port: ready, signals, silent connections, wrong requests. What it answers: test_serve."""

import http.client
import json
import os
import re
import signal
import socket
import time
from contextlib import suppress

import pytest
from forked import finish

READY = re.compile(r"ready: http://127\.0\.0\.1:(\d+)\n  curl (\S+)/v1/models")


@pytest.fixture
def started(start_forked, model):
    """`started("--option")`: the process, its port, and what it prints."""

    def start(*words, constants=None):
        process, printed = start_forked("serve", f"words={model}", "--port", "0", *words, constants=constants)
        while not (ready := READY.search(printed()[0])):
            assert process.is_alive(), printed()[1]
            time.sleep(0.05)
        return process, int(ready[1]), printed

    return start


def ask(port, path="/v1/models", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_until_a_signal_and_then_what_has_arrived(started, number):
    process, port, printed = started()
    assert ask(port, "/health") == (200, {"status": "ok"})
    status, document = ask(port, "/v1/embeddings", {"input": "a dog barks"})
    assert (status, len(document["data"][0]["embedding"])) == (200, 8)
    body = json.dumps({"input": "ein hund"}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as late:
        late.sendall(head + body[:5])
        time.sleep(0.5)
        os.kill(process.pid, number)
        time.sleep(0.5)
        late.sendall(body[5:])
        answer = late.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert finish([process]) == [0]
    out, err = printed()
    assert "words: encoder" in err
    assert "hund" not in out + err


def test_connections_that_send_no_request_are_closed_and_others_are_answered(started):
    _, port, _ = started(constants={"pipelines.serve.server.HEADER_SECONDS": 1.0})
    silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(100)]
    for number, connection in enumerate(silent):
        if number % 2:
            connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: ")
    assert ask(port)[0] == 200
    for connection in silent:
        with connection, suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert ask(port)[0] == 200


def test_keys_are_read_from_a_file(started, write_lines):
    _, port, printed = started("--key-file", write_lines("keys.txt", ["first", "", "second"]))
    assert "Authorization: Bearer KEY" in printed()[0]
    assert "first" not in "".join(printed())
    assert ask(port)[0] == 401
    assert ask(port, Authorization="Bearer second")[0] == 200


def test_wrong_requests_are_refused_before_anything_is_loaded(refused, model, write_lines, tmp_path):
    keys = write_lines("keys.txt", [""])
    requests = {
        "nowhere": ["serve", "./nowhere"],
        "--key-file FILE": ["serve", model, "--host", "0.0.0.0"],
        "expected a key on each line": ["serve", model, "--key-file", keys],
        "expected a readable text file": ["serve", model, "--key-file", tmp_path / "none"],
        "expected NAME=FOLDER": ["serve", "=x"],
        "port": ["serve", model, "--port", "70000"],
    }
    for (words, request), (code, message) in zip(requests.items(), refused(requests.values()), strict=True):
        assert code == 2, request
        assert words in message, request
