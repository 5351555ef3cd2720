"""Malformed models, recipes and tables: does each end in a clear error, at once and with nothing lost?

    python -m benchmarks.fuzz --cases 2400 --workers 2

First `fuzz.toml` is run, which holds every stage in small. Each case then changes one thing in a copy of a model that a
stage wrote (a JSON value, a file, a tensor), in a stage's table, or in the bytes of a file that a stage reads, and
loads and uses the model, or plans and runs the recipe. After these come `--inputs` cases of `fuzz_inputs.py`, which
read what users give: translation files, Parquet, graphs, recipes, odd names and sizes; their numbers begin at
1,000,000. The same seed gives the same cases. A case is one of these:

clear error   RequestError or WorkError; for a model it must be raised while loading, else the case is a loss
stopped       a recipe that was stopped after some seconds of work, as one with 100 million epochs is
harmless      the output is that of the unchanged model, the change was logged, or made another valid model (a value of
              the same type); a recipe that runs to its end
unforeseen    any other exception, and a process that died: of a signal, or of more memory than 10 GiB
hang          no end after two minutes
loss          another output without a warning, though a value has another type or a file is gone or damaged; an input
              or a finished result that was changed

The last three must be 0; their cases are listed, and `--only NUMBER` repeats one.
"""

import json
import math
import os
import re
import resource
import shutil
import signal
import traceback
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr
from functools import partial
from importlib import import_module
from io import StringIO
from multiprocessing import Pipe, get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from benchmarks.fuzz_inputs import SURFACES
from benchmarks.harness import Claim, main
from bertrelay.cache import Cache
from bertrelay.errors import BertRelayError, Stopped
from bertrelay.fingerprint import Digests
from bertrelay.model.encoder import SentenceEncoder
from domain.biomedical.ner.predict import EntityTagger
from domain.biomedical.qa.predict import QuestionAnswerer
from domain.clinical.predict import OutcomeScorer
from domain.pretraining.network import start_network
from domain.pretraining.settings import PretrainSettings
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from pipelines.run.plan import RunOptions, make_plan
from pipelines.run.runner import run
from students.searching.index import open_index
from teachers.pairs.rerank import load_scorer
from teachers.sbert_paper.bilstm import BiLstmEncoder

FIRST_INPUT = 1_000_000
RECIPE = Path(__file__).with_suffix(".toml")
HANG_SECONDS, STOP_SECONDS, MEMORY_BYTES = 120, 6, 10 << 30  # the second of processor time
SLOW_IMPORTS = ("sklearn.manifold", "sklearn.model_selection", "sklearn.linear_model", "matplotlib.pyplot", "faiss")
BAD = {"unforeseen": "unforeseen", "hang": "hangs", "loss": "losses"}
COUNTED = {"clear error": "clear errors", "harmless": "harmless", "stopped": "stopped", **BAD}
TEXTS = ["A dog runs in the park.", "Two children play with a red ball.", "Nobody knows."]
PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]
VALUES: list[Any] = [None, True, False, 0, -1, 1, 3, 10**8, 10**12, 10**30, -(2**63), 2**70, 0.5, -0.5, 1e300, 1e-300]
VALUES += ["", "x", "../..", "/etc", "x" * 300, "\x1b[31m", "\x00", "é\u202e", [], [1], ["x"], [[]], {}, {"x": 1}]
VALUES += [[None] * 3, math.nan, math.inf]
INSERTED = [b"\0", b"\xff\xfe", b'"', b"\n", b"\r", b"[" * 100_000, b"\xef\xbb\xbf", b"9" * 5_000, b"\t" * 99]
TABLES = {
    "vectors": "samples/sts.dev.tsv",
    "qa-test": "articles/questions.test.json",
    "ner-test": "entities/entities.test.tsv",
    "tagged": "entities/entities.test.jsonl",
    "terms": "hospital/terms.csv",
}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


class Verdict(NamedTuple):
    """Of the kinds of cases, and a message."""

    kind: str
    message: str = ""


