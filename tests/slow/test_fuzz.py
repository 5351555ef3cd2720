"""Malformed models, settings, tables and inputs: each ends in a clear error, at once and with nothing lost.

First `every_stage.toml` runs. Each case then changes one thing in a copy of a model that a stage wrote, in a stage's
settings, in a table that a stage reads, or in what a user gives, and uses it in a fork, which is killed if it hangs.
The case fails on an error that nobody foresaw, a process that died or hangs, a model that computes something else in
silence, and a finished result that was changed.

    python -m pytest -m slow tests/slow/test_fuzz.py --hypothesis-seed=1 -s
"""

import gzip
import io
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tomllib
import traceback
import zipfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from importlib import import_module
from multiprocessing import Pipe, get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from changes import VALUES, chance, change_folder, changed, changed_bytes, check_changed_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertrelay.cache import Cache
from bertrelay.data.parquet import ParquetInput
from bertrelay.data.records import rows
from bertrelay.data.tables import Table
from bertrelay.errors import BertRelayError, Stopped
from bertrelay.fingerprint import Digests
from bertrelay.model.encoder import SentenceEncoder
from domain.biomedical.ner.predict import EntityTagger
from domain.biomedical.qa.predict import QuestionAnswerer
from domain.clinical.predict import OutcomeScorer
from domain.pretraining.network import start_network
from domain.pretraining.settings import PretrainSettings
from pipelines.cli import main
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from pipelines.run.plan import RunOptions, make_plan
from pipelines.run.runner import run
from students.parallel.files import read_translation_files
from students.parallel.settings import TranslationFiles
from students.searching.index import open_index
from teachers.pairs.rerank import load_scorer
from teachers.sbert_paper.bilstm import BiLstmEncoder

RECIPE = Path(__file__).with_name("every_stage.toml")
HANG_SECONDS, STOP_SECONDS, MEMORY_BYTES = 120, 6, 10 << 30  # the second of processor time
SLOW_IMPORTS = ("sklearn.manifold", "sklearn.model_selection", "sklearn.linear_model", "matplotlib.pyplot", "faiss")
TEXTS = ["A dog runs in the park.", "Two children play with a red ball.", "Nobody knows."]
PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]
SENTENCES = ["A dog runs.", "Two children play.", "%d of {n} <b>files</b>", "x %" + "0" * 5_000, "a\tb", "é\u2028ü", ""]
TABLES = {
    "vectors": "samples/sts.dev.tsv",
    "qa-test": "articles/questions.test.json",
    "ner-test": "entities/entities.test.tsv",
    "tagged": "entities/entities.test.jsonl",
    "terms": "hospital/terms.csv",
}
NAMES = [
    *("-x", "a?b", "a b", "a*b", "a\nb", "\u202eabc", "a%20b", "a\\b", ".a", "é", "日本", "@a", "a'b\"", "~a", "a:b"),
    *("${a}", "{each}", os.fsdecode(b"bad\xff"), "a" * 255, "a" * 300, "a" * 120 + "/" + "b" * 120),
]


def choose(draw, *choices):
    return draw(st.sampled_from(choices))


# Models


def pretrained(folder):
    settings = {"base": str(folder), "documents": [{"path": "/none"}], "max_tokens": 8}
    network, tokenizer = start_network(PretrainSettings.model_validate(settings), Cache(folder))
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    return lambda: network.eval()(ids).prediction_logits.tolist()


def encoder(folder):
    return partial(SentenceEncoder.load(folder).encode, TEXTS, precision="fp32")


def pair_scorer(folder):
    return partial(load_scorer(folder).predict, PAIRS, precision="fp32")


MODELS = {
    "student": encoder,
    "teacher": encoder,
    "cross-encoder": pair_scorer,
    "poly-encoder": pair_scorer,
    "bilstm": lambda folder: partial(BiLstmEncoder.load(folder).encode, TEXTS),
    "pretraining": pretrained,
    "ner": lambda folder: partial(EntityTagger.load(folder), TEXTS, precision="fp32"),
    "qa": lambda folder: partial(QuestionAnswerer.load(folder), *PAIRS[0], precision="fp32"),
    "readmission": lambda folder: partial(OutcomeScorer.load(folder).score_texts, TEXTS, precision="fp32"),
}
"""By stage: opens the folder of its model, and returns the function that computes its output."""


