import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def write_recipe(tmp_path):
    def write(text, name="relay.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def start(tmp_path):
    """Starts `bertrelay` with the light stages; nothing started lives on."""
    started = []

    def start_one(*arguments, **environment):
        process = subprocess.Popen(
            [sys.executable, str(HERE / "light_bertrelay.py"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def bertrelay(start):
    """Runs `bertrelay` with the light stages to its end: (exit code, standard output, standard error)."""

    def run(*arguments, **environment):
        process = start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    return run


WORDS = ["[PAD]", "[UNK]", "a", "dog", "barks", "ein", "hund", "bellt", "개가", "짖는다", "."]


@pytest.fixture(scope="session")
def encoder():
    """A random encoder that knows a few words of three languages."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    from bertrelay.encoder import SentenceEncoder
    from bertrelay.layout import Prompts

    rules = Tokenizer(models.WordLevel({word: row for row, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rules.normalizer = normalizers.Lowercase()
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    network = BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, initializer_range=0.5, **sizes))
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


@pytest.fixture
def cut_short(monkeypatch):
    """Does some work here that ends where it stands after its first shard, as a kill ends it."""
    from bertrelay.data.shards import Shards

    write = Shards.write

    def write_and_end(self, number, lines):
        write(self, number, lines)
        raise KeyboardInterrupt

    def run(work, *arguments):
        with monkeypatch.context() as cutting, pytest.raises(KeyboardInterrupt):
            cutting.setattr(Shards, "write", write_and_end)
            work(*arguments)

    return run


ALL_WRONG = """
import contextlib, io, json, sys
from pipelines.cli import main
told = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as words:
        try:
            main(arguments)
        except SystemExit as ended:
            told.append([ended.code, words.getvalue()])
print(json.dumps([told, "torch" in sys.modules]))
"""


@pytest.fixture
def refused(tmp_path):
    """Asks one process for everything in turn: the exit code and standard error of each; it must not load torch."""

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
    """Runs a command here: its standard output; its error is raised, and what it told is on standard error."""
    from typer.testing import CliRunner

    from pipelines.cli.app import app

    def run(*arguments, stdin=None):
        result = CliRunner().invoke(app, list(map(str, arguments)), input=stdin, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        print(result.stderr, end="", file=sys.stderr)
        return result.stdout

    return run
