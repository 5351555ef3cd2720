"""`bertrelay serve` on a port: ready, signals, silent connections, wrong requests. What it answers: test_serve."""

import gzip
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from forked import finish

from pipelines.serve.settings import AddressOptions

ROOT = Path(__file__).resolve().parents[3]
READY = re.compile(r"ready: http://127\.0\.0\.1:(\d+)\n  curl (\S+)/v1/models")


@pytest.fixture
def started(start_forked, model):
    """`started("--option")`: the process, its port, and what it prints."""

    def start(*words, constants=None):
        process, printed = start_forked("serve", f"words={model}", "--port", "0", *words, constants=constants)
        return process, port_of(process, printed), printed

    return start


def port_of(process, printed):
    """The port of a server, when it is ready."""
    while not (ready := READY.search(printed()[0])):
        assert process.is_alive(), printed()[1]
        time.sleep(0.05)
    return int(ready[1])


def test_a_ready_server_prints_one_document(start_forked, model):
    process, printed = start_forked("serve", f"words={model}", "--port", "0", "--json")
    while not printed()[0].endswith("\n"):
        assert process.is_alive(), printed()[1]
        time.sleep(0.05)
    document = json.loads(printed()[0])
    url = document["result"].pop("url")
    models = {"words": "encoder"}
    assert document == {"command": "serve", "output": None, "result": {"needs_key": False, "models": models}}
    assert ask(int(url.rpartition(":")[2]), "/health") == (200, {"status": "ok"})
    os.kill(process.pid, signal.SIGTERM)
    assert finish([process]) == [0]


def ask(port, path="/v1/models", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@pytest.mark.promise("Requests that have arrived are answered after a stop signal", about="serving")
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


def test_requests_are_answered_by_503_until_the_models_are_loaded(start_forked, model):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start_forked("serve", f"words={model}", "--port", port)
    statuses, end = [], time.monotonic() + 60
    while 200 not in statuses and time.monotonic() < end:
        with suppress(OSError):  # until it listens
            status, document = ask(port, "/health")
            statuses.append(status)
            assert document["status"] == ("ok" if status == 200 else "loading")
        time.sleep(0.01)
    assert set(statuses) == {503, 200}
    assert ask(port, "/v1/embeddings", {"input": "a dog"})[0] == 200


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


def memory_mb(process):
    """Resident memory of a process."""
    (line,) = (line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line)
    return int(line.split()[1]) / 1024


def answers_within_a_second(port):
    """True if one of three new texts has its vector within a second: others may hold the machine for a while."""
    seconds = []
    for number in range(3):
        started = time.monotonic()
        assert ask(port, "/v1/embeddings", {"input": f"dog {number} {started}"})[0] == 200
        seconds.append(time.monotonic() - started)
    return min(seconds) < 1


def post(port, body, **headers):
    """The status of an answer to raw bytes, or to an iterator of them; 0 where the connection was closed instead."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/v1/embeddings", body, headers, encode_chunked=not isinstance(body, bytes))
        return connection.getresponse().status
    except (ConnectionError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


@pytest.fixture
def many_files():
    """Lets this process open 4,000 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4_000:
        pytest.skip("1,200 connections need more open files than are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="memory is read from /proc")
@pytest.mark.promise("Attacks leave a server that answers within a second, in bounded memory", about="serving")
@pytest.mark.usefixtures("many_files")
def test_attacks_leave_a_server_that_answers_within_a_second(started):
    process, port, printed = started()
    assert answers_within_a_second(port)
    before = memory_mb(process)
    idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(1_000)]
    slow = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(200)]
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n"
    for connection in slow:
        connection.sendall(head + b'{"input":"' + b"a" * 1_000)
    assert answers_within_a_second(port)
    for connection in idle + slow:
        connection.close()
    mb = 1 << 20
    bomb = gzip.compress(bytes(100 * mb))
    tiny = json.dumps({"input": ["a"] * 100_000}).encode()
    numbers = b'{"input":"a","dimensions":%s}'
    attacks = [
        (post(port, bomb, **{"Content-Encoding": "gzip"}), {415, 0}),
        (post(port, (b"a" * mb for _ in range(100)), **{"Transfer-Encoding": "chunked"}), {413, 0}),
        (post(port, b"a" * 100 * mb), {413, 0}),
        (post(port, tiny), {400}),
        (post(port, b"[" * 7_000_000), {400}),
        (post(port, b"\xff" * mb), {400}),
        *((post(port, numbers % number), {400}) for number in (b"NaN", b"1e999", b"9" * 100_000, b"-1")),
    ]
    assert [status for status, expected in attacks if status not in expected] == []
    assert answers_within_a_second(port)
    assert memory_mb(process) < before + 300
    assert "Traceback" not in "".join(printed())


