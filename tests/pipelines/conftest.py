import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from forked import CONTEXT, kill, run_command

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # light_stages are imported by name, as real stages are


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """A run sets variables of the hub's client; they end with the test."""
    monkeypatch.setattr(os, "environ", os.environ)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster on this machine, of one core and so of one worker, which takes seconds to start."""
    ray = pytest.importorskip("ray")
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture
def write_recipe(tmp_path):
    def write(text, name="lesson.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The folder of runs, whose reports are empty."""
    monkeypatch.setitem(sys.modules, "pipelines.report.page", import_module("light_stages").page)
    return tmp_path / "runs"


@pytest.fixture
def go(runs):
    """Runs a recipe of light stages here: what it did."""
    from pipelines.recipe.steps import read_recipe
    from pipelines.run.plan import RunOptions
    from pipelines.run.runner import run

    def run_here(path, *overrides, **options):
        light = import_module("light_stages")
        recipe = read_recipe(path, light.REGISTRY, overrides)
        return run(recipe, RunOptions(runs=runs, **options), light.page.write_report)

    return run_here


@pytest.fixture
def start_python(tmp_path):
    """Starts Python with arguments, on one thread of the CPU, in `tmp_path`; nothing started lives on.

    stdin: a file.
    """
    started = []

    def start_one(*arguments, stdin=os.devnull):
        with Path(stdin).open("rb") as given:
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
            )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start(start_python):
    """Starts `bertrelay` with the light stages."""
    return partial(start_python, HERE / "light_bertrelay.py")


@pytest.fixture
def start_forked(tmp_path, tmp_path_factory):
    """Starts `bertrelay` in `tmp_path`, forked: the process, and a function that reads what it prints, out and err.
    Nothing started lives on.

    constants: of ours, by full names, and their values there.
    """
    printed, started = [tmp_path_factory.mktemp("printed") / name for name in ("out", "err")], []
    for path in printed:
        path.touch()

    def start_one(*words, constants=None):
        given = (list(map(str, words)), tmp_path, printed, constants or {})
        started.append(CONTEXT.Process(target=run_command, args=given))
        started[-1].start()
        return started[-1], lambda: [path.read_text("utf-8") for path in printed]

    yield start_one
    kill(started)


@pytest.fixture
def bertrelay(runs, tmp_path, monkeypatch, capfd):  # noqa: ARG001
    """Calls `bertrelay` with the light stages, here in `tmp_path`: (exit code, standard output, standard error)."""
    from pipelines.cli import main

    monkeypatch.setattr("pipelines.registry.REGISTRY", import_module("light_stages").REGISTRY)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, arguments)))
        return ended.value.code, *capfd.readouterr()

    return run


WORDS = ["a", "dog", "barks", "ein", "hund", "bellt", "개가", "짖는다", "."]
BIOMEDICAL = ["gout", "fever", "mice", "had", "the", "of", "BRCA1", "p53", "in", "rats", "who", *"().,<>&"]
CLINICAL = ["the", "wound", "is", "dry", "heart", "failing", "again", "slept", "well", ".", ":", "plan", "qzx"]


