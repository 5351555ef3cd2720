"""The workers of a Ray cluster, a head and two nodes that `ray start` began on this machine, beside one process."""

import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrelay import encode_files
from bertrelay.cache import Cache
from bertrelay.compute import ray as ray_workers
from bertrelay.compute.engine import LOCAL_ENGINE, Engine
from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Work, whole_span
from bertrelay.data import parquet
from bertrelay.data.parquet import DatasetShards
from bertrelay.data.shards import ShardFiles, SpanReader, even_spans
from bertrelay.data.writing import json_line
from bertrelay.encode_files import encode_dataset, encode_file
from bertrelay.errors import RequestError, WorkError
from bertrelay.fingerprint import Digests
from bertrelay.inference import run_model
from bertrelay.inference.run_model import connect
from bertrelay.privacy import sensitive_data, temporary_files_in
from bertrelay.process_group import ProcessGroup
from bertrelay.settings import InputFile
from domain.clinical import chunks as clinical_chunks
from domain.clinical.chunks import Chunker, stored_chunk_tokens
from domain.clinical.settings import ChunkSettings
from domain.pretraining import corpus
from domain.pretraining.corpus import build_corpus
from domain.pretraining.settings import DocumentSource

ray = pytest.importorskip("ray")
from ray._raylet import AuthenticationTokenLoader  # noqa: E402

RAY, ONE = Engine(engine="ray"), Engine(engine="ray", workers=1)
ROWS, IN_SHARD = 240, 10


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextmanager
def ray_start(*options):
    """`ray start`, as docs/clusters.md writes it, in the foreground."""
    here = ["--block", "--node-ip-address=127.0.0.1", "--dashboard-agent-listen-port=0", "--disable-usage-stats"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *here, "--object-store-memory=150000000", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()  # which terminates those that it started
        process.wait(60)


def waited_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Starts a head and two nodes, with a token: Ray then requires it of every process that connects."""
    from ray.cluster_utils import Cluster

    port, client = free_port(), free_port()
    address, token = f"127.0.0.1:{port}", tmp_path_factory.mktemp("token") / "auth_token"
    token.write_text("4d" * 32)
    # The head checks each second that the nodes are alive.
    checks = ["--num-cpus=0", "--system-config", '{"health_check_period_ms": 1000}']
    head = ["--head", "--include-dashboard=false", f"--port={port}", f"--ray-client-server-port={client}", *checks]
    this = sys.modules[__name__]
    with ExitStack() as until, pytest.MonkeyPatch.context() as environment:
        folder = until.enter_context(TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True))
        environment.delenv("RAY_AUTH_MODE", raising=False)
        environment.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        environment.setenv("RAY_ADDRESS", address)
        AuthenticationTokenLoader.instance().reset_cache()
        until.enter_context(ray_start(*head, f"--temp-dir={folder}"))
        waited_for(lambda: Path(folder, "ray_current_cluster").exists())
        ray.cloudpickle.register_pickle_by_value(this)  # so that a worker need not import this module
        with connect(RAY):  # once for all tests
            nodes = Cluster(shutdown_at_exit=False)
            nodes.head_node = SimpleNamespace(gcs_address=address)
            for _ in range(2):
                nodes.add_node(wait=False)
            waited_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 3)
            yield SimpleNamespace(client=f"ray://127.0.0.1:{client}", session=Path(folder, "session_latest"))
        for node in nodes.worker_nodes:
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        ray.cloudpickle.unregister_pickle_by_value(this)
    AuthenticationTokenLoader.instance().reset_cache()


def lines_of(span):
    return [json_line({"row": row, "square": row**2}) for row in range(span.first, span.end)]


def plain():
    return lambda spans, _: map(lines_of, spans)


def once(marker, act, content=lines_of):
    """The first worker to compute shard 7 calls `act`."""

    def compute(spans, _):
        for span in spans:
            if span.first == 7 * IN_SHARD and not marker.exists():
                marker.touch()
                act()
            yield content(span)

    return lambda: compute


def kill_worker():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_node():
    os.kill(os.getppid(), signal.SIGKILL)  # the raylet, the process of the node
    kill_worker()


def raise_note(note):
    raise ValueError(note)


def files_that_quote(note, cluster):
    """Lists the files of Ray's session, most of them logs, that contain `note`."""
    return [path for path in cluster.session.rglob("*") if path.is_file() and note.encode() in path.read_bytes()]


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))


