"""Scoring of admissions beside the usual way: every chunk padded to 512 tokens, in batches of 32, in fp32.

Claims: at least 3 times its chunks/s, on the same CPU and model; and ten times as many admissions take at most 16 MB
more private memory.

    python -m benchmarks.readmission
    python -m benchmarks.readmission --model runs/clinic-mimic3/readmission/latest/model

The notes are discharge summaries of the synthetic hospital, of its default length and of MIMIC's (`--words`). Without
--model the network is all-MiniLM-L6-v2's with a fresh head. Both get text and give log-odds, in turns in one process.
Memory is that of a fresh process that has scored 10,000 admissions; there the network is a stand-in of one layer.
"""

import csv
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.harness import OURS, Claim, Result, at_least, in_turns, main, print_results, timed
from benchmarks.machine import MINILM, growth_claim, memories, save_stand_in
from bertrelay.device import default_device
from bertrelay.model.new import train_wordpiece
from domain.clinical.model import save_model, start_model
from domain.clinical.predict import ReadmissionScorer, clean_and_join
from domain.clinical.predict_files import score_file
from domain.clinical.settings import ModelDescription
from pipelines.samples.hospital import write_hospital
from pipelines.samples.settings import HospitalSettings

FASTER, PADDED_TO, BATCH, WARM_UP = 3.0, 512, 32, 10_000
WORDS = [HospitalSettings.model_fields["words"].default, 1_500]
SLACK_MB = 16.0
"""What the allocator may keep for later, however many admissions."""


def hospital_notes(folder: Path, words: int, count: int) -> list[str]:
    """The cleaned discharge summaries of a synthetic hospital, one for each admission."""
    settings = HospitalSettings.model_validate({"subjects": max(20, count), "words": words, "version": "IV"})
    write_hospital(folder, settings)
    (file,) = folder.rglob("discharge.csv.gz")
    return [clean_and_join([text]) for text in pd.read_csv(file, usecols=["text"])["text"].tolist()[:count]]


def usual(network: Any, tokenizer: Any, chunks: Sequence[str]) -> None:
    with torch.inference_mode():
        for first in range(0, len(chunks), BATCH):
            batch = list(chunks[first : first + BATCH])
            ids = tokenizer(batch, padding="max_length", max_length=PADDED_TO, truncation=True, return_tensors="pt")
            network(**ids.to(network.device)).logits.cpu()


def compete(options: Namespace, texts: Sequence[str]) -> dict[str, Result]:
    scorer = ReadmissionScorer.load(options.model)
    network = AutoModelForSequenceClassification.from_pretrained(options.model).eval().to(default_device())
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    scored = zip(texts, scorer.score_texts(texts), strict=True)
    chunks = [text[chunk.start : chunk.end] for text, score in scored for chunk in score.chunks]
    usual(network, tokenizer, chunks[:BATCH])
    works = {
        OURS: lambda _: {"seconds": timed(scorer.score_texts, texts)[1]},
        "usual": lambda _: {"seconds": timed(usual, network, tokenizer, chunks)[1]},
    }
    results = in_turns(works, options.rounds)
    print(f"{len(chunks):,} chunks")
    print_results(results, {"chunks": len(chunks)}, {})
    return results


def prepare_scoring(model: str, texts: Sequence[str], admissions: int, folder: Path) -> Callable[[], object]:
    for name, count in (("warm", WARM_UP), ("many", admissions)):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("hadm_id", "text"), *islice(enumerate(cycle(texts)), count)])
    score_file(model, folder / "warm.csv", folder / f"warm-{admissions}.parquet", overwrite=True)
    return partial(score_file, model, folder / "many.csv", folder / f"many-{admissions}.parquet", overwrite=True)


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    claims, contenders = list[Claim](), {}
    if options.model is None:
        options.model = options.scratch / "minilm"
        save_model(start_model(MINILM, ModelDescription()), options.model)
    for words in options.words:
        texts = hospital_notes(options.scratch / f"hospital-{words}", words, options.notes)
        contenders[words] = results = compete(options, texts)
        faster = results[OURS].speed_over(results["usual"])
        claims.append(at_least(FASTER, f"the usual chunks/s, notes of {words:,} words", faster))
    encoder, stand_in = options.scratch / "encoder", str(options.scratch / "stand-in")
    save_stand_in(encoder, train_wordpiece(texts, 1_000, PADDED_TO), PADDED_TO)
    save_model(start_model(encoder, ModelDescription()), Path(stand_in))
    given = {f"{count:,} admissions": (stand_in, texts, count, options.scratch) for count in options.admissions}
    measured = memories(prepare_scoring, given)
    claims.append(growth_claim(" → ".join(given), SLACK_MB, measured))
    return claims, {"contenders": contenders, "memory": measured}


if __name__ == "__main__":
    main(measure, __doc__, model=Path, notes=100, words=WORDS, rounds=3, admissions=[1_000, 10_000])
