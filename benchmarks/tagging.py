"""Entities of raw texts: our tagger against transformers' token-classification pipeline, and a very long document.

Claims: at least 3 times the words/s of the pipeline with its best batch size, on the same CPU and model; the same words
in one document take no more private memory beyond their text than in ten, but for 24 MB, and at most 200 MB; and a
document has the entities that its sentences have when they are tagged alone.

    python -m benchmarks.tagging --data DIR --model runs/ncbi-disease/ner/latest/model

--model is a folder that `domain.ner` wrote. Without one the network is all-MiniLM-L6-v2's under a head that finds
nothing: as fast, with nothing to compare in the documents. Where the model marks capitals the pipeline does not. The
texts are PubMed abstracts; the pipeline gets a stride, for else it would leave out what is beyond 512 tokens, and is
timed in fp32, its default, and in bf16. Each of its ways has the batch size with which it is fastest on some of the
texts. They work by turns, each in a process of its own.

The long document is these abstracts one after the other, again and again; ten parts of it, and one, stand beside it. It
is compared with the ten, which are the same words: batches take unlike amounts of memory, and the peak over many is
higher than over few. `ready` is the private memory (`RssAnon`) of a fresh process when twice all of the abstracts have
gone through it, so that what is kept of each shape of batch is there, and all texts are loaded; `peak` the highest,
looked at every 50 ms, while they are tagged; `beyond` what lies between the two. `text` is what the texts take.
"""

import json
import multiprocessing
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.contenders import Answer, Claim, Contender, Spread, at_least, in_turns, judge
from benchmarks.machine import MINILM, add_data, add_device, machine, require
from benchmarks.private import looked_at
from bertrelay.hardware import private_memory_mb, resolve_precision
from domain.biomedical import EntityTagger
from domain.biomedical.documents import read_documents
from domain.biomedical.documents.document import Document
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.model import save_model, start_model
from domain.sentences import sentence_spans

ABSTRACTS = "text/pubmed-abstracts.jsonl.gz"
PEERS = {"pipeline, fp32": "float32", "pipeline, bf16": "bfloat16"}
OURS = {"BertRelay": "auto", "BertRelay, fp32": "fp32"}
DEFAULT, AUTO = "pipeline, fp32", "BertRelay"
BATCH_SIZES = [1, 4, 16, 64]
TRIED_ON, TRIED_TIMES = 100, 2
FASTER = 3.0
WARM_UPS = 2
TIMES = 10
SLACK_MB = 24.0
"""For the entities that are found, some 250 bytes each, and what the allocator keeps for later."""
MOST_MB = 200.0
"""For the batches on their way, whatever the document."""


# Speed