def change_value(value: Any, random: Random) -> tuple[Any, bool]:
    """`value` with one thing in it changed, at any depth, and whether it is a valid value of the same type."""
    keys = list(value if isinstance(value, dict) else range(len(value))) if isinstance(value, dict | list) else []
    if not keys or random.random() < 0.05:
        new = random.choice(VALUES)
        is_number = isinstance(value, float) and type(new) in (int, float) and math.isfinite(new)  # JSON has one kind
        return new, is_number or (not isinstance(value, float) and type(new) is type(value))
    key, copy = random.choice(keys), (dict(value) if isinstance(value, dict) else list(value))
    if random.random() < 0.15:
        del copy[key]
        return copy, False
    copy[key], is_alike = change_value(value[key], random)
    return copy, is_alike


def change_bytes(content: bytes, random: Random) -> bytes:
    """`content` cut, emptied, or with something inserted."""
    place, new = random.randrange(len(content) + 1), random.choice(INSERTED)
    inserted = [content[:place] + new + content[place:], new + content]
    return random.choice([b"", content[:place], *inserted, content[place:], b"null"])


def change_json(file: Path, random: Random) -> bool:
    """Changes one value in a JSON file, or its bytes; whether the new value is valid."""
    if random.random() < 0.2:
        file.write_bytes(change_bytes(file.read_bytes(), random))
        return False
    changed, is_alike = change_value(json.loads(file.read_text()), random)
    file.write_text(json.dumps(changed))
    return is_alike


def change_weights(file: Path, random: Random) -> None:
    """Changes the bytes of a file of weights, or its tensors."""
    if random.random() < 0.3:
        content = bytearray(file.read_bytes())
        place = random.randrange(8 + int.from_bytes(content[:8], "little"))  # of the header, which a reader can check
        content[place] ^= 1 << random.randrange(8)
        file.write_bytes(bytes(content) if random.random() < 0.5 else bytes(content[: random.randrange(len(content))]))
        return
    weights = load_file(file)
    name = random.choice(sorted(weights))
    tensor = weights.pop(name)
    of_other_layer = {name: tensor, name.replace(".0.", ".7.") + "_7" * (".0." not in name): tensor.clone()}
    of_other_shape = {name: tensor.new_zeros((*tensor.shape, 2))}
    copied = {name: tensor, f"{name}.copy": tensor.clone()}
    save_file(weights | random.choice([{}, {f"{name}x": tensor}, copied, of_other_shape, of_other_layer]), file)


def change_folder(folder: Path, random: Random) -> bool:
    """Changes one thing in a model's folder; whether it is still valid."""
    ignored = ("README.md", "distillation.json")
    file = random.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ignored))
    modules, chance = [path for path in folder.iterdir() if path.is_dir()], random.random()
    if chance < 0.11:
        file.unlink()
        if chance > 0.08:
            file.mkdir()
    elif chance < 0.14:
        shutil.copytree(random.choice(modules or [folder]), folder / random.choice(["4_Dense", "0_Transformer"]))
    elif chance < 0.17 and modules:
        random.choice(modules).rename(folder / "9_Other")
    elif file.suffix == ".json":
        return change_json(file, random)
    elif file.suffix == ".safetensors":
        change_weights(file, random)
    else:
        file.write_bytes(change_bytes(file.read_bytes(), random))
    return False


def pretrained(folder: Path) -> Callable[[], Any]:
    settings = {"base": str(folder), "documents": [{"path": "/none"}], "max_tokens": 8}
    network, tokenizer = start_network(PretrainSettings.model_validate(settings), Cache(folder))
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    return lambda: network.eval()(ids).prediction_logits.tolist()


MODELS: dict[str, Callable[[Path], Callable[[], Any]]] = {
    "student": lambda folder: partial(SentenceEncoder.load(folder).encode, TEXTS, precision="fp32"),
    "teacher": lambda folder: partial(SentenceEncoder.load(folder).encode, TEXTS, precision="fp32"),
    "cross-encoder": lambda folder: partial(load_scorer(folder).predict, PAIRS, precision="fp32"),
    "poly-encoder": lambda folder: partial(load_scorer(folder).predict, PAIRS, precision="fp32"),
    "bilstm": lambda folder: partial(BiLstmEncoder.load(folder).encode, TEXTS),
    "pretraining": pretrained,
    "ner": lambda folder: partial(EntityTagger.load(folder), TEXTS, precision="fp32"),
    "qa": lambda folder: partial(QuestionAnswerer.load(folder), *PAIRS[0], precision="fp32"),
    "readmission": lambda folder: partial(OutcomeScorer.load(folder).score_texts, TEXTS, precision="fp32"),
}
"""By stage of the recipe: a model of a folder, loaded, as a function to its output."""