SPANS = even_spans(ROWS, IN_SHARD)


def shards_of(folder):
    shards = ShardFiles(folder / "out.jsonl", SPANS)
    shards.begin({"of": "squares"})
    return shards


def fill(folder, start=plain, engine=ONE, read=whole_span):
    with connect(engine) as executor:
        shards = shards_of(folder)
        result = run_model.fill(shards, Work(read, start, "squaring", "rows"), executor)
    return [(row["row"], row["square"]) for row in shards.rows()], result


EXPECTED = [(row, row**2) for row in range(ROWS)]


def slow():
    """Each shard takes a moment."""

    def compute(spans, _):
        for span in spans:
            for _ in range(2_000):
                os.listdir(".")  # noqa: PTH208
            yield lines_of(span)

    return compute


def run_apart(script, **more):
    """Runs `script` in another process; workers get the functions of this module, `t` in the script, by value."""
    script = f"import test_ray as t, ray\nray.cloudpickle.register_pickle_by_value(t)\n{script}"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, check=False, **more)


CLIENT = """
import pathlib
folder, engine = pathlib.Path({folder!r}), t.Engine(engine={address!r}, workers=1)
with t.connect(engine):
    rows, _ = t.fill(folder, t.once(folder / "killed", t.kill_worker), engine)
    assert rows == t.EXPECTED and (folder / "killed").exists()
    t.encode_file(folder / "model", folder / "in.txt", folder / "there.npy", engine=engine, vectors="int8")
    t.shards_of(folder).remove()
    with t.sensitive_data():
        t.fill(folder, t.once(folder / "raised", t.partial(t.raise_note, {note!r})), engine, read=lambda span: span)
"""


def test_where_no_cluster_answers_the_error_comes_at_once(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RequestError, match=r"expected a Ray cluster at ray://127\.0\.0\.1:9, found none that answers"):
        connect(Engine(engine="ray://127.0.0.1:9")).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(RequestError, match=r"expected a Ray cluster at 127\.0\.0\.1:9, found none"):
        connect(RAY).__enter__()


