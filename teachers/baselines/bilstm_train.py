"""The stage `teachers.bilstm`: InferSent's encoder learns natural language inference."""

from pathlib import Path
from typing import Any, cast

from bertrelay.data.records import Rejects
from bertrelay.data.tokens import tokenizer_of, tokens_of
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.loop import train
from teachers.baselines.bilstm import BiLstmEncoder
from teachers.baselines.settings import BiLstmSettings
from teachers.baselines.word_vectors import WordVectors, forms_of
from teachers.dev import read_dev
from teachers.examples import read_examples
from teachers.model import Teacher, start_head
from teachers.settings import TrainSettings
from teachers.train import TeacherTask, classes_of
from teachers.variants import training_keys


def run(settings: BiLstmSettings, context: StageContext) -> Metrics:
    """Trains the encoder and writes `model/`."""
    teaching = _teaching(settings)
    with Rejects(
        context.output / "rejects.jsonl" if context.process_group.is_main else None, settings.max_rejects
    ) as rejects:
        examples = read_examples(settings.train, teaching, context, rejects)
        dev = read_dev(teaching, context, rejects)
    classes, sentences = classes_of(examples, dev), examples.sentences
    known = sentences + (dev.examples.sentences if dev.examples else [])
    vectors = WordVectors.load(Path(settings.glove), forms_of(known))
    if not vectors.rows:
        raise RequestError(f"glove: {settings.glove} knows no word of the training data; check the file")
    encoder: Any = BiLstmEncoder.of(vectors, settings.hidden, settings.seed)
    tokens = tokens_of(lambda a, b: sentences[a:b], len(sentences), tokenizer_of(encoder), context.work / "tokens")
    head = start_head(teaching, encoder, classes)
    model = Teacher(cast(SentenceEncoder, encoder), head, 0.0, teaching.concatenation)
    metrics = train(
        TeacherTask(model, teaching, examples, classes, tokens, dev), teaching, context.output, context.work
    )
    if context.process_group.is_main:
        encoder.save(context.output / "model")
    return {**metrics, "train_items": len(examples.indices)}


def _teaching(settings: BiLstmSettings) -> TrainSettings:
    """The softmax objective of the teachers, whose base is not looked at."""
    return TrainSettings(
        base=ModelSource("/"),
        objective="softmax",
        train=settings.train,
        dev=settings.dev,
        concatenation=settings.concatenation,
        max_rejects=settings.max_rejects,
        **training_keys(settings),
    )