def measure_speed(options: Namespace, texts: Sequence[str]) -> dict[str, list[float]]:
    """The seconds of each round, of each contender."""
    Path(options.scratch, "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    contenders = {name: started(name, options) for name in (*OURS, *PEERS)}
    sizes = {name: best_batch_size(contenders[name]) if name in PEERS else None for name in contenders}
    works = {name: turn(contender, sizes[name]) for name, contender in contenders.items()}
    answers = in_turns(works, options.rounds)
    seconds = {name: [answer["seconds"] for answer in given] for name, given in answers.items()}
    for name, contender in contenders.items():
        contender.end()
        rate, entities = words_per_second(seconds[name], texts), answers[name][0]["entities"]
        print(f"{name:16} batch {sizes[name] or '':>3}  {rate.told(0)} words/s  {entities:,} entities", flush=True)
    return seconds


def started(name: str, options: Namespace) -> Contender:
    """The contender, warmed up."""
    print(f"making ready: {name}", file=sys.stderr, flush=True)
    module = "benchmarks.tagging_ours" if name in OURS else "benchmarks.tagging_peer"
    own = {"precision": OURS[name]} if name in OURS else {"dtype": PEERS[name]}
    settings = {"model": str(options.model), "scratch": str(options.scratch), **own}
    contender = Contender(module, options.device, options.threads, settings)
    contender.ask(batch_size=BATCH_SIZES[0], count=TRIED_ON)
    return contender


def turn(contender: Contender, batch_size: int | None) -> Callable[[int], Answer]:
    return lambda _: contender.ask(batch_size=batch_size)


def words_per_second(seconds: Sequence[float], texts: Sequence[str]) -> Spread:
    words = sum(len(text.split()) for text in texts)
    return Spread.of(words / each for each in seconds)


def best_batch_size(contender: Contender) -> int:
    """The size with which some of the texts are tagged fastest."""
    seconds: dict[int, list[float]] = {size: [] for size in BATCH_SIZES}
    for _ in range(TRIED_TIMES):
        for size in BATCH_SIZES:
            seconds[size].append(contender.ask(batch_size=size, count=TRIED_ON)["seconds"])
    return min(BATCH_SIZES, key=lambda size: min(seconds[size]))


# A long document


class Seen(NamedTuple):
    """What tagging took: words and text of all documents in MB, private memory in MB with them and at most, seconds."""

    words: int
    documents: int
    text: float
    ready: float
    peak: float
    entities: int
    seconds: float

    @property
    def beyond(self) -> float:
        """Memory beyond what was there with the texts loaded, in MB."""
        return self.peak - self.ready


def long_documents(texts: Sequence[str], words: int, documents: int) -> list[str]:
    """`texts` one after the other, again and again, in so many documents of so many words each, or a few more."""
    stream, found = cycle(texts), list[str]()
    for _ in range(documents):
        parts, count = list[str](), 0
        while count < words:
            parts.append(next(stream))
            count += len(parts[-1].split())
        found.append("\n\n".join(parts))
    return found


def tag_all(model: str, texts: Sequence[str], given: Sequence[str], threads: int) -> Seen:
    """Tags the documents `given` in this process, a fresh one, and looks at its memory."""
    torch.set_num_threads(threads)
    tagger = EntityTagger.load(model)
    tagger.tag(["\n\n".join(texts)] * WARM_UPS)
    ready, began = private_memory_mb() or 0.0, time.perf_counter()
    with looked_at() as looks:
        entities = sum(len(each.entities) for each in tagger.tag_documents(Document("long", text) for text in given))
    seconds, words = time.perf_counter() - began, sum(len(text.split()) for text in given)
    return Seen(words, len(given), sum(map(sys.getsizeof, given)) / 1e6, ready, max(looks), entities, seconds)


def measure_memory(options: Namespace, texts: Sequence[str]) -> list[Seen]:
    seen = []
    print(
        f"{'words':>10} {'documents':>9} {'text MB':>8} {'ready MB':>9} {'peak MB':>8} {'entities':>9} "
        f"{'beyond MB':>10} {'words/s':>8}"
    )
    short = long_documents(texts, options.words, TIMES)
    for given in (short[:1], short, ["\n\n".join(short)]):
        with multiprocessing.get_context("spawn").Pool(1) as fresh:
            now = fresh.apply(tag_all, (str(options.model), texts, given, options.threads))
        seen.append(now)
        memory = f"{now.text:>8.1f} {now.ready:>9.0f} {now.peak:>8.0f} {now.entities:>9,} {now.beyond:>10.1f}"
        print(f"{now.words:>10,} {now.documents:>9} {memory} {now.words / now.seconds:>8,.0f}", flush=True)
    return seen


class Compared(NamedTuple):
    """The entities of a document and of its sentences tagged alone: how many both have, and each alone."""

    both: int
    whole_alone: int
    sentences_alone: int
    farthest_confidence: float


def compare_with_sentences(options: Namespace, texts: Sequence[str]) -> Compared:
    """Tags a long document, and each of its sentences as a document of its own."""
    tagger, text = EntityTagger.load(options.model), long_documents(texts, options.words, 1)[0]
    (document,) = tagger.tag([text])
    spans = sentence_spans(text)
    alone = tagger.tag([text[start:end] for start, end in spans])
    whole = {(each.start, each.end, each.type): each.confidence or 0.0 for each in document.entities}
    parts = {
        (start + each.start, start + each.end, each.type): each.confidence or 0.0
        for (start, _), sentence in zip(spans, alone, strict=True)
        for each in sentence.entities
    }
    both = whole.keys() & parts.keys()
    farthest = max((abs(whole[key] - parts[key]) for key in both), default=0.0)
    return Compared(len(both), len(whole) - len(both), len(parts) - len(both), farthest)


# The whole


def save_stand_in(folder: Path) -> Path:
    """all-MiniLM-L6-v2 under a head that tags every word O."""
    model = start_model(MINILM, LabelSet.of_types(["Disease"]))
    head: Any = model.network.network.classifier
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([9.0, 0.0, 0.0]))
    save_model(model, folder)
    return folder


def claims(seconds: dict[str, list[float]], seen: Sequence[Seen], compared: Compared) -> list[Claim]:
    ratio = Spread.of_ratios(seconds[DEFAULT], seconds[AUTO])
    *_, short, long = seen
    growth = long.beyond - short.beyond
    return [
        at_least(FASTER, "as many words/s as the pipeline with its best batch size", ratio),
        Claim(
            f"{long.words:,} words in one document take at most {SLACK_MB} MB more than in {short.documents}",
            f"{growth:+.1f} MB",
            growth <= SLACK_MB,
        ),
        Claim(f"and at most {MOST_MB} MB beyond the text", f"{long.beyond:.0f} MB", long.beyond <= MOST_MB),
        *same_entities(compared),
    ]


def same_entities(compared: Compared) -> list[Claim]:
    """The claim about a document and its sentences; none where no entity was found."""
    differing = compared.whole_alone + compared.sentences_alone
    found = compared.both + differing
    if not found:
        print("a document and its sentences: nothing found, no claim")
        return []
    return [
        Claim(
            "of 1,000 entities at most one differs between a document and its sentences",
            f"{differing:,} of {found:,}; confidences by {compared.farthest_confidence:.4f}",
            1_000 * differing <= found,
        )
    ]


def parsed() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.tagging", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    add_device(parser)
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="a folder that domain.ner wrote (default: a stand-in)"
    )
    parser.add_argument("--texts", type=int, default=1_000, help="so many abstracts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=100_000, help=f"of a document; the long one has {TIMES} times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there too")
    options = parser.parse_args()
    require(parser, options.data, ABSTRACTS)
    return options


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    texts = [document.text for document in read_documents(options.data / ABSTRACTS)][: options.texts]
    print(machine())
    print(f"{len(texts):,} abstracts; BertRelay computes in {resolve_precision('auto')}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = scratch
        options.model = options.model or save_stand_in(Path(scratch, "model"))
        seconds = measure_speed(options, texts)
        seen = measure_memory(options, texts)
        compared = compare_with_sentences(options, texts)
    judged = claims(seconds, seen, compared)
    holds = judge(judged)
    if options.json:
        told = {
            "machine": machine(),
            "words_per_second": {name: words_per_second(spent, texts)._asdict() for name, spent in seconds.items()},
            "seconds": seconds,
            "documents": [{**each._asdict(), "beyond": each.beyond} for each in seen],
            "compared": compared._asdict(),
            "claims": [claim._asdict() for claim in judged],
        }
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