@pytest.mark.usefixtures("cluster")
class TestWorkers:
    @pytest.mark.promise("Workers write with the caller's permissions", about="cluster")
    def test_they_fill_all_shards_and_those_that_are_there_stay(self, tmp_path):
        with sensitive_data():
            shards = shards_of(tmp_path)
            shards.write(3, [json_line({"row": row, "square": -1}) for row in range(30, 40)])
            rows, filled = fill(tmp_path)
        assert rows == EXPECTED[:30] + [(row, -1) for row in range(30, 40)] + EXPECTED[40:]
        assert filled.size == ROWS - IN_SHARD
        assert {stat.S_IMODE(path.stat().st_mode) for path in shards.folder.iterdir()} == {0o600}

    @pytest.mark.promise("A lost worker is replaced", about="cluster")
    def test_one_that_is_killed_is_replaced(self, tmp_path):
        passes = []

        def begin():
            passes.append(1)
            return iter(range(ROWS))

        reader = SpanReader(begin, "rows")

        def read(span):
            assert reader.read(span) == [*range(span.first, span.end)]
            return span

        rows, _ = fill(tmp_path, once(tmp_path / "marker", kill_worker), read=read)
        assert len(passes) == 2  # what the lost worker had is read again
        assert rows == EXPECTED and (tmp_path / "marker").exists()

    def test_those_that_find_no_place_are_not_waited_for(self, tmp_path):
        class Tenant:
            def here(self):
                pass

        tenant = ray.remote(num_cpus=1)(Tenant).remote()
        ray.get(tenant.here.remote())
        rows, _ = fill(tmp_path, engine=Engine(engine="ray", workers=2))
        assert rows == EXPECTED
        ray.kill(tenant)

    def test_a_shard_that_kills_each_of_them_is_named(self, tmp_path, monkeypatch):
        assert ray_workers.MOST_LOST == 3  # docs/clusters.md
        monkeypatch.setattr(ray_workers, "MOST_LOST", 1)

        def always(spans, _):
            for span in spans:
                if span.first == 7 * IN_SHARD:
                    kill_worker()
                yield lines_of(span)

        with pytest.raises(WorkError, match=r"2 workers were lost over shard 7 .*memory ran out.*resumes"):
            fill(tmp_path, lambda: always)

    def test_a_full_disk_on_a_node_is_an_error_and_nothing_is_half_written(self, tmp_path):
        with pytest.raises(WorkError, match=r"could not write .*File too large"):
            fill(tmp_path, once(tmp_path / "marker", limit_file_size))
        shards = shards_of(tmp_path)
        written = set(range(len(shards.spans))).difference(shards.missing())
        assert all(shards.path(number).read_text().count("\n") == IN_SHARD for number in written)
        assert fill(tmp_path)[0] == EXPECTED

    @pytest.mark.promise("Errors of workers and Ray's logs quote no sensitive data", about="cluster")
    def test_neither_errors_nor_rays_logs_quote_sensitive_data(self, cluster, tmp_path):
        note = " ".join(["Quillfeather,", "born 1950"])  # joined, so that no line of code in a traceback contains it
        fill(tmp_path, once(tmp_path / "first", partial(print, note[::-1], flush=True)))
        assert files_that_quote(note[::-1], cluster)
        shards_of(tmp_path).remove()
        with pytest.raises(WorkError, match="unforeseen ValueError") as caught, sensitive_data():
            fill(tmp_path, lambda: lambda notes, _: map(raise_note, notes), read=lambda _: note)
        assert note not in str(caught.value) and not files_that_quote(note, cluster)

    def test_a_full_disk_for_a_dataset_is_an_error_and_nothing_is_half_published(self, tmp_path):
        def fill_dataset(start):
            shards = DatasetShards(str(tmp_path / "out"), SPANS, pa.schema({"row": pa.int64()}))
            shards.begin({"spans": "", "of": "rows"})
            with connect(ONE) as executor:
                run_model.fill(shards, Work(whole_span, start, "counting", "rows"), executor)
            shards.finish()

        def tables_of(span):
            yield pa.table({"row": range(span.first, span.end)})

        with pytest.raises(WorkError, match=r"out cannot be written \(part-00007.parquet\): .*File too large.*resumes"):
            fill_dataset(once(tmp_path / "marker", limit_file_size, tables_of))
        shards = {path.name: pq.read_metadata(path).num_rows for path in (tmp_path / "out").glob("*.parquet")}
        marked = {f"part-{path.name.split('-')[1]}.parquet" for path in (tmp_path / "out/_shards").iterdir()}
        assert set(shards.values()) <= {IN_SHARD} and marked <= shards.keys() and "part-00007.parquet" not in shards
        assert not (tmp_path / "out/_SUCCESS").exists()
        fill_dataset(lambda: lambda spans, _: map(tables_of, spans))
        assert sorted(pq.read_table(tmp_path / "out")["row"].to_pylist()) == list(range(ROWS))

    def test_a_folder_that_they_do_not_share_is_refused(self, tmp_path, monkeypatch):
        (tmp_path / "other").mkdir()
        # Workers start in the caller's working folder, by which they resolve a relative path.
        monkeypatch.setattr(ray_workers.Path, "cwd", lambda: tmp_path / "other")
        with pytest.raises(
            RequestError, match=r"out.jsonl.partial: expected a folder that all workers share, found none"
        ):
            fill(Path(os.path.relpath(tmp_path)))

    def test_other_versions_and_too_much_asked_for_are_refused(self, tmp_path, monkeypatch):
        with pytest.raises(RequestError, match="gpus_per_worker: expected a node that has 1, found 0 at most"):
            fill(tmp_path, engine=Engine(engine="ray", gpus_per_worker=1))
        with pytest.raises(RequestError, match="cpus_per_worker: expected a node that has 2, found 1 at most"):
            fill(tmp_path, engine=Engine(engine="ray", cpus_per_worker=2))
        installed = metadata.version("torch")
        versions = {name: metadata.version(name) for name in ray_workers.PACKAGES} | {"torch": "1.0"}
        monkeypatch.setattr(metadata, "version", versions.__getitem__)
        message = rf"expected torch 1.0 on every node, found {re.escape(installed)} on node [\d.]+; install the same"
        with pytest.raises(RequestError, match=message):  # raised by a worker, as on a node that joins late
            fill(tmp_path)
        monkeypatch.setattr(ray_workers, "_checked_nodes", set())
        with pytest.raises(RequestError, match=message):
            ray_workers._check_versions()
        versions["torch"], versions["pyarrow"] = installed, "none"  # as where it is absent
        with pytest.raises(RequestError, match=r"expected pyarrow none on every node, found \d+"):
            ray_workers._check_versions()

    def test_a_node_that_is_lost_before_it_answers_is_passed_over(self, monkeypatch):
        nodes = ray.nodes()
        lost = {**nodes[0], "NodeID": "1" * len(nodes[0]["NodeID"]), "Alive": True}
        answers = iter([[*nodes, lost]])
        monkeypatch.setattr(ray, "nodes", lambda: next(answers, nodes))
        monkeypatch.setattr(ray_workers, "_checked_nodes", set())
        ray_workers._check_versions()
        assert ray_workers._checked_nodes == {node["NodeID"] for node in nodes if node["Alive"]}
        monkeypatch.setattr(ray, "nodes", lambda: [*nodes, lost])
        with pytest.raises(RequestError, match="gives no answer"):
            ray_workers._check_versions()

    def test_a_connection_of_the_users_own_is_checked_and_stays(self, monkeypatch):
        from ray._private.services import get_webui_url_from_internal_kv
        from ray.experimental.internal_kv import _internal_kv_put

        with sensitive_data(), connect(RAY):
            pass
        _internal_kv_put("webui:url", "head:8265", namespace="dashboard")
        assert get_webui_url_from_internal_kv() == "head:8265"
        refused = pytest.raises(
            RequestError, match="expected no dashboard beside sensitive data, found one at head:8265"
        )
        with refused, sensitive_data(), connect(RAY):
            pass
        with connect(RAY), sensitive_data(), connect(Engine(engine="ray", dashboard=True)):
            pass
        _internal_kv_put("webui:url", "", namespace="dashboard")
        monkeypatch.setattr(ray_workers, "_checked_nodes", set())
        monkeypatch.setattr(metadata, "version", lambda _: "1.0")
        with pytest.raises(RequestError, match=r"expected bertrelay 1\.0 on every node"), connect(RAY):
            pass
        assert ray.is_initialized()

    @pytest.mark.slow
    def test_through_a_clusters_client_port_all_is_the_same(self, cluster, make_encoder, many, tmp_path):
        note = " ".join(["Quillfeather,", "born 1960"])
        (tmp_path / "in.txt").write_text("\n".join(many) + "\n")
        make_encoder().save(tmp_path / "model")
        encode_file(tmp_path / "model", tmp_path / "in.txt", tmp_path / "here.npy", vectors="int8")
        script = CLIENT.format(folder=str(tmp_path), address=cluster.client, note=note)
        process = run_apart(script, capture_output=True, text=True)
        assert re.search("WorkError: an unforeseen ValueError", process.stderr), process.stderr
        assert (tmp_path / "there.npy").read_bytes() == (tmp_path / "here.npy").read_bytes()
        assert "born" not in process.stderr and not files_that_quote(note, cluster)

    def test_a_recipe_runs_on_them_and_ends_the_same(self, make_encoder, many, tmp_path, monkeypatch):
        from pipelines.cli import main

        (tmp_path / "in.txt").write_text("\n".join(many) + "\n")
        make_encoder().save(tmp_path / "model")
        stage = '[vectors]\nuses = "bertrelay.encode"\nmodel = "model"\nsentences = { path = "in.txt" }\n'
        (tmp_path / "r.toml").write_text(stage)
        pools = mock.Mock(wraps=ray_workers._WorkerPool)
        monkeypatch.setattr(ray_workers, "_WorkerPool", pools)
        contents = []
        for name, *engine in (["here"], ["there", "--set", "engine=ray", "--set", "workers=1"]):
            with mock.patch.dict(os.environ), pytest.raises(SystemExit) as ended:
                main(["run", str(tmp_path / "r.toml"), "--runs", str(tmp_path / name), *engine])
            assert ended.value.code == 0
            contents.append((tmp_path / name / "r/vectors/latest/vectors.npy").read_bytes())
            assert pools.call_count == len(contents) - 1
        assert len(set(contents)) == 1

    def test_a_worker_has_as_many_threads_as_cores(self, tmp_path):
        def threads(spans, _):
            import torch

            for span in spans:
                torch_has, tokenizers_have = torch.get_num_threads(), os.environ["RAYON_NUM_THREADS"]
                rows = [{"row": row, "square": f"{torch_has} {tokenizers_have}"} for row in range(span.first, span.end)]
                yield map(json_line, rows)

        assert {square for _, square in fill(tmp_path, lambda: threads, RAY)[0]} == {"1 1"}

    @pytest.mark.promise("A killed call resumes", about="cluster")
    def test_a_call_that_is_killed_resumes_at_what_is_missing(self, tmp_path):
        killed = run_apart(
            "import os, signal, pathlib\n"
            f"folder = pathlib.Path({str(tmp_path)!r})\n"
            "count = t.ray_workers._WorkerPool._update_progress\n"
            "def stop(self, at_work, bar):\n"
            "    count(self, at_work, bar)\n"
            "    if 4 < len(t.shards_of(folder).missing()) < 20: os.kill(os.getpid(), signal.SIGKILL)\n"
            "t.ray_workers._WorkerPool._update_progress = stop\n"
            "t.fill(folder, t.slow)\n"
        )
        assert killed.returncode == -signal.SIGKILL
        missing = len(shards_of(tmp_path).missing())
        assert 4 < missing < 20
        rows, filled = fill(tmp_path)
        assert rows == EXPECTED and filled.size <= missing * IN_SHARD

    @pytest.mark.promise("A file encoded on a cluster has the bytes of one process", about="cluster")
    def test_a_file_is_encoded_as_by_one_process(self, make_encoder, many, tmp_path, monkeypatch):
        monkeypatch.setattr(encode_files, "BLOCK_SENTENCES", 8)
        (tmp_path / "in.txt").write_text("\n".join(many) + "\n")
        encode_file(make_encoder(), tmp_path / "in.txt", tmp_path / "here.npy", precision="fp32")
        encoded = encode_file(make_encoder(), tmp_path / "in.txt", tmp_path / "there.npy", engine=RAY, precision="fp32")
        assert encoded.sentences == len(many)
        assert (tmp_path / "there.npy").read_bytes() == (tmp_path / "here.npy").read_bytes()
        assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "here.npy", "there.npy"}

    def test_a_dataset_is_encoded_as_by_one_process(self, make_encoder, many, tmp_path, monkeypatch):
        monkeypatch.setattr(parquet, "SHARD_ROWS", 10)
        (tmp_path / "in").mkdir()
        for number in range(3):
            pq.write_table(pa.table({"text": many[number::3]}), tmp_path / f"in/{number}.parquet", row_group_size=5)
        for name, engine in (("here", LOCAL_ENGINE), ("there", ONE)):
            paths = str(tmp_path / "in"), f"{tmp_path / name}/"
            assert encode_dataset(make_encoder(), *paths, engine=engine, precision="fp32").sentences == len(many)
        files = [sorted((tmp_path / name).iterdir()) for name in ("here", "there")]
        contents = [{path.name: path.read_bytes() for path in paths if path.is_file()} for paths in files]
        assert contents[0] == contents[1] and len(contents[0]) == 2 + 7  # of 21, 20 and 20 rows

    def test_chunks_of_notes_are_cut_as_by_one_process(self, word_piece, many, tmp_path, monkeypatch):
        monkeypatch.setattr(clinical_chunks, "SHARD_CHARACTERS", 100)
        chunker, texts = Chunker(word_piece, ChunkSettings(max_tokens=8, max_chunks=2)), [*many, ""]
        assemble, modes = clinical_chunks._assemble, list[int]()

        def assembled(shards, folder):
            modes.extend(stat.S_IMODE(path.stat().st_mode) for path in shards.complete())
            assemble(shards, folder)

        monkeypatch.setattr(clinical_chunks, "_assemble", assembled)
        for name, engine in (("here", LOCAL_ENGINE), ("there", ONE)):
            with sensitive_data():
                stored_chunk_tokens(lambda: iter(texts), list(map(len, texts)), chunker, tmp_path / name, engine)
            monkeypatch.setattr(LocalExecutor, "compute", None)  # from now on only workers compute
        files = [sorted((tmp_path / name).iterdir()) for name in ("here", "there")]
        contents = [{path.name: path.read_bytes() for path in paths if path.is_file()} for paths in files]
        assert contents[0] == contents[1] and len(contents[0]) == 3
        assert len(modes) > 10 and set(modes) == {0o600}

    def test_documents_are_tokenized_as_by_one_process(self, word_piece, many, tmp_path, monkeypatch):
        monkeypatch.setattr(corpus, "SHARD_CHARACTERS", 100)
        rows = [{"text": f"{text}. {text}", "owner": number % 9} for number, text in enumerate(many)]
        (tmp_path / "in.jsonl").write_text("".join(map(json_line, [*rows, {"text": ""}])))
        source, built = DocumentSource(path=InputFile(tmp_path / "in.jsonl"), group="owner"), []
        for name, engine in (("here", LOCAL_ENGINE), ("there", ONE)):
            built.append(build_corpus([source], word_piece, Cache(tmp_path / name), Digests(), 0.3, engine=engine))
            monkeypatch.setattr(LocalExecutor, "compute", None)  # from now on only workers compute
        here, remote = built
        for name in ("sentence_starts", "document_starts", "groups", "held_out"):
            assert getattr(here, name).tolist() == getattr(remote, name).tolist(), name
        assert (
            here.tokens(0, here.sentence_starts[-1]).tolist() == remote.tokens(0, remote.sentence_starts[-1]).tolist()
        )
        assert here.facts == remote.facts and here.facts["shards"] > 5 and 0 < here.held_out.sum() < len(many)

    # The last test, because the cluster lacks a node afterwards.
    @pytest.mark.promise("A lost node's work is done by others", about="cluster")
    def test_the_others_do_the_work_of_a_node_that_is_lost(self, tmp_path):
        rows, _ = fill(tmp_path, once(tmp_path / "marker", kill_node), RAY)
        assert rows == EXPECTED and (tmp_path / "marker").exists()


