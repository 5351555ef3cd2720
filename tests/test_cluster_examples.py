"""The examples of docs/clusters.md: jobs are parsed, loaders and other engines run where they are installed."""

import re
import shutil
import subprocess
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from torch.distributed.run import get_args_parser

from bertrelay import SentenceEncoder, encode_dataset

BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
TEXT = (Path(__file__).parents[1] / "docs/clusters.md").read_text(encoding="utf-8")
EXAMPLES = [(match[1], match[2]) for match in BLOCK.finditer(TEXT)]
NOTES = ["a dog runs", "the cat sleeps", "no bird", "two cats run"]


def example(language, word):
    [found] = [text for kind, text in EXAMPLES if kind == language and word in text]
    return found


def check_torchrun(words):
    """The options are torchrun's, and what it starts is `bertrelay run`."""
    found = get_args_parser().parse_args(words)
    assert found.no_python and found.training_script == "bertrelay"
    assert found.training_script_args[0] == "run" and "--runs" in found.training_script_args
    return found


def test_the_slurm_job_is_bash_and_starts_torchrun_on_every_node():
    script = example("bash", "#SBATCH")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    command = script.replace("\\\n", " ").split("srun torchrun ")[1].replace('"', "").split()
    found = check_torchrun([word.replace("$SLURM_NNODES", "2") for word in command])
    assert (found.nnodes, found.nproc_per_node, found.rdzv_backend) == ("2", "8", "c10d")
    assert "--signal=TERM@" in script and "--requeue" in script  # saved and begun again


def test_the_kubernetes_job_is_yaml_whose_pods_find_the_first_one():
    service, job = yaml.safe_load_all(example("yaml", "kind: Job"))
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["kind"] == "Service" and service["metadata"]["name"] == name == spec["template"]["spec"]["subdomain"]
    assert service["spec"]["clusterIP"] == "None" or service["spec"]["clusterIP"] is None
    [container] = spec["template"]["spec"]["containers"]
    program, *words = [*container["command"], *container["args"]]
    found = check_torchrun([word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in words])
    assert program == "torchrun" and spec["completionMode"] == "Indexed"
    assert int(found.nnodes) == spec["completions"] == spec["parallelism"]
    assert found.nproc_per_node == str(container["resources"]["limits"]["nvidia.com/gpu"])
    assert found.master_addr == f"{name}-0.{name}"
    [mount], [volume] = container["volumeMounts"], spec["template"]["spec"]["volumes"]
    assert mount["name"] == volume["name"] and found.training_script_args[1].startswith(mount["mountPath"])


@pytest.fixture
def folder(tiny_encoder, tmp_path, monkeypatch):
    """A working directory with a model, notes, and their vectors as a dataset."""
    monkeypatch.chdir(tmp_path)
    tiny_encoder("bert", NOTES).save(tmp_path / "MODEL")
    (tmp_path / "notes").mkdir()
    pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "note": NOTES}), tmp_path / "notes/0.parquet")
    encode_dataset("MODEL", "notes", "vectors/", column="note", precision="fp32")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_qdrant_loads_the_dataset():
    pytest.importorskip("qdrant_client")
    code = example("python", "QdrantClient").replace(
        'QdrantClient("http://localhost:6333")', 'QdrantClient(":memory:")'
    )
    names: dict = {}
    exec(code, names)
    assert names["client"].count("notes").count == len(NOTES)
    query = SentenceEncoder.load("MODEL").encode("the cat sleeps", precision="fp32")
    [found] = names["client"].query_points("notes", query=query.tolist(), limit=1).points
    assert found.payload["note"] == "the cat sleeps" and found.score == pytest.approx(1)


@pytest.mark.usefixtures("folder")
def test_pgvector_loads_the_dataset(tmp_path):
    """PostgreSQL with pgvector as the package pgserver has it."""
    server = pytest.importorskip("pgserver")
    psycopg = pytest.importorskip("psycopg")
    address = server.get_server(tmp_path / "database").get_uri()
    exec(example("python", "psycopg").replace("dbname=notes", address), {})
    query = SentenceEncoder.load("MODEL").encode("two cats run", precision="fp32")
    with psycopg.connect(address) as database:
        nearest = "SELECT note FROM notes ORDER BY vector <=> %s::vector LIMIT 1"
        assert database.execute(nearest, [str(query.tolist())]).fetchone() == ("two cats run",)
        assert database.execute("SELECT count(*) FROM notes").fetchone() == (len(NOTES),)


@pytest.mark.usefixtures("folder")
def test_lancedb_takes_the_rows_of_the_dataset():
    lancedb = pytest.importorskip("lancedb")
    exec(example("python", "lancedb"), {"SentenceEncoder": SentenceEncoder})
    query = SentenceEncoder.load("MODEL").encode("no bird", precision="fp32")
    table = lancedb.connect("store").open_table("notes")
    assert table.search(query).limit(1).to_list()[0]["note"] == "no bird"


@pytest.mark.usefixtures("folder")
def test_spark_encodes_its_partitions():
    sql = pytest.importorskip("pyspark.sql")
    shutil.rmtree("vectors")
    spark = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        exec(example("python", "mapInPandas"), {"SentenceEncoder": SentenceEncoder, "spark": spark})
    finally:
        spark.stop()
    check_vectors(pq.read_table("vectors"))


def check_vectors(table):
    expected = SentenceEncoder.load("MODEL").encode(table["note"].to_pylist(), precision="fp32")
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy(zero_copy_only=False)), expected, atol=1e-2)


@pytest.mark.usefixtures("folder")
def test_daft_encodes_its_partitions():
    daft = pytest.importorskip("daft")
    shutil.rmtree("vectors")
    code = example("python", "daft.cls").replace("384", "16")
    exec(code, {"SentenceEncoder": SentenceEncoder, "daft": daft})
    check_vectors(pq.read_table("vectors"))


@pytest.mark.usefixtures("folder")
def test_datatrove_encodes_its_documents():
    data = pytest.importorskip("datatrove.data")
    base = pytest.importorskip("datatrove.pipeline.base")
    names = {"SentenceEncoder": SentenceEncoder, "PipelineStep": base.PipelineStep, "batched": batched}
    exec(example("python", "PipelineStep"), names)
    documents = [data.Document(text=note, id=str(row)) for row, note in enumerate(NOTES)]
    found = list(names["Encode"]().run(documents))
    check_vectors(pa.table({"note": NOTES, "vector": [document.metadata["vector"] for document in found]}))


def batched(items, size):
    """As `itertools.batched`, which Python has from 3.12 on."""
    items = iter(items)
    while block := list(islice(items, size)):
        yield block
