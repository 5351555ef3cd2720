"""A teacher trained here beside one trained by sentence-transformers: STSb test score and time, over some seeds.

Claim: from the same start (all-MiniLM-L6-v2), on the same data, with the same batch size, steps, learning rate and
warm-up, the mean Spearman on the STSb English test set is within 0.01 of sentence-transformers', or above it.

    python -m benchmarks.sbert --data DIR              the stage `stsb` of the recipe `sbert`
    python -m benchmarks.sbert --data DIR --nli        the stages `nli` and `nli-stsb`

Ours includes its evaluations on dev data and the choice of the best weights. The peer is `SentenceTransformerTrainer`
with `CosineSimilarityLoss` (after `SoftmaxLoss`) and its own defaults: no weight decay, fp32, the last weights. One
scorer in fp32. A time is one training, from loading the start to the saved model, without loading libraries.
"""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import trainer
from benchmarks.harness import OURS, Answer, main, timed
from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.fingerprint import with_stage_paths
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.settings import InputFile
from bertrelay.stage import StageContext
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from teachers.data import read_examples
from teachers.evaluation.sts import read_sts, sts_metrics
from teachers.objectives import OBJECTIVES
from teachers.settings import TrainSettings
from teachers.train import run

PEER, METRIC = "peer", "spearman"


def train(options: Namespace, name: str, seed: int, folder: Path) -> Answer:
    """Trains the recipe's stages, each from the one before, on its first examples on request."""
    recipe = read_recipe("sbert", REGISTRY, [f"vars.data={options.data}", f"seeds=[{seed}]"])
    settings: dict[str, Any] = {step.name: step.settings for step in recipe.steps}
    stages = ["nli", "nli-stsb"] if options.nli else ["stsb"]
    for stage in stages:
        table, count = settings[stage].train[0], options.steps and options.steps * (settings[stage].batch_items or 1)
        first = table.model_copy(update={"path": InputFile(trainer.beginning(Path(table.path), count, folder))})
        settings[stage] = settings[stage].model_copy(update={"train": [first]})
    model, seconds = timed(train_ours if name == OURS else train_peer, settings, stages, folder)
    with Rejects(None) as rejects:
        pairs = read_sts(settings["test-stsb"].sts["STSb"], StageContext(folder, Cache(folder)), rejects)
    encode = partial(SentenceEncoder.load(model).encode, precision="fp32")
    metrics = sts_metrics({"stsb": pairs}, encode, intervals=False)
    return {METRIC: metrics["sts/stsb/spearman_cosine"], "seconds": seconds}


def train_ours(settings: dict[str, Any], stages: list[str], folder: Path) -> Path:
    for name in stages:
        (folder / name).mkdir()
        located = with_stage_paths(settings[name], lambda stage, inner: folder / stage / inner)
        run(located, StageContext(folder / name, Cache(folder / "cache")))
    return folder / name / "model"


def train_peer(settings: dict[str, Any], stages: list[str], folder: Path) -> Path:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(settings[stages[0]].base))
    for name in stages:
        train_peer_stage(model, settings[name], folder / name)
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


def train_peer_stage(model: Any, settings: TrainSettings, folder: Path) -> None:
    from datasets import Dataset
    from sentence_transformers.losses import CosineSimilarityLoss, SoftmaxLoss

    with Rejects(None, settings.max_rejects) as rejects:  # read by our own reader: the same pairs and labels
        context = StageContext(folder, Cache(folder / "cache"))
        examples = read_examples(
            settings.train, OBJECTIVES[settings.objective].rows, context, rejects, settings.score_range
        )
    first, second = ([examples.sentences[row] for row in column] for column in examples.indices.T)
    labels: list[Any] = list(examples.labels)
    if settings.objective == "cosine":
        loss: Any = CosineSimilarityLoss(model)
    else:
        classes = sorted(set(labels))
        labels = [classes.index(label) for label in labels]
        loss = SoftmaxLoss(model, model.get_embedding_dimension(), num_labels=len(classes))
    dataset = Dataset.from_dict({"sentence1": first, "sentence2": second, "label": labels})
    trainer.train_with_sbert(model, dataset, loss, settings, folder, bf16=False)


if __name__ == "__main__":
    measure = partial(
        trainer.train_in_turns, train, lambda results: [trainer.as_good(results, PEER, METRIC, 0.01)], [METRIC]
    )
    main(measure, __doc__, "sts/stsb", "sts/sick", seeds=[1, 2, 3], contenders=[OURS, PEER], nli=False, steps=int)
