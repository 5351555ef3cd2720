"""A teacher trained here beside one trained by sentence-transformers: STSb test score and time, over some seeds.

Claim: from the same start (all-MiniLM-L6-v2), on the same data, with the same batch size, steps, learning rate and
warm-up, the mean Spearman on the STSb English test set is within 0.01 of sentence-transformers', or above it.

    bertrelay run sbert --set vars.data=DIR                               trains ours, and keeps it in runs/
    python -m benchmarks.sbert --data DIR --ours runs/sbert               scores those, and trains the peer's
    python -m benchmarks.sbert --data DIR                                 trains both in turns, seed by seed
    python -m benchmarks.sbert --data DIR --nli [--ours runs/sbert]       SICK's NLI labels first, STSb after them

Ours is the stage `stsb` of the recipe `sbert` (with --nli the stages `nli` and `nli-stsb`), dev looks and the choice of
the best weights included. The peer is `SentenceTransformerTrainer` with `CosineSimilarityLoss` (after `SoftmaxLoss`),
with its own defaults for all that the recipe does not say: no weight decay, fp32, the last weights and no dev looks;
with --peer-dev it looks as often as we do and keeps its best. Both models are scored by one scorer in fp32.
A time is all of one training, from loading the start to the saved model, without loading the libraries.
"""

import json
import logging
import os
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.machine import add_data, machine, require
from bertrelay.data.records import Rejects, read
from bertrelay.data.tables import Table
from bertrelay.encoder import SentenceEncoder
from bertrelay.settings import InputFile, with_stage_paths
from bertrelay.stage import StageContext
from pipelines.folders import latest_name, read_done
from pipelines.recipe import read_recipe
from pipelines.registry import REGISTRY
from teachers.data import Examples, read_examples
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics
from teachers.settings import COLUMNS, EvaluateSettings, TrainSettings
from teachers.train import run

ROUTES = {"stsb": ["stsb"], "nli-stsb": ["nli", "nli-stsb"]}
SEEDS = [1, 2, 3]
NOT_WORSE_THAN = 0.01


@dataclass(frozen=True)
class Trained:
    """A model, and how long its training took."""

    folder: Path
    seconds: float


def recipe_settings(options: Namespace, seed: int) -> dict[str, Any]:
    """The settings of the recipe's stages under one seed, with fewer examples and another precision where asked."""
    recipe = read_recipe("sbert", REGISTRY, [f"vars.data={options.data}", f"seeds=[{seed}]"])
    settings: dict[str, Any] = {step.name: step.settings for step in recipe.steps}
    for name in options.route:
        changes: dict[str, Any] = {"precision": options.precision}
        if options.steps is not None:
            changes["train"] = [_first_rows(settings[name], options.steps, options.scratch / f"{name}.jsonl")]
        settings[name] = settings[name].model_copy(update=changes)
    return settings


def _first_rows(settings: TrainSettings, steps: int, path: Path) -> Table:
    columns = [str(column) for column in COLUMNS[settings.objective]]
    rows = [record.values for record in read(settings.train[0], columns)][: steps * (settings.batch_items or 1)]
    path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    return Table(path=InputFile(path), columns=list(columns))


def train_ours(options: Namespace, seed: int) -> Trained:
    """Trains the stages of the route, each from the one before."""
    folder = options.scratch / f"ours-{seed}"
    settings = recipe_settings(options, seed)
    began = time.perf_counter()
    for name in options.route:
        (folder / name).mkdir(parents=True)
        located = with_stage_paths(settings[name], lambda stage, inner: folder / stage / inner)
        run(located, StageContext(folder / name, folder / "cache"))
    return Trained(folder / options.route[-1] / "model", time.perf_counter() - began)


def found_ours(options: Namespace, seed: int) -> Trained:
    """The training of an earlier run."""
    folders = [options.ours / name / latest_name(seed) for name in options.route]
    done = [read_done(folder) for folder in folders]
    missing = [str(folder) for folder, found in zip(folders, done, strict=True) if found is None]
    if missing:
        sys.exit(
            f"--ours: expected a finished stage with done.json, found none at {', '.join(missing)}; "
            "run `bertrelay run sbert`, or leave --ours out"
        )
    return Trained(folders[-1] / "model", sum(found.seconds for found in done if found))


def train_peer(options: Namespace, seed: int) -> Trained:
    """Trains the same with sentence-transformers, each stage going on with the model of the one before."""
    from sentence_transformers import SentenceTransformer

    settings = recipe_settings(options, seed)
    folder = options.scratch / f"peer-{seed}"
    began = time.perf_counter()
    model = SentenceTransformer(str(settings[options.route[0]].base))
    for name in options.route:
        _peer_stage(model, settings[name], folder / name, options)
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return Trained(folder / "model", time.perf_counter() - began)


