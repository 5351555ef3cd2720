"""Pairs, marked documents, the network, metrics, training and extraction of relations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from domain.biomedical import RelationExtractor, read_documents, write_documents
from domain.biomedical.documents.document import Argument, Document, Entity, Relation
from domain.biomedical.relations.data import NONE, Gold, Scheme
from domain.biomedical.relations.evaluate import run as evaluate
from domain.biomedical.relations.metrics import count_pairs, relation_metrics
from domain.biomedical.relations.model import load_model, save_model, start_model
from domain.biomedical.relations.predict import scored_pairs
from domain.biomedical.relations.settings import RelationEvaluateSettings, RelationSettings
from domain.biomedical.relations.train import RelationTask
from domain.biomedical.relations.train import run as train

TEXT = "Lead causes gout. Aspirin helps against fever and gout."
DRUG, ILLNESS = "Chemical", "Disease"


def document(text=TEXT, relations=(("causes", "C1", "D1", True), ("treats", "C2", "D2", False)), name="1"):
    spans = {"Lead": ("C1", DRUG), "gout": ("D1", ILLNESS), "Aspirin": ("C2", DRUG), "fever": ("D2", ILLNESS)}
    entities = [
        Entity(at, at + len(word), kind, None, identifier)
        for word, (identifier, kind) in spans.items()
        for at in range(len(text))
        if text.startswith(word, at)
    ]
    listed = [Relation(kind, (Argument(first), Argument(second)), novel) for kind, first, second, novel in relations]
    return Document(name, text, tuple(sorted(entities, key=lambda one: one.start)), relations=tuple(listed))


def scheme(within="document", level="concept", directed=False):
    return Scheme(("causes", "treats"), frozenset({(DRUG, ILLNESS)}), level, within, directed)


def names(pairs):
    return {
        (pairs.nodes[a].target, pairs.nodes[b].target): gold.type
        for (a, b), gold in zip(pairs.pairs, pairs.gold, strict=True)
    }


def test_pairs_are_all_concepts_of_related_types_with_their_relation():
    assert names(scheme().pairs_of(document())) == {
        ("C1", "D1"): "causes", ("C1", "D2"): NONE, ("C2", "D1"): NONE, ("C2", "D2"): "treats"
    }  # fmt: skip
    assert names(scheme("sentence").pairs_of(document())) == {
        ("C1", "D1"): "causes", ("C2", "D1"): NONE, ("C2", "D2"): "treats"
    }  # fmt: skip


def test_a_relation_without_a_pair_is_missed():
    far = document(relations=[("causes", "C1", "D2", None)])
    pairs = scheme("sentence").pairs_of(far)
    assert pairs.missed == (Gold("causes"),) and not any(gold.type for gold in pairs.gold)
    assert scheme().pairs_of(far).missed == ()


def test_an_order_of_arguments_counts_only_where_it_is_directed():
    turned = document(relations=[("causes", "D1", "C1", None)])
    assert names(scheme().pairs_of(turned))["C1", "D1"] == "causes"
    learned = Scheme.of([turned], [], "concept", "document", directed=True)
    assert learned.type_pairs == {(ILLNESS, DRUG)}
    assert names(learned.pairs_of(turned))["D1", "C1"] == "causes"


def test_mentions_are_related_by_their_number():
    between = replace(document(), relations=(Relation("causes", (Argument(0), Argument(1))),))
    pairs = scheme(level="mention").pairs_of(between)
    assert names(pairs)[0, 1] == "causes" and len(pairs.pairs) == 6  # two chemicals, three mentions of diseases


def test_data_without_relations_at_the_level_are_an_error():
    with pytest.raises(RequestError, match='set level = "concept"'):
        Scheme.of([document()], [], "mention", "document", directed=False)


@pytest.fixture(scope="module")
def model(tiny_bert):
    settings = RelationSettings(base=str(tiny_bert), train=[{"path": __file__}], max_tokens=16, overlap=4)
    started = start_model(settings, scheme(), novelty=True)
    started.network.eval()
    return started


def test_mentions_are_marked_in_the_subwords(model):
    (pairs,) = documents = [scheme().pairs_of(document("Lead causes gout."))]
    marked = model.marker(documents)
    tokens = model.tokenizer.convert_ids_to_tokens(marked.ids.tolist())
    plain = [token for token in tokens if token not in ("<Chemical>", "</Chemical>", "<Disease>", "</Disease>")]
    assert plain == model.tokenizer.tokenize("Lead causes gout.")
    assert [tokens[at] for at in marked.mentions[0]] == ["<Chemical>", "<Disease>"]
    start, end = tokens.index("<Disease>"), tokens.index("</Disease>")
    assert "".join(tokens[start + 1 : end]).replace("##", "") == "gout"
    assert len(pairs.pairs) == 1


def test_scores_do_not_depend_on_the_batch_and_long_documents_are_read_in_windows(model):
    texts = [TEXT, "Lead causes gout.", " ".join([TEXT] * 3)]
    documents = [scheme().pairs_of(document(text)) for text in texts]
    assert max(model.marker(documents).lengths) > model.max_tokens  # several windows
    together = scored_pairs(model, documents, precision="fp32")
    alone = [scored_pairs(model, [one], precision="fp32")[0] for one in documents]
    for first, second in zip(together, alone, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)


def test_the_scores_of_a_pair_are_those_of_the_formula(model):
    """The vectors of a short document, one window, against the head's formula written out."""
    pairs = scheme().pairs_of(document("Lead causes gout."))
    wide = replace(model, max_tokens=64)
    marked = wide.marker([pairs])
    frame = [model.tokenizer.cls_token_id, *marked.ids.tolist(), model.tokenizer.sep_token_id]
    head, ids = model.network.head, torch.tensor([frame])
    with torch.no_grad():
        hidden = model.network.network(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, 1:-1]
        chemical, disease = hidden[marked.mentions[0]]  # of one mention the log-sum-exp is its vector
        query = head.query(torch.cat([chemical, disease]))
        weights = torch.softmax(head.key(hidden) @ query / query.numel() ** 0.5, 0)
        context = weights @ hidden
        gap = int(abs(marked.mentions[0][0] - marked.mentions[0][1]))
        near = head.distance.weight[int(np.floor(np.log2(gap))) + 1]
        first = torch.tanh(head.first(torch.cat([chemical, context])) + near)
        second = torch.tanh(head.second(torch.cat([disease, context])) + near)
        blocks = zip(first.split(head.block), second.split(head.block), strict=True)
        expected = head.scores(torch.cat([torch.outer(a, b).flatten() for a, b in blocks]))
    (scores,) = scored_pairs(wide, [pairs], precision="fp32")
    np.testing.assert_allclose(scores[0], expected, atol=1e-4)