class Bench:
    """The models, tables and results that the recipe wrote, and cases of them."""

    def __init__(self, results: Path, scratch: Path) -> None:
        self.results = results
        self.scratch = scratch / "outer" / "inner"  # where "../.." leads to nothing of others
        self.steps = {step.name: step for step in read_recipe(str(RECIPE), REGISTRY).steps}

    def judge(self, number: int, seed: int) -> Verdict:
        random, log = Random(f"{seed}/{number}"), StringIO()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        judged: Callable[[Random, StringIO], Verdict] = self._input
        if number < FIRST_INPUT:
            judged = self._table if number % 10 == 0 else self._recipe if number % 5 == 0 else self._model
        with redirect_stderr(log):
            try:
                return judged(random, log)
            except (Stopped, BertRelayError) as error:
                return Verdict("stopped" if isinstance(error, Stopped) else "clear error", str(error))
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{where.filename}:{where.lineno}"
                return Verdict("unforeseen", f"{type(error).__name__}: {str(error)[:150]} ({place})")

    def _input(self, random: Random, _: StringIO) -> Verdict:
        before = stamps(self.results)
        try:
            random.choice(SURFACES)(self.scratch, random, self.results)
        finally:
            if stamps(self.results) != before:
                return Verdict("loss", "an input or a finished result was changed")  # noqa: B012
        return Verdict("harmless")

    def _model(self, random: Random, log: StringIO) -> Verdict:
        loaders = {**MODELS, "index": self._index}
        name = random.choice([name for name in loaders if (self.results / name).is_dir()])
        original = self.results / name / "latest" / ("index" if name == "index" else "model")
        expected = loaders[name](original)()
        folder = self.scratch / "model"
        shutil.copytree(original, folder)
        log.truncate(0)
        is_valid = change_folder(folder, random)
        use = loaders[name](folder)
        try:
            output = use()
        except BertRelayError as error:
            return Verdict("loss", f"{name}: an error not while loading: {error}")
        if is_alike(output, expected) or is_valid or "warning" in log.getvalue():
            return Verdict("harmless")
        return Verdict("loss", f"{name}: another output, and no warning")

    def _index(self, folder: Path) -> Callable[[], Any]:
        index = open_index(str(self.results / "student" / "latest" / "model"), folder)
        return lambda: index.search(TEXTS[:1], 3, precision="fp32")

    def _recipe(self, random: Random, _: StringIO) -> Verdict:
        name = random.choice(list(self.steps))
        table = change_value(self._settings(name), random)[0]
        tables = {"name": "fuzz", **({"seed": random.choice(VALUES)} if random.random() < 0.1 else {})}
        tables[name] = {"uses": self.steps[name].stage.kind, **table} if isinstance(table, dict) else table
        if random.random() < 0.1:
            tables = change_value(tables, random)[0]
        text = toml_file(tables if isinstance(tables, dict) else {"x": 1})
        if random.random() < 0.05:
            text = change_bytes(text.encode(), random).decode("utf-8", "replace")
        return self._run(text)

    def _table(self, random: Random, _: StringIO) -> Verdict:
        name, path = random.choice(list(TABLES.items()))
        original = self.results / path.replace("/", "/latest/")
        changed = self.scratch / original.name
        changed.write_bytes(change_bytes(original.read_bytes(), random))
        text = toml_file({"name": "fuzz", name: {"uses": self.steps[name].stage.kind, **self._settings(name)}})
        return self._run(text.replace(str(original), str(changed)))

    def _settings(self, name: str) -> Any:
        """A stage's settings with the outputs of other stages as paths."""
        text = json.dumps(self.steps[name].settings.model_dump(exclude_unset=True), default=str)
        return json.loads(re.sub(r'"@([\w-]+)/?', lambda stage: f'"{self.results / stage[1] / "latest"}/', text))

    def _run(self, text: str) -> Verdict:
        recipe_file, runs = self.scratch / "fuzz.toml", self.scratch / "runs"
        recipe_file.write_text(text, encoding="utf-8", errors="replace")
        recipe = read_recipe(str(recipe_file), REGISTRY)
        make_plan(recipe, RunOptions(runs=runs), Digests())
        before = stamps(self.results)
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_PROF, STOP_SECONDS)
        try:
            run(recipe, RunOptions(runs=runs))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            if stamps(self.results) != before:
                return Verdict("loss", "an input or a finished result was changed")  # noqa: B012
        return Verdict("harmless")


