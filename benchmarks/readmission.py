"""Scoring of admissions against the usual way: every chunk padded to 512 tokens, in batches of 32, in fp32.

Claims: at least 3 times the chunks/s of that way, on the same CPU and model; and ten times as many admissions take no
more private memory.

    python -m benchmarks.readmission
    python -m benchmarks.readmission --model runs/clinic-mimic3/readmission/latest/model

The notes are discharge summaries of the made-up hospital: as it writes them, and of as many words on average as MIMIC's
(`--words`). Without --model the network is all-MiniLM-L6-v2's under a fresh head: as fast as a trained one. Both sides
get text and give log-odds, in one process, by turns. The usual way tokenizes the same chunks' text with transformers'
tokenizer.

`ready` is the private memory (`RssAnon`) of a fresh process when 10,000 admissions have been scored from file to
file, so that as many kernels for shapes of batches are there as are kept; `peak` the highest, looked at every 50 ms,
while a file of admissions is. There the network is a stand-in of one layer, because what is claimed is about the way of
the notes.
"""

import csv
import multiprocessing
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertModel
from transformers.utils.logging import disable_progress_bar

from benchmarks.contenders import Claim, Spread, at_least, in_turns, judge
from benchmarks.machine import MINILM, add_device, machine
from benchmarks.private import looked_at
from bertrelay.backbone import bert_config, save_backbone, save_tokenizer
from bertrelay.encoder_settings import NewEncoder
from bertrelay.hardware import private_memory_mb, resolve_precision
from bertrelay.vocabulary import train_wordpiece
from domain.clinical.classifier import save_model, start_model
from domain.clinical.scorer import OutcomeScorer, ReadmissionScorer, joined
from domain.clinical.scoring import score_file
from domain.clinical.settings import OutcomeModelSettings
from pipelines.samples.hospital import HospitalSettings, write_hospital

FASTER = 3.0
PADDED_TO, BATCH = 512, 32
WORDS = [HospitalSettings.model_fields["words"].default, 1_500]
STAND_IN = {"layers": 1, "dim": 32, "heads": 2, "vocabulary": 1_000, "max_tokens": 512}
ADMISSIONS = [1_000, 10_000]
WARM_UP = 10_000
SLACK_MB = 16.0
"""What the allocator may keep for later, however many admissions."""


def hospital_notes(folder: Path, words: int, count: int) -> list[str]:
    """The cleaned discharge summaries of a made-up hospital, one for each admission."""
    settings = HospitalSettings.model_validate({"subjects": max(20, count), "words": words, "version": "IV"})
    write_hospital(folder, settings)
    (file,) = folder.rglob("discharge.csv.gz")
    import pandas as pd

    texts = pd.read_csv(file, usecols=["text"])["text"].tolist()
    return [joined([text]) for text in texts[:count]]


# Speed


def ours(scorer: OutcomeScorer, texts: Sequence[str]) -> dict[str, Any]:
    began = time.perf_counter()
    scores = scorer.score_texts(texts)
    return {"seconds": time.perf_counter() - began, "chunks": sum(len(score.chunks) for score in scores)}


def usual(network: Any, tokenizer: Any, chunks: Sequence[str]) -> dict[str, Any]:
    began = time.perf_counter()
    with torch.inference_mode():
        for first in range(0, len(chunks), BATCH):
            batch = list(chunks[first : first + BATCH])
            ids = tokenizer(batch, padding="max_length", max_length=PADDED_TO, truncation=True, return_tensors="pt")
            network(**ids.to(network.device)).logits.cpu()
    return {"seconds": time.perf_counter() - began, "chunks": len(chunks)}


def measure_speed(options: Namespace, texts: Sequence[str]) -> Spread:
    """How many times as many chunks/s as the usual way, round by round."""
    scorer = ReadmissionScorer.load(options.model)
    network = AutoModelForSequenceClassification.from_pretrained(options.model).eval().to(options.device)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    scores = scorer.score_texts(texts)
    chunks = [
        text[chunk.start : chunk.end] for text, score in zip(texts, scores, strict=True) for chunk in score.chunks
    ]
    usual(network, tokenizer, chunks[:BATCH])
    works = {"BertRelay": lambda _: ours(scorer, texts), "usual": lambda _: usual(network, tokenizer, chunks)}
    answers = in_turns(works, options.rounds)
    rates = {name: [each["chunks"] / each["seconds"] for each in given] for name, given in answers.items()}
    for name, found in rates.items():
        print(f"{name:10} {Spread.of(found).told(1)} chunks/s, {len(chunks):,} chunks", flush=True)
    return Spread.of_ratios(rates["BertRelay"], rates["usual"])