def test_metrics_at_each_level_are_those_counted_by_hand():
    gold = [Gold("a", True), Gold("a", False), Gold("b", True), Gold()]
    predicted = [Gold("a", True), Gold("b", False), Gold(), Gold("a", True)]
    metrics = relation_metrics(count_pairs(gold, predicted, missed=1))
    # pairs: two of three predicted are related, of four gold ones with the missed one
    assert metrics["pair/precision"] == pytest.approx(2 / 3) and metrics["pair/recall"] == 2 / 4
    assert (
        metrics["precision"] == pytest.approx(1 / 3)
        and metrics["recall"] == 1 / 4
        and metrics["f1"] == pytest.approx(2 / 7)
    )
    assert metrics["novelty/recall"] == 2 / 4 and metrics["all/recall"] == 1 / 4
    assert "all/f1" not in relation_metrics(count_pairs(gold, predicted), novelty=False)


@pytest.fixture
def files(tmp_path):
    """Lead always causes, aspirin always treats; other pairs are not related."""
    chance = np.random.default_rng(0)
    for split, count in (("train", 60), ("dev", 30)):
        documents = []
        for number in range(count):
            sentences = ["Lead causes gout.", "Aspirin helps against fever."]
            chosen = [one for one in chance.permutation(sentences) if chance.random() < 0.8] or sentences
            relations = [("causes", "C1", "D1", True)] * (sentences[0] in chosen)
            relations += [("treats", "C2", "D2", False)] * (sentences[1] in chosen)
            filler = f"Case {split} {number}."
            documents.append(document(" ".join([filler, *chosen]), relations, f"{split}{number}"))
        write_documents(tmp_path / f"{split}.jsonl", documents)
    return tmp_path


def test_relations_are_learned_saved_evaluated_and_found(files, tiny_bert, context, tmp_path):
    settings = RelationSettings(
        base=str(tiny_bert),
        train=[{"path": str(files / "train.jsonl")}],
        dev=[{"path": str(files / "dev.jsonl")}],
        epochs=12,
        batch_items=6,
        learning_rate=2e-3,
        head_learning_rate=5e-3,
        precision="fp32",
    )
    metrics = train(settings, context)
    assert metrics["dev/f1"] > 0.9
    scored = evaluate(
        RelationEvaluateSettings(
            model=str(context.output / "model"), test=[{"path": str(files / "dev.jsonl")}], precision="fp32"
        ),
        StageContext(tmp_path, context.cache),
    )
    assert scored["f1"] > scored["cooccurrence/f1"] and scored["f1_low"] <= scored["f1"] <= scored["f1_high"]
    (related,) = RelationExtractor.load(context.output / "model").relate_documents([document("Lead causes gout.", ())])
    assert [(one.type, one.arguments[0].target, one.arguments[1].target) for one in related.relations] == [
        ("causes", "C1", "D1")
    ]
    written = list(read_documents(tmp_path / "relations.jsonl"))
    assert len(written) == 30 and all(one.confidence for document in written for one in document.relations)


def test_dev_documents_without_relations_are_refused_and_what_nothing_predicts_has_no_precision(
    files, tiny_bert, context
):
    write_documents(files / "dev.jsonl", [document(relations=(), text="Lead and gout.")], overwrite=True)
    train_and_dev = {split: [{"path": str(files / f"{split}.jsonl")}] for split in ("train", "dev")}
    settings = RelationSettings(base=str(tiny_bert), **train_and_dev)
    with pytest.raises(
        RequestError, match="dev: expected relations of the types causes, treats between concepts, found"
    ):
        train(settings, context)
    pairs = scheme().pairs_of(document())
    model = start_model(settings, scheme(), novelty=True)
    task = RelationTask(model, settings, [pairs], [pairs], ComputePrecision.FP32)
    task._threshold = lambda *_: 2.0  # no probability reaches it
    metrics = task.evaluate()
    assert metrics["dev/precision"] is None and metrics["dev/f1"] == metrics["dev/recall"] == 0


def test_a_saved_model_gives_the_same_scores(model, tmp_path):
    save_model(replace(model, threshold=0.3, temperature=2.0), tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert (loaded.threshold, loaded.temperature, loaded.scheme) == (0.3, 2.0, model.scheme)
    pairs = [scheme().pairs_of(document())]
    first, second = (scored_pairs(one, pairs, precision="fp32")[0] for one in (model, loaded))
    np.testing.assert_allclose(first, second, atol=1e-6)
    with pytest.raises(RequestError, match=r"found no relations\.json"):
        load_model(tmp_path)