def word_tokenizer(words, framed=True, lowercase=True):
    """Splits at white space and punctuation. framed: with [CLS] and [SEP] around texts and pairs."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["pad", "unk", "cls", "sep", "mask"] if framed else ["pad", "unk"]
    named = {f"{name}_token": f"[{name.upper()}]" for name in special}
    rules = Tokenizer(
        models.WordLevel({word: row for row, word in enumerate([*named.values(), *words])}, unk_token="[UNK]")
    )
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if framed:
        rules.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    if lowercase:
        rules.normalizer = normalizers.Lowercase()
    return PreTrainedTokenizerFast(tokenizer_object=rules, **named)


def tiny_bert(tokenizer, positions=64, **settings):
    from transformers import BertConfig

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return BertConfig(vocab_size=len(tokenizer), max_position_embeddings=positions, **sizes, **settings)


def randomized(network, seed):
    """`network` with weights so large that what it computes depends on words and on their neighbours."""
    import torch

    torch.manual_seed(seed)
    for weight in network.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.7)
    return network.eval()


@pytest.fixture(scope="session")
def randomize():
    return randomized


@pytest.fixture(scope="session")
def tagger(tmp_path_factory):
    """The folder of a random model that tags diseases and genes."""
    from transformers import AutoModelForTokenClassification

    from domain.biomedical.ner.decoding import LabelSet
    from domain.biomedical.ner.model import EntityModel, TokenClassifier, save_model

    labels, tokenizer = LabelSet.of_types(["Disease", "Gene"]), word_tokenizer(BIOMEDICAL, lowercase=False)
    tags = {"id2label": dict(enumerate(labels.tags)), "label2id": dict(labels.number)}
    network = TokenClassifier(AutoModelForTokenClassification.from_config(tiny_bert(tokenizer, **tags)))
    folder = tmp_path_factory.mktemp("tagger")
    save_model(EntityModel(randomized(network, 26), tokenizer, labels, max_tokens=64, overlap=16), folder)
    return folder


@pytest.fixture(scope="session")
def linker(encoder, tmp_path_factory):
    """The folder of a linker of two concepts."""
    from domain.biomedical.linking.dictionary import Concept, Dictionary
    from domain.biomedical.linking.model import Linker

    concepts = [Concept(("D1",), ("gout",)), Concept(("D2",), ("fever", "hot mice"))]
    folder = tmp_path_factory.mktemp("linker")
    Linker.create(Dictionary.of(concepts, []), encoder, precision="fp32").save(folder)
    return folder


@pytest.fixture(scope="session")
def extractor(tagger, tmp_path_factory):
    """The folder of a random model that relates all diseases and genes of one document."""
    from domain.biomedical.relations.data import Scheme
    from domain.biomedical.relations.model import save_model, start_model
    from domain.biomedical.relations.settings import RelationSettings

    settings = RelationSettings(base=str(tagger), train=[{"path": "none.jsonl"}], max_tokens=48)
    pairs = frozenset({(first, second) for first in ("Disease", "Gene") for second in ("Disease", "Gene")})
    model = start_model(settings, Scheme(("causes",), pairs, "mention", "document", False), novelty=False)
    folder = tmp_path_factory.mktemp("extractor")
    save_model(replace(model, threshold=0.0), folder)
    return folder


@pytest.fixture(scope="session")
def save_answerer(tmp_path_factory):
    """Saves a random model that answers from windows of 48 tokens, and gives its folder."""
    from transformers import AutoModelForQuestionAnswering

    from domain.biomedical.qa.model import AnswerFinder, AnswerModel, save_model

    def save(**settings):
        tokenizer, folder = word_tokenizer(BIOMEDICAL, lowercase=False), tmp_path_factory.mktemp("answerer")
        network = randomized(AutoModelForQuestionAnswering.from_config(tiny_bert(tokenizer)), 11)
        save_model(AnswerModel(AnswerFinder(network), tokenizer, 48, 32, 8, **settings), folder)
        return folder

    return save


@pytest.fixture(scope="session")
def answerer(save_answerer):
    return save_answerer()


@pytest.fixture(scope="session")
def readmission_model(tmp_path_factory):
    """The folder of a random model of readmissions that reads eight tokens at a time."""
    from transformers import BertModel

    from bertrelay.model.network import save_backbone
    from bertrelay.model.tokenizer import save_tokenizer
    from domain.clinical.model import save_model, start_model
    from domain.clinical.settings import ModelDescription

    folder, tokenizer = tmp_path_factory.mktemp("readmission"), word_tokenizer(CLINICAL)
    save_backbone(randomized(BertModel(tiny_bert(tokenizer, positions=32)), 3), folder)
    save_tokenizer(tokenizer, folder, 32, has_types=True)
    settings = {"chunking": {"max_tokens": 8}, "threshold": 0.4}
    started = start_model(folder, ModelDescription.model_validate(settings))
    started.network.network.classifier.weight.data *= 50
    save_model(started, folder / "model")
    return folder / "model"


@pytest.fixture(scope="session")
def cross_encoder(model, tmp_path_factory):
    """The folder of a random cross-encoder."""
    from teachers.pairs.model import start_cross_encoder

    folder = tmp_path_factory.mktemp("cross-encoder")
    randomized(start_cross_encoder(model), 5).save(folder)
    return folder


@pytest.fixture(scope="session")
def encoder():
    """A random encoder that knows a few words of three languages."""
    import torch
    from transformers import BertConfig, BertModel

    from bertrelay.model.encoder import SentenceEncoder
    from bertrelay.model.layout import Prompts

    tokenizer = word_tokenizer(WORDS, framed=False)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    network = BertModel(
        BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, initializer_range=0.5, **sizes)
    )
    return SentenceEncoder(network, tokenizer, prompts=Prompts({"query": "dog "})).eval()


@pytest.fixture(scope="session")
def model(encoder, tmp_path_factory):
    """The folder of `encoder`."""
    folder = tmp_path_factory.mktemp("model")
    encoder.save(folder)
    return str(folder)


@pytest.fixture
def vectors(encoder):
    """The vectors of sentences, each computed alone."""
    import torch

    def of(sentences):
        with torch.inference_mode():
            alone = [torch.tensor([ids]) for ids in encoder.tokenize(sentences)]
            return torch.cat([encoder(ids, torch.ones_like(ids)) for ids in alone]).numpy()

    return of


@pytest.fixture
def write_lines(tmp_path):
    def write(name, lines):
        path = tmp_path / name
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write


ALL_WRONG = """
import contextlib, io, json, sys
from pipelines.cli import main
results = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as words:
        try:
            main(arguments)
        except SystemExit as ended:
            results.append([ended.code, words.getvalue()])
print(json.dumps([results, "torch" in sys.modules]))
"""


@pytest.fixture
def refused(tmp_path):
    """Asks one process for everything in turn: the exit code and standard error of each."""

    def run(requests):
        given = json.dumps([list(map(str, arguments)) for arguments in requests])
        process = [sys.executable, "-c", ALL_WRONG, given]
        done = subprocess.run(process, capture_output=True, text=True, cwd=tmp_path, check=True)
        found, loaded_torch = json.loads(done.stdout)
        assert not loaded_torch
        return found

    return run


@pytest.fixture
def call():
    """Runs a command here: its standard output; its error is raised, and what it prints is on standard error."""
    from typer.testing import CliRunner

    from pipelines.cli.app import app

    def run(*arguments, stdin=None):
        result = CliRunner().invoke(app, list(map(str, arguments)), input=stdin, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        print(result.stderr, end="", file=sys.stderr)
        return result.stdout

    return run