def model(draw, stage, folder, results):
    original = results / stage / "latest/model"
    shutil.copytree(original, folder / "model")
    is_valid = draw(change_folder(folder / "model"))
    return partial(check_changed_model, MODELS[stage], original, folder / "model", is_valid)


def search_index(draw, folder, results):
    original = results / "index/latest/index"
    shutil.copytree(original, folder / "index")
    is_valid = draw(change_folder(folder / "index"))
    student = results / "student/latest/model"

    def opened(path):
        searcher = open_index(str(student), path)
        return lambda: searcher.search(TEXTS[:1], 3, precision="fp32")

    return partial(check_changed_model, opened, original, folder / "index", is_valid)


def graph(draw, folder, results):
    """A model exported to ONNX, of which one file is gone or damaged."""
    shutil.copytree(results / "graph/latest/model", folder / "model")
    file = draw(st.sampled_from(sorted(path for path in (folder / "model").rglob("*") if path.is_file())))
    content = draw(changed_bytes(file.read_bytes()))
    file.unlink()
    if not draw(chance(5)):
        file.write_bytes(content)
    return lambda: SentenceEncoder.load(folder / "model", backend="onnx").encode(SENTENCES, precision="fp32")


# Recipes


def toml(value):
    """A JSON value as TOML; null, which it does not have, as a text."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(str(key))} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value) if value is not None else '"null"'


def toml_file(tables):
    return "".join(f"{toml(key)} = {toml(value)}\n" for key, value in tables.items())


def table_of(stage, results):
    """The table of a stage, with paths in place of the outputs of others."""
    (step,) = (step for step in read_recipe(str(RECIPE), REGISTRY).steps if step.name == stage)
    text = json.dumps({"uses": step.stage.kind, **step.settings.model_dump(exclude_unset=True)}, default=str)
    return json.loads(re.sub(r'"@([\w-]+)/?', lambda other: f'"{results / other[1] / "latest"}/', text))


def run_text(text, folder):
    """Plans and runs a recipe; it is stopped after some seconds of work, as one with 100 million epochs has to be."""
    (folder / "recipe.toml").write_text(text, encoding="utf-8", errors="replace")
    recipe = read_recipe(str(folder / "recipe.toml"), REGISTRY)
    signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.setitimer(signal.ITIMER_PROF, STOP_SECONDS)
    run(recipe, RunOptions(runs=folder / "runs"))


def stage_settings(draw, folder, results):
    stage = draw(st.sampled_from([step.name for step in read_recipe(str(RECIPE), REGISTRY).steps]))
    table = table_of(stage, results)
    uses = table.pop("uses")
    value, _ = draw(changed(table))
    tables = {"name": "fuzz", stage: {"uses": uses, **value} if isinstance(value, dict) else value}
    if draw(chance(10)):
        tables["seed"] = draw(VALUES)
    if draw(chance(10)):
        tables, _ = draw(changed(tables))
    return partial(run_text, toml_file(tables if isinstance(tables, dict) else {"x": 1}), folder)


def stage_table(draw, folder, results):
    stage, path = draw(st.sampled_from(sorted(TABLES.items())))
    original = results / path.replace("/", "/latest/")
    copy = folder / original.name
    copy.write_bytes(draw(changed_bytes(original.read_bytes())))
    text = toml_file({"name": "fuzz", stage: table_of(stage, results)})
    return partial(run_text, text.replace(str(original), str(copy)), folder)


def recipe(draw, folder, results):  # noqa: ARG001
    """A recipe that grows, goes round, or goes deep."""
    count, many = choose(draw, 3, 20, 60, 500), json.dumps([f"t{n}" for n in range(choose(draw, 2, 50, 300))])
    offset, others = draw(st.integers(-2, 2)), ", ".join(f"t{n} = {n}" for n in range(count))
    start = "[s]\nuses = 'samples.write'\n"
    texts = [
        "[vars]\na0 = 'xx'\n" + "".join(f"a{n} = '${{a{n - 1}}}${{a{n - 1}}}'\n" for n in range(1, count)),
        "[vars]\na0 = ['x']\n" + "".join(f"a{n} = ['${{a{n - 1}}}', '${{a{n - 1}}}']\n" for n in range(1, count)),
        "".join(f"[s{n}]\nuses = 'samples.write'\nx = '@s{n + offset}'\n" for n in range(count)),
        "".join(f"[s{n}]\nuses = 'bertrelay.encode'\nmodel = '@s{n + 1}'\n" for n in range(count * 4)),
        "[s]\nuses = 'students.evaluate'\nmodel = '/'\n"
        f"parallel = [{{ path = '{{language}}', others = {{ {others} }}, languages = {many} }}]\n",
        f"{start}x = {'[' * count}{']' * count}\n",
        f"{start}x = {'{a = ' * count}1{'}' * count}\n",
    ]
    text = choose(draw, *texts)
    content = (f"{text}{start}x = '${{a2}}'\n" if text.startswith("[vars]") else text).encode()
    (folder / "r.toml").write_bytes(content if draw(st.booleans()) else draw(changed_bytes(content)))
    override = choose(draw, "vars=1", "vars.a=1", "s=1", "s.uses=1", "seeds=[]", "=", "", "s.x.y.z=1", "a" * 5_000)
    overrides = [override] if draw(chance(3)) else []

    def plan():
        runs = RunOptions(runs=folder / "runs")
        make_plan(read_recipe(str(folder / "r.toml"), REGISTRY, overrides), runs, Digests())

    return plan


# Files of users


def tmx(draw):
    text = choose(draw, "A dog.", "<ph>%s</ph> x", "a &lt;b&gt;")
    codes = draw(st.lists(st.sampled_from(["en", "de", "fr"]), min_size=1, max_size=3)) * choose(draw, 1, 300)
    unit = "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code in codes)
    return f"<tmx><body>{f'<tu>{unit}</tu>' * draw(st.integers(1, 4))}</body></tmx>"


def xliff(draw):
    unit = "<trans-unit><source>A dog.</source><target state='final'>Ein <g>Hund</g>.</target></trans-unit>"
    units = unit * draw(st.integers(1, 9))
    return f"<xliff><file source-language='en' target-language='de'>{units}</file></xliff>"


def po(draw):
    head = 'msgid ""\nmsgstr "Language: de\\nContent-Type: text/plain; charset=UTF-8\\n"\n'
    head += '"Plural-Forms: nplurals=2; plural=n!=1;\\n"\n'
    entry = '\nmsgid "A %s"\nmsgid_plural "%d dogs"\nmsgstr[0] "Ein Hund"\nmsgstr[1] "%d Hunde"\n'
    return head + (entry + '\n#, fuzzy\nmsgid "x"\nmsgstr "y"\n') * draw(st.integers(1, 5))


def lines(draw):
    return "".join(f"{choose(draw, *SENTENCES)}\t{choose(draw, *SENTENCES)}\n" for _ in range(9))


def translations(draw, folder, results):  # noqa: ARG001
    """A translation file, or an archive of some, with damage in it or around it."""
    name, write = choose(draw, ("a.tmx", tmx), ("a.xlf", xliff), ("de.po", po), ("en-de.tsv", lines))
    content = write(draw).encode()
    content = content if draw(chance(5)) else draw(changed_bytes(content))
    if draw(chance(3)):
        name, content = f"{name}.gz", draw(changed_bytes(gzip.compress(content)))
    if draw(chance(3)):
        packed = io.BytesIO()
        method = choose(draw, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
        with zipfile.ZipFile(packed, "w", method) as archive:
            archive.writestr(name, content)
        name, content = "a.zip", draw(changed_bytes(packed.getvalue()))
    (folder / name).write_bytes(content)
    options = {"tags": choose(draw, "strip", "skip"), "placeholders": choose(draw, "keep", "skip")}
    source = {"path": str(folder / name), "languages": ["de"], **options}
    return lambda: list(read_translation_files(TranslationFiles.model_validate(source), None))


def parquet(draw, folder, results):  # noqa: ARG001
    """A Parquet file of odd types, text that is no text, or damaged bytes, read as a table or as a dataset."""
    raw = pa.array([b"A dog.", b"caf\xe9", None], pa.binary())
    texts = [
        pa.array(["A dog.", "", None]),
        pa.array(["A dog.", "b", "c"]),
        pa.Array.from_buffers(pa.string(), 3, raw.buffers()),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array([{"text": None}, None, {"text": "x"}]),
        pa.array([["a"], [], None]),
        pa.array([1.5, None, 2]),
    ]
    names = draw(st.lists(st.sampled_from(["text", "meta.text", "row", "vector", "é", ""]), min_size=1, max_size=4))
    table = pa.table([choose(draw, *texts) for _ in names], names=names)
    path = folder / "a.parquet"
    pq.write_table(table, path, compression=choose(draw, "none", "snappy", "zstd"), store_schema=False)
    if draw(st.booleans()):
        path.write_bytes(path.read_bytes().replace(b"text", choose(draw, b"te\xfft", b"\0\0\0\0")))
    if draw(st.booleans()):
        path.write_bytes(draw(changed_bytes(path.read_bytes())))
    column, more = choose(draw, "text", 0, "meta.text"), choose(draw, [], ["meta.text"])
    if draw(st.booleans()):
        return lambda: list(rows(Table.model_validate({"path": str(path)}), [column]))
    return lambda: list(ParquetInput(folder, ["text"], more, ["vector"]).records())


def command(words):
    """Runs a command as a user does. Raises what the command line calls unforeseen as an error of its own."""
    log = io.StringIO()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(log):
            main(list(map(str, words)))
    except SystemExit as ended:
        if "unforeseen" in log.getvalue() or ended.code not in (0, 1, 2):
            raise RuntimeError(f"{words[0]}: {log.getvalue()[-200:]}") from None


def odd_names(draw, folder, results):
    """A command with the name of an input, an output or a folder that is no usual one."""
    model, odd, english = results / "student/latest/model", folder / choose(draw, *NAMES), folder / "lines.txt"
    english.write_text("A dog runs.\nTwo children play.\n")
    with suppress(OSError):  # a name that the file system refuses
        Path(f"{odd}.txt").write_text("A dog runs.\n")
    words = choose(
        draw,
        ["encode", model, f"{odd}.txt", folder / "o.npy"],
        ["encode", model, english, f"{odd}.npy"],
        ["encode", model, english, f"{odd}.parquet"],
        ["encode", model, f"{folder}/", f"{odd}/"],
        ["search", model, f"{odd}.txt", "--query", "dog", "--index", folder / "index"],
        ["search", model, english, "--query", "dog", "--index", odd],
        ["mine", model, english, f"{odd}.txt", folder / "o.tsv"],
        ["mine", model, english, english, f"{odd}.tsv"],
        ["shrink", model, english, odd],
        ["plan", f"{odd}.toml"],
        ["plan", "quickstart", "--runs", odd],
        ["similarity", model, "--files", english, f"{odd}.txt", "--csv", f"{odd}.csv"],
    )
    return partial(command, words)


def sizes(draw, folder, results):
    """An input far larger, longer, wider or deeper than any is meant to be, or without an end."""
    model, size = results / "student/latest/model", choose(draw, 10_000, 1 << 20, 70 << 20)
    name, write = choose(
        draw,
        ("a.txt", lambda: b"x" * size),
        ("b.txt", lambda: b"x y " * (size // 4)),
        ("c.txt", lambda: b"\n" * min(size, 1 << 17)),
        ("d.jsonl", lambda: b'{"text": "' + b"x" * size + b'"}\n'),
        ("e.jsonl", lambda: b'{"text": ' + b"[" * min(size, 1 << 20) + b"}\n"),
        ("f.jsonl", lambda: b'{"a":' * 900 + b"1" + b"}" * 900),
        ("g.csv", lambda: b"text," * min(size // 5, 20_000) + b"x\n"),
        ("h.csv", lambda: b'text\n"' + b"x" * size),
        ("i.tsv", lambda: b"text\n" + b"\t" * min(size, 1 << 20)),
        ("j.txt.gz", lambda: gzip.compress(b"x" * size, 1)),
    )
    (folder / name).write_bytes(write())
    os.mkfifo(pipe := folder / "pipe.txt")
    source = choose(draw, folder / name, folder / name, folder / name, pipe, "/dev/zero", "/dev/null")
    words = choose(draw, ["encode", model, source, folder / "o.npy"], ["similarity", model, "--files", source, source])
    return partial(command, words)


CASES = {f"model of {stage}": (partial(model, stage=stage), 50) for stage in MODELS} | {
    "index": (search_index, 50),
    "graph": (graph, 50),
    "settings": (stage_settings, 200),
    "table": (stage_table, 100),
    "recipe": (recipe, 50),
    "translations": (translations, 50),
    "parquet": (parquet, 50),
    "odd names": (odd_names, 50),
    "sizes": (sizes, 50),
}
"""What is changed: the function that draws a case and writes it, and how many. It returns the work to be done on it."""


# The frame


def end_of(work):
    """How a work ended, and what is wrong with that; empty where nothing is."""
    try:
        work()
    except Stopped:
        return "stopped", ""
    except BertRelayError:
        return "clear error", ""
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return "fault", f"{type(error).__name__}: {str(error)[:150]} ({frame.filename}:{frame.lineno})"
    return "harmless", ""


def end_in_fork(work):
    """As `end_of`, in a process of its own with bounded memory, which is killed if it hangs."""
    receiving, sending = Pipe(duplex=False)

    def run_case():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        sending.send(end_of(work))

    case = get_context("fork").Process(target=run_case)
    case.start()
    sending.close()
    try:
        return receiving.recv() if receiving.poll(HANG_SECONDS) else ("fault", "it hangs")
    except EOFError:
        return "fault", "the process died"
    finally:
        case.kill()
        case.join()


def stamps(folder):
    """Size and time of every file below."""
    status = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (found.st_size, found.st_mtime_ns) for path, found in status.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of every stage. Loads what cases need, which then counts in no case's time."""
    runs = tmp_path_factory.mktemp("runs")
    subprocess.run([sys.executable, "-P", "-m", "pipelines", "run", RECIPE, "--runs", runs], check=True)
    for name in (*(stage.run.partition(":")[0] for stage in REGISTRY), *SLOW_IMPORTS):
        import_module(name)
    return runs / "every-stage"


@pytest.mark.slow
@pytest.mark.promise("A malformed model, setting, table or input is a clear error or harmless", about="errors")
@pytest.mark.parametrize("case", CASES)
def test_malformed_input_is_a_clear_error_or_harmless(case, results, tmp_path):
    write, examples = CASES[case]
    folder, before, ends = tmp_path / "outer/inner", stamps(results), Counter()  # "../.." leads to nothing of others

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def change_and_use(data):
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
        end, fault = end_in_fork(write(data.draw, folder=folder, results=results))
        ends[end] += 1
        assert not fault
        assert stamps(results) == before, "a finished result was changed"

    change_and_use()
    print(f"{case}: {', '.join(f'{count} {end}' for end, count in ends.items())}")


def test_tables_are_written_as_toml_reads_them():
    value = {"a": [1, {"b": 'x"\n\0'}], "c d": {"e": True, "f": 1e300}}
    assert tomllib.loads(f"value = {toml(value)}") == {"value": value}