@pytest.mark.skipif(not Path("/proc").exists(), reason="open files are read from /proc")
def test_a_server_killed_under_load_leaves_nothing(started, tmp_path):
    process, port, _ = started("--cache-mb", "0")

    def ask_on(number):
        with suppress(OSError, http.client.HTTPException):
            while True:
                ask(port, "/v1/embeddings", {"input": [f"dog {number} {row}" for row in range(64)]})

    with ThreadPoolExecutor(8) as clients:
        asking = [clients.submit(ask_on, number) for number in range(8)]
        time.sleep(1)
        descriptors = Path(f"/proc/{process.pid}/fd").iterdir()
        files = {link.resolve() for link in descriptors if link.resolve().is_file()}
        os.kill(process.pid, signal.SIGKILL)
        for one in asking:
            one.result(60)
    written = {path for path in files if os.access(path, os.W_OK) and path.stat().st_mtime > time.time() - 60}
    assert {path.name for path in written} <= {"out", "err"}
    assert list(tmp_path.iterdir()) == []
    socket.create_server(("127.0.0.1", port)).close()


def test_slow_bodies_are_refused(started):
    _, port, _ = started(constants={"pipelines.serve.application.BODY_SECONDS": 1.0})
    with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
        slow.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert slow.makefile("rb").read().startswith(b"HTTP/1.1 408")
    assert ask(port)[0] == 200


def test_many_clients_at_once_get_the_vectors_of_the_encoder(started, encoder):
    _, port, _ = started("--precision", "fp32", "--cache-mb", "0", "--dimensions", "4", "--dimensions", "2")
    cut = ask(port, "/v1/embeddings", {"input": "a", "dimensions": 2})[1]["data"][0]["embedding"]
    assert np.linalg.norm(cut) == pytest.approx(1)
    words = ["a", "dog", "barks", "ein", "hund", "bellt", "개가", "짖는다", "."]
    requests = [[" ".join(words[: 1 + (client + row) % 9]) for row in range(1 + client % 8)] for client in range(96)]
    with ThreadPoolExecutor(24) as clients:
        answers = list(clients.map(lambda texts: ask(port, "/v1/embeddings", {"input": texts}), requests))
    assert {status for status, _ in answers} == {200}
    for texts, (_, document) in zip(requests, answers, strict=True):
        vectors = [row["embedding"] for row in document["data"]]
        np.testing.assert_allclose(vectors, encoder.encode(texts, precision="fp32"), atol=1e-6)


@pytest.mark.promise("Nothing of a note that was sent to the server is left behind", about="privacy")
def test_nothing_of_a_note_is_left_behind(start_forked, readmission_model, tmp_path):
    process, printed = start_forked("serve", readmission_model, "--port", "0")
    port = port_of(process, printed)
    note = "Plan:\nPlantedname MRN 7654321 slept well. the wound is dry."
    assert ask(port, "/readmission", {"notes": note, "return_text": True})[0] == 200
    assert ask(port, "/readmission?q=Plantedname", {"notes": note, "model": "Plantedname"})[0] == 404
    assert ask(port, "/Plantedname")[0] == 404
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers={"x-request-id": "Plantedname"})
    metrics = connection.getresponse().read().decode()
    parts = [*Path(f"/proc/{process.pid}").glob("cmdline"), *Path(f"/proc/{process.pid}").glob("task/*/comm")]
    title = " ".join(part.read_bytes().decode() for part in parts)  # of the process and its threads
    os.kill(process.pid, signal.SIGTERM)
    assert finish([process]) == [0]
    for mark in ("Plantedname", "7654321"):
        assert mark not in metrics + title + "".join(printed())
    assert list(tmp_path.iterdir()) == []


def test_keys_are_read_from_a_file(started, write_lines):
    _, port, printed = started("--key-file", write_lines("keys.txt", ["first", "", "second"]))
    assert "Authorization: Bearer KEY" in printed()[0]
    assert "first" not in "".join(printed())
    assert ask(port)[0] == 401
    assert ask(port, Authorization="Bearer second")[0] == 200


def test_the_container_starts_the_server_and_installs_what_it_needs():
    lines = (ROOT / "Containerfile").read_text("utf-8").splitlines()
    steps = [line.split(" ", 1) for line in lines if line and not line.startswith(("#", " "))]
    assert {step for step, _ in steps} <= {"FROM", "COPY", "RUN", "USER", "ENV", "EXPOSE", "ENTRYPOINT", "CMD"}
    values = dict(steps)
    assert json.loads(values["ENTRYPOINT"]) == ["bertrelay", "serve"]
    assert values["EXPOSE"] == str(AddressOptions().port)
    assert "[serve,search]" in "".join(lines)
    builders = [name for name in ("podman", "docker") if shutil.which(name)]
    builder = next(
        (name for name in builders if not subprocess.run([name, "info"], capture_output=True).returncode), None
    )
    if builder is None:
        pytest.skip("no builder of containers runs here; the file was read only")
    subprocess.run([builder, "build", "-q", "-f", ROOT / "Containerfile", ROOT], check=True)


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