def _peer_stage(model: Any, settings: TrainSettings, folder: Path, options: Namespace) -> None:
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from transformers.trainer_callback import PrinterCallback

    looks: dict[str, Any] = {"save_strategy": "no"}
    evaluator = None
    if options.peer_dev and settings.objective == "cosine":
        evaluator = _peer_evaluator(settings, folder)
        looks = {
            "eval_strategy": "steps",
            "eval_steps": settings.evaluate_every,
            "save_strategy": "best",
            "save_only_model": True,
            "metric_for_best_model": "eval_dev_spearman_cosine",
            "load_best_model_at_end": True,
        }
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        seed=settings.seed,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_items or 1,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup,  # below 1 it is a share of all steps
        weight_decay=0.0,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        **looks,
    )
    examples = _examples(settings.train, settings, folder)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=_peer_dataset(examples),
        loss=_peer_loss(model, examples, settings),
        evaluator=evaluator,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def _examples(tables: list[Table], settings: TrainSettings, folder: Path) -> Examples:
    """Read by our own reader, so that both learn from the same pairs and scores."""
    with Rejects(None, settings.max_rejects) as rejects:
        return read_examples(tables, settings, StageContext(folder, folder / "cache"), rejects)


def _peer_dataset(examples: Examples) -> Any:
    from datasets import Dataset

    first, second = ([examples.sentences[row] for row in side] for side in examples.indices.T)
    return Dataset.from_dict({"sentence1": first, "sentence2": second, "label": _numbers(examples.labels)})


def _numbers(labels: list[Any]) -> list[Any]:
    """Scores as they are, names of classes as their numbers."""
    classes = sorted(set(labels)) if isinstance(labels[0], str) else []
    return [classes.index(label) for label in labels] if classes else labels


def _peer_loss(model: Any, examples: Examples, settings: TrainSettings) -> Any:
    from sentence_transformers.losses import CosineSimilarityLoss, SoftmaxLoss

    if settings.objective == "cosine":
        return CosineSimilarityLoss(model)
    return SoftmaxLoss(model, model.get_embedding_dimension(), num_labels=len(set(examples.labels)))


def _peer_evaluator(settings: TrainSettings, folder: Path) -> Any:
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

    dev = _examples(settings.dev, settings, folder)
    first, second = ([dev.sentences[row] for row in side] for side in dev.indices.T)
    return EmbeddingSimilarityEvaluator(first, second, dev.labels, main_similarity="cosine", name="dev")


def test_pairs(options: Namespace) -> StsPairs:
    settings = cast(EvaluateSettings, recipe_settings(options, options.seeds[0])["test-stsb"])
    with Rejects(None) as rejects:
        return read_sts(settings.sts["STSb"], StageContext(options.scratch, options.scratch), rejects)


def score(model: Path, pairs: StsPairs) -> float:
    """Spearman on the test set, in fp32."""
    encoder = SentenceEncoder.load(model)
    metrics = sts_metrics(
        {"stsb": pairs}, lambda sentences: encoder.encode(sentences, precision="fp32"), intervals=False
    )
    return cast(float, metrics["sts/stsb/spearman_cosine"])


def compare(options: Namespace) -> bool:
    """Trains and scores, prints it all, and tells whether the claim holds."""
    pairs = test_pairs(options)
    sides = {"ours": found_ours if options.ours else train_ours, "peer": train_peer}
    scores: dict[str, list[float]] = {side: [] for side in sides}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for seed in options.seeds:
        for side, train in sides.items():
            trained = train(options, seed)
            scores[side].append(score(trained.folder, pairs))
            seconds[side].append(trained.seconds)
            print(f"seed {seed}  {side}  {scores[side][-1]:.4f}  {trained.seconds:7.1f} s", flush=True)
    for side in sides:
        spread = f" ± {statistics.stdev(scores[side]):.4f}" if len(options.seeds) > 1 else ""
        mean, mean_seconds = statistics.mean(scores[side]), statistics.mean(seconds[side])
        print(f"{side}  mean {mean:.4f}{spread}  {mean_seconds:7.1f} s a seed")
    ahead = statistics.mean(scores["ours"]) - statistics.mean(scores["peer"])
    print(f"ours − peer: {ahead:+.4f}; time of the peer / ours: {sum(seconds['peer']) / sum(seconds['ours']):.2f}")
    return ahead >= -NOT_WORSE_THAN


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.sbert", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--ours", type=Path, metavar="FOLDER", help="a finished run of the recipe, such as runs/sbert")
    parser.add_argument("--nli", action="store_true", help="SICK's NLI labels first")
    parser.add_argument("--peer-dev", action="store_true", help="the peer chooses its weights by the dev set too")
    parser.add_argument("--precision", default="auto", choices=["auto", "bf16", "fp32"], help="of our training")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--steps", type=int, help="only so many steps, to try the script out")
    options = parser.parse_args()
    require(parser, options.data, "sts/stsb", "sts/sick")
    options.route = ROUTES["nli-stsb" if options.nli else "stsb"]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import sentence_transformers  # before any clock runs

    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    print(machine())
    print(
        f"{' → '.join(options.route)}: BertRelay{' from ' + str(options.ours) if options.ours else ''} beside "
        f"sentence-transformers {sentence_transformers.__version__}; Spearman on the STSb English test set, and time"
    )
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = Path(scratch)
        holds = compare(options)
    print(f"within {NOT_WORSE_THAN} of the peer, or above it: {'yes' if holds else 'no'}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
