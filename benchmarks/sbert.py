"""A teacher trained here beside one trained by sentence-transformers: STSb test score and time, over some seeds.

Claim: from the same start (all-MiniLM-L6-v2), on the same data, with the same batch size, steps, learning rate and
warm-up, the mean Spearman on the STSb English test set is within 0.01 of sentence-transformers', or above it.

    python -m benchmarks.sbert --data DIR              the stage `stsb` of the recipe `sbert`
    python -m benchmarks.sbert --data DIR --nli        the stages `nli` and `nli-stsb`

Ours includes its evaluations on dev data and the choice of the best weights. The peer is `SentenceTransformerTrainer`
with `CosineSimilarityLoss` (after `SoftmaxLoss`) and its own defaults: no weight decay, fp32, the last weights. One
scorer in fp32. A time is one training, from loading the start to the saved model, without loading libraries.
"""

import json
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any, cast

from benchmarks.harness import Answer, Claim, main
from benchmarks.trainer import OURS, arguments_of, behind, faster, options_of, train_in_turns, train_with_sbert
from bertrelay.data.records import Rejects, read
from bertrelay.data.tables import Table
from bertrelay.encoder import SentenceEncoder
from bertrelay.leaves import with_stage_paths
from bertrelay.settings import InputFile
from bertrelay.stage import StageContext
from pipelines.recipe import read_recipe
from pipelines.registry import REGISTRY
from teachers.data import read_examples
from teachers.evaluation.sts import read_sts, sts_metrics
from teachers.settings import COLUMNS, StsSettings, TrainSettings
from teachers.train import run

PEER, METRIC, NOT_WORSE_THAN = "peer", "spearman", 0.01


def recipe_settings(options: Namespace, seed: int) -> dict[str, Any]:
    """The settings of the recipe's stages with one seed, with fewer examples on request."""
    recipe = read_recipe("sbert", REGISTRY, [f"vars.data={options.data}", f"seeds=[{seed}]"])
    settings: dict[str, Any] = {step.name: step.settings for step in recipe.steps}
    for name in options.stages if options.steps else []:
        first = first_rows(settings[name], options.steps, options.scratch / f"{name}-{seed}.jsonl")
        settings[name] = settings[name].model_copy(update={"train": [first]})
    return settings


def first_rows(settings: TrainSettings, steps: int, path: Path) -> Table:
    columns = [str(column) for column in COLUMNS[settings.objective]]
    rows = [record.values for record in read(settings.train[0], columns)][: steps * (settings.batch_items or 1)]
    path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    return Table(path=InputFile(path), columns=list(columns))


def train_ours(options: Namespace, seed: int) -> Answer:
    """Trains the stages, each from the one before."""
    folder, settings = options.scratch / f"ours-{seed}", recipe_settings(options, seed)
    began = time.perf_counter()
    for name in options.stages:
        (folder / name).mkdir(parents=True)
        located = with_stage_paths(settings[name], lambda stage, inner: folder / stage / inner)
        run(located, StageContext(folder / name, folder / "cache"))
    return scored(options, folder / options.stages[-1] / "model", time.perf_counter() - began)


def train_peer(options: Namespace, seed: int) -> Answer:
    from sentence_transformers import SentenceTransformer

    settings, folder = recipe_settings(options, seed), options.scratch / f"peer-{seed}"
    began = time.perf_counter()
    model = SentenceTransformer(str(settings[options.stages[0]].base))
    for name in options.stages:
        train_peer_stage(model, settings[name], folder / name)
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return scored(options, folder / "model", time.perf_counter() - began)


def train_peer_stage(model: Any, settings: TrainSettings, folder: Path) -> None:
    from datasets import Dataset
    from sentence_transformers.losses import CosineSimilarityLoss, SoftmaxLoss

    with Rejects(None, settings.max_rejects) as rejects:  # read by our own reader: the same pairs and labels
        context = StageContext(folder, folder / "cache")
        examples = read_examples(settings.train, settings.objective, context, rejects, settings.score_range)
    first, second = ([examples.sentences[row] for row in column] for column in examples.indices.T)
    labels: list[Any] = list(examples.labels)
    if settings.objective == "cosine":
        loss: Any = CosineSimilarityLoss(model)
    else:
        classes = sorted(set(labels))
        labels = [classes.index(label) for label in labels]
        loss = SoftmaxLoss(model, model.get_embedding_dimension(), num_labels=len(classes))
    dataset = Dataset.from_dict({"sentence1": first, "sentence2": second, "label": labels})
    given = {"output_dir": str(folder), **arguments_of(settings), "weight_decay": 0.0}
    train_with_sbert(model, dataset, loss, **given)


def scored(options: Namespace, model: Path, seconds: float) -> Answer:
    settings = cast(StsSettings, recipe_settings(options, options.seeds[0])["test-stsb"])
    with Rejects(None) as rejects:
        pairs = read_sts(settings.sts["STSb"], StageContext(options.scratch, options.scratch), rejects)
    encoder = SentenceEncoder.load(model)
    metrics = sts_metrics({"stsb": pairs}, lambda texts: encoder.encode(texts, precision="fp32"), intervals=False)
    return {METRIC: metrics["sts/stsb/spearman_cosine"], "seconds": seconds}


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    options.stages = ["nli", "nli-stsb"] if options.nli else ["stsb"]
    works = {OURS: partial(train_ours, options), PEER: partial(train_peer, options)}
    answers = train_in_turns(works, options, [METRIC])
    claims = []
    if len(answers) == len(works):
        print(f"× as fast as the peer: {faster(answers[PEER], answers[OURS])}")
        below = behind(answers[PEER], answers[OURS], METRIC)
        text = f"mean Spearman at most {NOT_WORSE_THAN} below the peer's"
        claims = [Claim(text, f"{below:+.4f} below", below <= NOT_WORSE_THAN)]
    return claims, {"trainings": answers}


if __name__ == "__main__":
    main(measure, __doc__, "sts/stsb", "sts/sick", nli=False, steps=int, **options_of([OURS, PEER]))
