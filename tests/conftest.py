"""What the tests share: one thread, tiny random encoders, and the folders a stage runs in."""

import importlib
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.new import train_unigram, train_wordpiece
from bertrelay.process_group import ProcessGroup
from bertrelay.stage import StageContext

sys.path.append(str(Path(__file__).parent))  # published_networks, forked and others are imported by name

LIKE_ROBERTA = ("roberta", "xlm-roberta", "mpnet")
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 40}


def pytest_configure():
    """One thread, here and in the processes of tests: in networks so tiny, more of them only wait for one another.

    Signals act as usual, also where the tests were started in the background or under nohup.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def tiny_encoder():
    """`tiny_encoder("xlm-roberta", texts, layers=4, pooling=["cls"])`: random, and always the same for one seed.

    texts: what its vocabulary is trained on, or a tokenizer.
    """

    def make(kind, texts, layers=2, seed=0, sizes=None, **parts):
        tokenizer = texts
        if not isinstance(texts, PreTrainedTokenizerFast):
            tokenizer = (train_unigram if kind in LIKE_ROBERTA else train_wordpiece)(texts, 400, 32)
        given = {"vocab_size": len(tokenizer), "num_hidden_layers": layers, **SIZES, **(sizes or {})}
        config = AutoConfig.for_model(kind, pad_token_id=tokenizer.pad_token_id, **given)
        torch.manual_seed(seed)
        network = AutoModel.from_config(config)
        for weight in network.parameters():  # BERT starts so near to zero that all sentences look the same
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.3)
        return SentenceEncoder(network, tokenizer, **parts).eval()

    return make


@pytest.fixture
def evaluated_twice(monkeypatch):
    """`evaluated_twice("domain.x.train")`: the metrics at the end of each training of the module, by one process and by
    two that share the work, which here are threads.
    """

    def in_two(task):
        barrier, shares = Barrier(2, timeout=60), [None, None]

        def gather(value, process_group):
            barrier.wait()
            shares[process_group.rank] = value
            barrier.wait()
            return list(shares)

        monkeypatch.setattr("domain.pretraining.train.gather", gather)  # first, or its import would take the other one
        monkeypatch.setattr("bertrelay.process_group.gather", gather)
        with ThreadPoolExecutor(2) as both:
            first, second = both.map(lambda rank: task.evaluate(ProcessGroup(rank, 2)), range(2))
        assert first == second and all(share is not None for share in shares)
        return first

    def by_training(module):
        real, found = importlib.import_module(module).train, []

        def train(task, *arguments):
            metrics = real(task, *arguments)
            task.model.eval()
            found.append((task.evaluate(), in_two(task)))
            return metrics

        monkeypatch.setattr(f"{module}.train", train)
        return found

    return by_training


@pytest.fixture
def context(tmp_path):
    for name in ("output", "cache"):
        (tmp_path / name).mkdir()
    return StageContext(tmp_path / "output", Cache(tmp_path / "cache"))


@pytest.fixture(scope="module")
def store():
    """The address of an S3-compatible server with the buckets `input` and `output`, `{}` being a path."""
    server = pytest.importorskip("moto.server")
    running = server.ThreadedMotoServer("127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
    address = f"s3://{{}}?endpoint_override={host}:{port}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    from pyarrow import fs

    filesystem, _ = fs.FileSystem.from_uri(address.format("input"))
    for bucket in ("input", "output"):
        filesystem.create_dir(bucket)
    yield address
    running.stop()