def test_a_new_cluster_has_short_paths_and_its_data_where_temporary_files_are(tmp_path, monkeypatch):
    """Sockets have paths of 107 bytes at most."""
    connected = {}

    def init(address, **options):
        connected.update(options, address=address)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("127.0.0.1:9")  # a cluster that has ended
    with temporary_files_in(tmp_path / "work"):
        ray_workers._init(None)
    expected = {"_temp_dir": str(tmp_path / "ray"), "object_spilling_directory": str(tmp_path / "work")}
    assert connected["address"] == "local" and expected.items() <= connected.items()
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        (tmp_path / "ray/ray_current_cluster").write_text(address)
        ray_workers._init(None)
    assert connected["address"] == address


def test_settings_of_a_cluster_need_one_and_processes_need_none():
    for unknown in ("spark", "ray://head"):
        with pytest.raises(RequestError, match=f"expected local, ray or ray://HOST:PORT, found '{unknown}'"):
            Engine.of(unknown)
    with pytest.raises(ValueError, match="workers: without effect, because engine is local"):
        Engine(workers=2)
    with pytest.raises(RequestError, match="expected one process that hands out work to ray, found 2"):
        Engine.of("ray", ProcessGroup(0, 2))
    assert Engine.of("local", ProcessGroup(0, 2)) == LOCAL_ENGINE