def toml_file(tables: dict[str, Any]) -> str:
    return "".join(f"{toml(key)} = {toml(value)}\n" for key, value in tables.items())


def toml(value: Any) -> str:
    """`value` as TOML; null, which it does not have, as a text."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(str(key))} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value) if value is not None else '"null"'


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file below."""
    found = {str(path): path.stat() for path in folder.rglob("*") if path.is_file()}
    return {name: (each.st_size, each.st_mtime_ns) for name, each in found.items()}


def is_alike(*outputs: Any) -> bool:
    """Whether two outputs differ in the last digits of their numbers alone, as sums do when memory lies elsewhere."""
    one, other = (repr(output.tolist() if hasattr(output, "tolist") else output) for output in outputs)
    numbers, others = (np.array(NUMBER.findall(text), float) for text in (one, other))
    return NUMBER.sub("", one) == NUMBER.sub("", other) and np.allclose(numbers, others, rtol=1e-4, atol=1e-5)


def prepare() -> None:
    """A worker, whose imports its cases share: they count in no case's time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    torch.set_num_threads(1)  # no other thread may run when a case is forked off
    for name in (*(stage.run.partition(":")[0] for stage in REGISTRY), *SLOW_IMPORTS):
        import_module(name)


def judge(results: Path, scratch: Path, seed: int, number: int) -> Verdict:
    """The verdict of a case in a fork of this worker: one that hangs is killed, one that dies takes nothing along."""
    receiving, sending = Pipe(duplex=False)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        sending.send(Bench(results, scratch / str(number)).judge(number, seed))

    case = get_context("fork").Process(target=work)
    case.start()
    sending.close()
    try:
        return receiving.recv() if receiving.poll(HANG_SECONDS) else Verdict("hang")
    except EOFError:
        return Verdict("unforeseen", "the process died")
    finally:
        case.kill()
        case.join()
        shutil.rmtree(scratch / str(number), ignore_errors=True)


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    runs = (options.folder or options.scratch).resolve() / "runs"
    with redirect_stderr(StringIO()):
        run(read_recipe(str(RECIPE), REGISTRY), RunOptions(runs=runs))
    numbers = [*range(options.cases), *range(FIRST_INPUT, FIRST_INPUT + options.inputs)]
    numbers = numbers if options.only is None else [options.only]
    with ProcessPoolExecutor(options.workers, get_context("spawn"), prepare) as pool:
        verdicts = list(pool.map(partial(judge, runs / "fuzz", options.scratch, options.seed), numbers))
    for number, verdict in zip(numbers, verdicts, strict=True):
        if verdict.kind in BAD or options.only is not None:
            print(f"case {number}: {verdict.kind}: {verdict.message}")
    counts = Counter(verdict.kind for verdict in verdicts)
    print(f"cases {len(verdicts):,}", *(f"{word} {counts[kind]:,}" for kind, word in COUNTED.items()), sep=", ")
    claims = [Claim(f"no {word}", f"{counts[kind]:,}", not counts[kind]) for kind, word in BAD.items()]
    return claims, {"counts": counts}


if __name__ == "__main__":
    main(measure, __doc__, cases=2_400, inputs=300, workers=2, threads=1, seed=0, only=int, folder=Path)