# Memory


class Seen(NamedTuple):
    """Private memory in MB before and at most."""

    admissions: int
    ready: float
    peak: float
    seconds: float

    @property
    def beyond(self) -> float:
        return self.peak - self.ready


def score_many(model: str, texts: Sequence[str], admissions: int, threads: int) -> Seen:
    """What a fresh process does."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, count in (("warm", WARM_UP), ("many", admissions)):
            with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerows([("hadm_id", "text"), *islice(enumerate(cycle(texts)), count)])
        score_file(model, folder / "warm.csv", folder / "warm.parquet")
        ready, began = private_memory_mb() or 0.0, time.perf_counter()
        with looked_at() as looks:
            score_file(model, folder / "many.csv", folder / "many.parquet")
        return Seen(admissions, ready, max(looks), time.perf_counter() - began)


def measure_memory(options: Namespace, texts: Sequence[str], model: Path) -> list[Seen]:
    print(f"{'admissions':>10} {'ready MB':>9} {'peak MB':>8} {'beyond MB':>10} {'admissions/s':>13}")
    seen = []
    for admissions in options.admissions:
        with multiprocessing.get_context("spawn").Pool(1) as fresh:
            now = fresh.apply(score_many, (str(model), texts, admissions, options.threads))
        seen.append(now)
        rate = now.admissions / now.seconds
        print(
            f"{now.admissions:>10,} {now.ready:>9.0f} {now.peak:>8.0f} {now.beyond:>10.1f} {rate:>13,.0f}", flush=True
        )
    return seen


# The whole


def save_minilm(folder: Path) -> Path:
    """all-MiniLM-L6-v2 under a fresh head."""
    save_model(start_model(MINILM, OutcomeModelSettings()), folder)
    return folder


def save_stand_in(folder: Path, texts: Sequence[str]) -> Path:
    """A readmission model of one layer."""
    size = NewEncoder.model_validate(STAND_IN)
    tokenizer = train_wordpiece(texts, size.vocabulary, size.max_tokens)
    (folder / "bert").mkdir(parents=True)
    save_backbone(BertModel(bert_config(size, tokenizer)), folder / "bert")
    save_tokenizer(tokenizer, folder / "bert", size.max_tokens, has_types=True)
    save_model(start_model(folder / "bert", OutcomeModelSettings()), folder / "model")
    return folder / "model"


def parsed() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.readmission", description=(__doc__ or "").partition("\n")[0])
    add_device(parser)
    parser.add_argument("--model", type=Path, metavar="DIR", help="a folder that domain.readmission wrote")
    parser.add_argument("--notes", type=int, default=100, help="so many admissions for the speed")
    parser.add_argument("--words", type=int, nargs="+", default=WORDS, help="of a discharge summary, on average")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--admissions", type=int, nargs="+", default=ADMISSIONS, help="for the memory")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    disable_progress_bar()
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        options.model = options.model or save_minilm(Path(scratch, "minilm"))
        usual_way, claims = f"the chunks/s of padding to {PADDED_TO} in batches of {BATCH} in fp32", list[Claim]()
        for words in options.words:
            texts = hospital_notes(Path(scratch, f"hospital-{words}"), words, options.notes)
            print(f"{len(texts):,} notes of some {words:,} words; BertRelay computes in {resolve_precision('auto')}")
            claims.append(at_least(FASTER, f"{usual_way}, of notes of {words:,} words", measure_speed(options, texts)))
        seen = measure_memory(options, texts, save_stand_in(Path(scratch, "stand-in"), texts))
    growth = seen[-1].beyond - seen[0].beyond
    told = f"from {seen[0].admissions:,} to {seen[-1].admissions:,} admissions memory grows by at most {SLACK_MB} MB"
    claims.append(Claim(told, f"{growth:+.1f} MB", growth <= SLACK_MB))
    sys.exit(0 if judge(claims) else 1)


if __name__ == "__main__":
    main()