def test_where_a_clusters_server_for_this_client_ends_as_it_starts_it_is_started_once_more(monkeypatch):
    failure = ConnectionAbortedError("Starting Ray client server failed")
    init = mock.Mock(side_effect=[failure, None, failure, failure])
    monkeypatch.setattr(ray, "init", init)
    ray_workers._init("ray://head:10001")
    with pytest.raises(ConnectionAbortedError, match="client server failed"):
        ray_workers._init("ray://head:10001")
    assert init.call_count == 4


def test_other_versions_of_ray_are_named(monkeypatch):
    def differs(_):
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 1.0")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_workers, "_init", differs)
    with pytest.raises(RequestError, match=r"found none that answers \(Version mismatch: The .*same versions of Ray"):
        connect(RAY).__enter__()


def test_a_token_that_is_missing_is_named_and_the_environment_stays_as_it_was(monkeypatch, tmp_path):
    modes = []

    def refuses(_):
        modes.append(os.environ.get("RAY_AUTH_MODE"))
        raise ray.exceptions.AuthenticationError("Authentication token is missing or incorrect")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_workers, "_init", refuses)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    (tmp_path / "token").write_text("4d" * 32)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(RequestError, match=r"token is missing or incorrect.* in ~/\.ray/auth_token or \$RAY_AUTH"):
        connect(RAY).__enter__()
    assert modes == ["token"] and "RAY_AUTH_MODE" not in os.environ
