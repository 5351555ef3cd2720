"""The server's routes: what they answer, what they refuse, and who may ask."""

import asyncio
import base64
import hashlib
import json
import re
import socket
from concurrent.futures import Future
from threading import Event

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.export import export
from bertrelay.privacy import sensitive_data
from domain.biomedical.documents.formats import WRITTEN, read_documents
from pipelines.serve.application import ENDPOINTS, app
from pipelines.serve.models import named_sources, open_models
from pipelines.serve.requests import Usage
from pipelines.serve.server import listen
from pipelines.serve.settings import AddressOptions, ServeSettings
from students.searching.index import build_index

TEXTS = ["a dog barks", "ein hund bellt", "개가 짖는다", "dog . dog", "a"]
MENTION = "The mice had fever of BRCA1. The 𝒢out <b>p53</b>, gout in rats."
NOTE = "Plan:\nthe wound is dry. qzx slept well. the failing heart again."
HOST = "http://127.0.0.1"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "faq.csv"
    rows = [f'{number},"{text}",{"even" if number % 2 == 0 else "odd"}' for number, text in enumerate(TEXTS)]
    path.write_text("\n".join(["id,said,parity", *rows, ""]), encoding="utf-8")
    return Table(path=str(path), columns=["said"])


@pytest.fixture(scope="module")
def models(model, cross_encoder, tagger, linker, extractor, answerer, readmission_model, table):
    folders = {"words": model, "pairs": cross_encoder, "tags": tagger, "terms": linker, "relations": extractor}
    folders |= {"answers": answerer, "risk": readmission_model}
    settings = ServeSettings(precision="fp32", max_texts=64, max_body_mb=1, dimensions=[4])
    opened = open_models({**folders, "faq": table}, settings, show=["id", "parity"])
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def serve(models):
    """`serve(keys=["k"])`: a client of an application of all models."""

    def make(keys=(), **settings):
        settings = ServeSettings(max_texts=64, max_body_mb=1, **settings)
        return TestClient(app(models, settings, keys=keys), base_url=HOST)

    return make


@pytest.fixture(scope="module")
def client(serve):
    return serve()


@pytest.fixture(scope="module")
def expected(model):
    return SentenceEncoder.load(model).encode(TEXTS, precision="fp32")


def embed(client, texts, **fields):
    return client.post("/v1/embeddings", json={"input": texts, **fields})


def vectors_of(response):
    return np.array([row["embedding"] for row in response.json()["data"]], np.float32)


@pytest.mark.promise("Vectors of the server are those of `encode`", about="serving")
def test_embeddings_are_those_of_the_encoder_in_the_order_of_the_texts(client, expected):
    response = embed(client, TEXTS)
    assert response.status_code == 200
    np.testing.assert_allclose(vectors_of(response), expected, atol=1e-6)
    document = response.json()
    assert [row["index"] for row in document["data"]] == list(range(len(TEXTS)))
    assert document["model"] == "words"
    assert document["usage"]["prompt_tokens"] == document["usage"]["total_tokens"] > len(TEXTS)
    np.testing.assert_allclose(vectors_of(embed(client, TEXTS[2])), expected[2:3], atol=1e-6)


def test_base64_is_little_endian_float32(client, expected):
    rows = embed(client, TEXTS, encoding_format="base64").json()["data"]
    vectors = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_a_text_has_the_same_bits_a_second_time_whatever_is_asked_with_it(client):
    first = vectors_of(embed(client, ["ein hund"]))
    assert (vectors_of(embed(client, ["a dog barks", "ein hund", "a"]))[1] == first[0]).all()


def test_dimensions_are_cut_and_scaled_and_others_are_refused(client, expected):
    cut = expected[:, :4] / np.linalg.norm(expected[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(vectors_of(embed(client, TEXTS, dimensions=4)), cut, atol=1e-6)
    np.testing.assert_allclose(vectors_of(embed(client, TEXTS, dimensions=8)), expected, atol=1e-6)
    for dimensions in (3, 9):
        refused = embed(client, TEXTS, dimensions=dimensions)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")


def test_dimensions_that_the_folder_records_are_allowed(model, tmp_path):
    SentenceEncoder.load(model).with_parts(matryoshka_dimensions=(2, 4)).save(tmp_path)
    models = open_models({"words": tmp_path}, ServeSettings(dimensions=[6]))
    client = TestClient(app(models), base_url=HOST)
    statuses = {dim: embed(client, "a", dimensions=dim).status_code for dim in (2, 3, 4, 6, 8)}
    assert statuses == {2: 200, 3: 400, 4: 200, 6: 200, 8: 200}
    models.close()


def test_an_exported_graph_gives_the_vectors_of_its_weights(model, expected, tmp_path):
    export(model, tmp_path / "graph", TEXTS)
    models = open_models({"graph": tmp_path / "graph"}, ServeSettings())
    client = TestClient(app(models), base_url=HOST)
    np.testing.assert_allclose(vectors_of(embed(client, TEXTS)), expected, atol=1e-5)
    assert client.get("/info").json()["model_id"] == "graph"
    models.close()


@pytest.mark.parametrize("fields", [{"prompt_name": "query"}, {"input_type": "search_query"}, {"model": "words:query"}])
def test_prompts_by_name_by_purpose_and_by_model(client, model, fields):
    prompted = SentenceEncoder.load(model).encode(TEXTS, prompt_name="query", precision="fp32")
    np.testing.assert_allclose(vectors_of(embed(client, TEXTS, **fields)), prompted, atol=1e-6)


def test_prompts_and_models_that_do_not_exist_are_refused(client):
    for fields, status, param in (
        ({"prompt_name": "other"}, 400, "prompt_name"),
        ({"input_type": "other"}, 400, "input_type"),
        ({"model": "other"}, 404, "model"),
        ({"model": "words:other"}, 404, "model"),
        ({"model": "tags"}, 404, "model"),
    ):
        error = embed(client, TEXTS, **fields)
        assert (error.status_code, error.json()["error"]["param"]) == (status, param), fields
    assert embed(client, TEXTS, model="other").json()["error"]["code"] == "model_not_found"


def test_a_long_text_is_refused_and_cut_only_on_request(client, model):
    long = " ".join(["dog"] * 40)
    error = embed(client, ["a", long]).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "text 1" in error["message"]
    assert "16 tokens" in error["message"]
    cut = embed(client, ["a", long], truncate=True)
    expected = SentenceEncoder.load(model).encode(["a", long], precision="fp32")
    np.testing.assert_allclose(vectors_of(cut), expected, atol=1e-6)
    assert cut.json()["usage"]["truncated_texts"] == 1
    assert cut.headers["x-truncated-texts"] == "1"


def test_token_ids_are_refused_with_the_setting_of_the_client_unless_accepted(client, model, expected):
    ids = SentenceEncoder.load(model).tokenize(TEXTS[:2])
    refused = embed(client, ids)
    assert refused.status_code == 400
    assert "check_embedding_ctx_length=False" in refused.json()["error"]["message"]
    models = open_models({"words": model}, ServeSettings(accept_token_ids=True, precision="fp32"))
    accepting = TestClient(app(models), base_url=HOST)
    np.testing.assert_allclose(vectors_of(embed(accepting, ids)), expected[:2], atol=1e-6)
    np.testing.assert_allclose(vectors_of(embed(accepting, ids[0])), expected[:1], atol=1e-6)
    assert embed(accepting, [10**9]).status_code == 400
    models.close()


def test_models_are_listed_with_their_kinds_and_prompts(client):
    rows = client.get("/v1/models").json()["data"]
    kinds = {row["id"]: row["kind"] for row in rows}
    assert kinds == {
        "words": "encoder",
        "words:query": "encoder",
        "pairs": "scorer",
        "tags": "tagger",
        "terms": "linker",
        "relations": "extractor",
        "answers": "answerer",
        "risk": "predictor",
        "faq": "index",
    }


def test_search_finds_the_nearest_rows_of_the_table_with_their_columns(client):
    document = client.post("/search", json={"query": ["ein hund bellt", "a"], "top_k": 2}).json()
    first, second = document["results"]
    assert (first["hits"][0]["text"], first["hits"][0]["line"]) == ("ein hund bellt", 3)
    assert first["hits"][0]["similarity"] == pytest.approx(1)
    assert first["hits"][0]["columns"] == {"id": "1", "parity": "odd"}
    assert second["hits"][0]["text"] == "a"
    assert [hit["rank"] for hit in first["hits"]] == [1, 2]


def test_search_filters_by_a_column(client):
    body = {"query": "ein hund bellt", "top_k": 3, "filter": {"parity": "even"}}
    (result,) = client.post("/search", json=body).json()["results"]
    assert sorted(hit["columns"]["id"] for hit in result["hits"]) == ["0", "2", "4"]
    similarities = [hit["similarity"] for hit in result["hits"]]
    assert similarities == sorted(similarities, reverse=True)
    both = {**body, "where": "parity = 'even' and id > '0'"}
    (result,) = client.post("/search", json=both).json()["results"]
    assert sorted(hit["columns"]["id"] for hit in result["hits"]) == ["2", "4"]
    (result,) = client.post("/search", json={**body, "top_k": 1000}).json()["results"]
    assert len(result["hits"]) == 3
    wrong = client.post("/search", json={"query": "a", "where": "parity = even"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "where")
    refused = client.post("/search", json={"query": "a", "filter": {"other": "even"}})
    assert refused.status_code == 400
    assert "id, parity" in refused.json()["error"]["message"]


def test_entities_are_those_of_the_tagger_in_both_forms(client, tagger):
    from domain.biomedical import EntityTagger

    entities = EntityTagger.load(tagger)(MENTION, precision="fp32").entities
    assert entities
    (document,) = client.post("/ner", json={"text": MENTION}).json()["documents"]
    own = [(row["start"], row["end"], row["type"], row["text"]) for row in document["entities"]]
    assert own == [(one.start, one.end, one.type, one.text) for one in entities]
    hub = client.post("/ner", json={"inputs": MENTION}).json()
    assert [(row["start"], row["end"], row["entity_group"], row["word"]) for row in hub] == own
    assert [row["score"] for row in hub] == pytest.approx([one.confidence for one in entities], abs=1e-6)
    assert client.post("/ner", json={"inputs": [MENTION, "a"]}).json()[0] == hub
    least = sorted(one.confidence for one in entities)[1]
    certain = client.post("/ner", json={"text": MENTION, "threshold": least}).json()["documents"][0]["entities"]
    assert len(certain) == sum(one.confidence >= least for one in entities) < len(entities)
    assert client.post("/ner", json={"text": "a", "inputs": "b"}).status_code == 400


def test_entities_have_the_identifiers_of_the_linker_and_the_relations_of_the_model(client, tagger, linker, extractor):
    from domain.biomedical import EntityLinker, EntityTagger, RelationExtractor

    tagged = EntityTagger.load(tagger)(MENTION, precision="fp32")
    (linked,) = EntityLinker.load(linker).link_documents([tagged], precision="fp32")
    (related,) = RelationExtractor.load(extractor).relate_documents([linked], precision="fp32")
    assert related.relations
    (document,) = client.post("/ner", json={"text": MENTION, "link": True, "relate": "relations"}).json()["documents"]
    found = [(row["identifier"], pytest.approx(row["identifier_score"], abs=1e-6)) for row in document["entities"]]
    assert [(one.identifier, one.identifier_score) for one in linked.entities] == found
    ends = [tuple(argument["entity"] for argument in row["arguments"]) for row in document["relations"]]
    assert [relation.mentions for relation in related.relations] == ends
    plain = client.post("/ner", json={"text": MENTION}).json()["documents"][0]
    assert "relations" not in plain and not any(row["identifier"] for row in plain["entities"])
    lines = client.post("/ner", json={"text": MENTION, "relate": True, "format": "jsonl"}).json()["content"]
    assert len(json.loads(lines)["relations"]) == len(ends)
    rows = client.post("/ner", json={"text": MENTION, "relate": True, "format": "triples"}).json()["content"]
    assert rows.count(",causes,") == len(ends)
    assert client.post("/ner", json={"text": MENTION, "link": "words"}).status_code == 404


def test_answers_are_those_of_the_answerer_in_both_forms(client, answerer):
    from domain.biomedical import QuestionAnswerer

    reply = QuestionAnswerer.load(answerer)("Who had gout?", MENTION, top=2, precision="fp32")
    asked = {"question": "Who had gout?", "context": MENTION}
    document = client.post("/qa", json={**asked, "top_k": 2}).json()
    assert (document["answer"], document["start"], document["end"]) == reply[:3]
    assert document["probability"] == pytest.approx(reply.probability, abs=1e-6)
    assert document["sentence"] == reply.sentence
    assert [one["answer"] for one in document["candidates"]] == [one.text for one in reply.nbest]
    hub = client.post("/qa", json={"inputs": asked}).json()
    assert set(hub) == {"answer", "score", "start", "end"}
    assert hub["answer"] == reply.answer
    assert client.post("/qa", json={"question": "Who?"}).status_code == 400
    assert client.post("/qa", json={"question": "Who?", "context": " "}).status_code == 400


@pytest.mark.parametrize("path", ["/readmission", "/outcomes"])
def test_outcomes_are_those_of_the_scorer_with_chunks_of_the_text_that_is_returned(client, readmission_model, path):
    from domain.clinical import ReadmissionScorer
    from domain.clinical.predict import clean_and_join

    notes = [NOTE, "slept well again."]
    text = clean_and_join(notes)
    (score,) = ReadmissionScorer.load(readmission_model).score_texts([text], precision="fp32")
    document = client.post(path, json={"notes": notes, "return_text": True}).json()
    for name in ("probability", "calibrated"):
        assert document[name] == pytest.approx(getattr(score, name), abs=1e-6)
    assert document["alarm"] == score.alarm
    assert document["text"] == text
    assert [(one["start"], one["end"]) for one in document["chunks"]] == [(one.start, one.end) for one in score.chunks]
    assert "no medical device" in document["warning"]
    assert "text" not in client.post(path, json={"notes": notes}).json()
    empty = client.post(path, json={"notes": ""}).json()
    assert (empty["probability"], empty["reason"]) == (None, "no text")


BODIES = {
    "/ner": ("tags", "tagger", {"text": f"{MENTION} {MENTION} the mice had gout of p53 in rats of fever."}),
    "/qa": ("answers", "answerer", {"question": "Who had gout?", "context": f"{MENTION} {MENTION}"}),
    "/outcomes": ("risk", "scorer", {"notes": [NOTE, NOTE, NOTE]}),
}


@pytest.mark.parametrize("path", BODIES)
def test_the_tokens_that_are_counted_are_those_that_the_network_reads(client, models, path):
    """The sum of the network's attention masks, in batches of one window, which have no rows of padding."""
    name, attribute, body = BODIES[path]
    served, read = models.by_name[name], []

    def count(network, arguments, named):  # noqa: ARG001
        mask = named["attention_mask"] if named else arguments[1]
        read.extend(mask.sum(1).tolist())

    network = getattr(served, attribute).model.network
    hook = network.register_forward_pre_hook(count, with_kwargs=True)
    served.settings, before = served.settings.model_copy(update={"batch_tokens": 1}), served.settings
    response = client.post(path, json=body)
    hook.remove()
    served.settings = before
    assert response.status_code == 200
    assert len(read) > 1
    assert int(response.headers["x-compute-tokens"]) == sum(read)


DOCUMENTS = ["a dog barks", "개가 짖는다", "ein hund", "barks ."]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked_by_the_cross_encoder_in_the_form_of_cohere(client, cross_encoder, path):
    from teachers import load_scorer

    scores = load_scorer(cross_encoder).predict([("ein hund", text) for text in DOCUMENTS], precision="fp32")
    body = {"query": "ein hund", "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]]}
    document = client.post(path, json=body).json()
    order = np.argsort(-scores).tolist()
    assert [row["index"] for row in document["results"]] == order
    assert [row["relevance_score"] for row in document["results"]] == pytest.approx(scores[order].tolist(), abs=1e-6)
    assert document["usage"]["total_tokens"] > len(DOCUMENTS)
    best = client.post(path, json={**body, "top_n": 1, "return_documents": True}).json()["results"]
    assert [row["document"]["text"] for row in best] == [DOCUMENTS[order[0]]]
    refused = client.post(path, json={"query": "a", "documents": ["dog " * 60]})
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    cut = client.post(path, json={"query": "a", "documents": ["dog " * 60], "truncate": True})
    assert (cut.status_code, cut.headers["x-truncated-texts"]) == (200, "1")


def test_texts_are_ranked_in_the_form_of_text_embeddings_inference(client):
    body = {"query": "ein hund", "texts": DOCUMENTS}
    rows = client.post("/rerank", json={**body, "return_text": True}).json()
    assert [row["text"] for row in rows] == [DOCUMENTS[row["index"]] for row in rows]
    raw = client.post("/rerank", json={**body, "raw_scores": True}).json()
    sigmoid = [1 / (1 + np.exp(-row["score"])) for row in raw]
    assert [row["score"] for row in rows] == pytest.approx(sigmoid, abs=1e-6)
    assert client.post("/rerank", json={"query": "a"}).status_code == 400


def test_the_routes_of_text_embeddings_inference(client, expected, model):
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    vectors = client.post("/embed", json={"inputs": TEXTS}).json()
    np.testing.assert_allclose(vectors, unit, atol=1e-6)
    vectors = client.post("/embed", json={"inputs": TEXTS[0], "normalize": False}).json()
    np.testing.assert_allclose(vectors, expected[:1], atol=1e-6)
    compared = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}
    similarities = client.post("/similarity", json=compared).json()
    np.testing.assert_allclose(similarities, (unit @ unit[0])[1:], atol=1e-6)
    (tokens,) = client.post("/tokenize", json={"inputs": "ein hund"}).json()
    text_tokens = [token for token in tokens if not token["special"]]
    assert ["ein hund"[token["start"] : token["stop"]] for token in text_tokens] == ["ein", "hund"]
    assert [token["id"] for token in tokens] == SentenceEncoder.load(model).tokenize(["ein hund"])[0]
    assert client.post("/decode", json={"ids": [token["id"] for token in tokens]}).json() == ["ein hund"]
    assert len(client.post("/decode", json={"ids": [[3], [4, 5]], "skip_special_tokens": False}).json()) == 2
    facts = client.get("/info").json()
    assert (facts["model_id"], facts["max_input_length"], facts["max_client_batch_size"]) == ("words", 16, 64)


def test_the_vectors_of_tokens_are_those_that_the_encoder_pools(client, model, monkeypatch):
    encoder = SentenceEncoder.load(model)
    of_texts = client.post("/embed_all", json={"inputs": TEXTS}).json()
    for text, rows, expected in zip(TEXTS, of_texts, encoder.encode(TEXTS, precision="fp32"), strict=True):
        assert len(rows) == len(encoder.tokenize([text])[0])
        tokens = torch.tensor([rows])
        vectors = encoder.sentence_vectors(tokens, torch.ones(tokens.shape[:2], dtype=torch.long))
        np.testing.assert_allclose(vectors.detach()[0], expected, atol=1e-6)
    monkeypatch.setattr("pipelines.serve.embedding.MOST_NUMBERS", 10)
    assert client.post("/embed_all", json={"inputs": "a dog"}).status_code == 413


def test_pairs_are_scored_by_the_cross_encoder(client, cross_encoder):
    from teachers import load_scorer

    pairs = [("ein hund", text) for text in DOCUMENTS]
    scores = load_scorer(cross_encoder).predict(pairs, precision="fp32")
    rows = client.post("/predict", json={"inputs": pairs}).json()
    assert [row["score"] for (row,) in rows] == pytest.approx(scores.tolist(), abs=1e-6)
    (row,) = client.post("/predict", json={"inputs": pairs[0], "raw_scores": True}).json()
    assert row["label"] == "LABEL_0"
    assert 1 / (1 + np.exp(-row["score"])) == pytest.approx(scores[0], abs=1e-6)
    assert client.post("/predict", json={"inputs": "a text"}).status_code == 422


def test_errors_are_those_of_text_embeddings_inference(client, models, monkeypatch):
    """The statuses are those of the table of its OpenAPI page: 400, 413, 422, 424 and 429."""

    def fail(inputs):
        raise ValueError(f"broken by {len(inputs)}")

    engine = models.by_name["words"].engine
    for inputs, status, kind in (
        ("", 400, "Empty"),
        ([], 400, "Empty"),
        ("dog " * 40, 413, "Validation"),
        (["a"] * 65, 413, "Validation"),
        ({"a": "b"}, 422, "Tokenizer"),
        (["a", 1], 422, "Tokenizer"),
    ):
        response = client.post("/embed", json={"inputs": inputs})
        assert (response.status_code, response.json()["error_type"]) == (status, kind), inputs
        assert set(response.json()) == {"error", "error_type"}
    assert client.post("/embed", json={"inputs": "a", "prompt_name": "other"}).status_code == 422
    monkeypatch.setattr(engine, "_compute", fail)
    response = client.post("/embed", json={"inputs": "a text that fails"})
    assert (response.status_code, response.json()["error_type"]) == (424, "Backend")
    monkeypatch.setattr(engine, "queue_tokens", 0)
    monkeypatch.setattr(engine, "_queue", [object()])
    response = client.post("/embed", json={"inputs": "a text that has to wait"})
    assert (response.status_code, response.json()["error_type"]) == (429, "Overloaded")


def test_the_routes_of_ollama(client, expected, models):
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    document = client.post("/api/embed", json={"model": "words:latest", "input": TEXTS}).json()
    np.testing.assert_allclose(document["embeddings"], unit, atol=1e-6)
    assert document["model"] == "words:latest"
    assert document["prompt_eval_count"] > len(TEXTS)
    assert len(client.post("/api/embed", json={"input": "dog " * 40}).json()["embeddings"]) == 1
    assert isinstance(client.post("/api/embed", json={"input": "a", "model": "other"}).json()["error"], str)
    (tag,) = client.get("/api/tags").json()["models"]
    assert (tag["name"], tag["digest"]) == ("words:latest", models.by_name["words"].digest)
    assert client.post("/api/embed", json={"model": tag["model"], "input": "a"}).status_code == 200
    assert tag["size"] > 0


def test_metrics_count_requests_by_route_and_hold_nothing_of_them(client):
    embed(client, "a dog")
    client.post("/secretword", content=b"secretword")
    text = client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(values['bertrelay_requests_total{route="/v1/embeddings",status="200"}']) >= 1
    assert int(values['bertrelay_requests_total{route="other",status="404"}']) >= 1
    route = 'route="/v1/embeddings"'
    buckets = [int(value) for name, value in values.items() if f"bucket{{{route}" in name]
    assert buckets == sorted(buckets)
    assert buckets[-1] == int(values[f"bertrelay_request_duration_seconds_count{{{route}}}"])
    assert int(values['bertrelay_tokens_total{model="words"}']) > 0
    assert "secretword" not in text
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


def test_the_documentation_has_every_route_and_each_example_is_answered(client):
    paths = client.get("/openapi.json").json()["paths"]
    page = client.get("/docs")
    assert list(paths) == [endpoint.path for endpoint in ENDPOINTS]
    assert "http" not in page.text.replace(HOST, "")
    for path, operations in paths.items():
        content = operations["post"]["requestBody"]["content"]["application/json"]
        assert client.post(path, json=content["example"]).status_code == 200, path
        assert f"POST {path}<" in page.text


@pytest.mark.promise("The page loads nothing from elsewhere", about="serving")
def test_the_page_loads_nothing_from_elsewhere_and_its_policy_allows_its_script_and_style_only(client, models):
    response = client.get("/")
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[name] == f"'sha256-{digest}'"
    assert not re.search(r"https?://|src=|innerHTML|<[^>]* (style|on\w+)=", response.text)
    about = client.get("/about").json()
    assert [model["name"] for model in about["models"]] == list(models.by_name)
    (words,) = (model for model in about["models"] if model["name"] == "words")
    assert (words["dim"], words["max_tokens"], words["dimensions"]) == (8, 16, [4, 8])


@pytest.mark.parametrize("name", [name for name in WRITTEN if name not in ("html", "brat", "spacy", "triples")])
def test_entities_are_downloaded_in_every_format_as_files_have_them(client, tmp_path, name):
    content = client.post("/ner", json={"text": MENTION, "format": name}).json()["content"]
    (tmp_path / "file").write_text(content, encoding="utf-8")
    (document,) = read_documents(tmp_path / "file", name)
    (expected,) = client.post("/ner", json={"text": MENTION}).json()["documents"]
    assert [(one.text, one.type) for one in document.entities] == [
        (row["text"], row["type"]) for row in expected["entities"]
    ]
    assert client.post("/ner", json={"text": ["a"], "format": name}).status_code == 400
    assert client.post("/ner", json={"text": "a", "format": "spacy"}).status_code == 400  # no text


def test_a_page_of_entities_escapes_its_text(client):
    page = client.post("/ner", json={"text": MENTION, "format": "html"}).json()["content"]
    assert "<b>p53" not in page
    assert "T1\t" in client.post("/ner", json={"text": MENTION, "format": "brat"}).json()["content"]


def test_a_server_has_the_routes_of_its_models_only(model):
    models = open_models({"words": model}, ServeSettings())
    client = TestClient(app(models), base_url=HOST)
    assert embed(client, "a").status_code == 200
    for path in ("/ner", "/qa", "/search", "/readmission"):
        assert client.post(path, json={}).status_code == 404
    assert client.get("/v1/embeddings").status_code == 405
    models.close()


BAD_BODIES = [
    b"",
    b"[]",
    b"{",
    b"\xff",
    b'{"input": NaN}',
    b'{"input": "\\ud800"}',
    b"[" * 100_000,
    b'{"model": 1e999}',
]


@pytest.mark.parametrize("path", [endpoint.path for endpoint in ENDPOINTS])
@pytest.mark.parametrize("body", BAD_BODIES)
def test_what_is_no_body_is_refused(client, path, body):
    assert client.post(path, content=body).status_code in (400, 422)


@pytest.mark.parametrize("value", [None, 1, [], [[]], [1.5], ["a", 1], {"a": "b"}, "", [""], [None]])
def test_what_is_no_text_is_refused_and_not_quoted(client, value):
    response = embed(client, value)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    secret = embed(client, [{"secretword": "secretword"}])
    assert secret.status_code == 400
    assert "secretword" not in secret.text


def test_requests_beyond_the_limits_are_refused(client):
    assert "at most 64" in embed(client, ["a"] * 65).json()["error"]["message"]
    assert embed(client, "a" * (1 << 20)).status_code == 413
    packed = client.post("/v1/embeddings", content=b"{}", headers={"content-encoding": "gzip"})
    assert packed.status_code == 415
    assert client.post("/search", json={"query": "a", "top_k": 10**30}).status_code == 400
    assert client.post("/search", content=b'{"query": "a", "top_k": 1e999}').status_code == 400


@pytest.mark.promise("Pages of other sites cannot ask", about="serving")
def test_only_this_server_s_names_and_pages_may_ask(serve):
    client = serve(allow_host=["models.example"], allow_origin=["https://site.example"])
    for host, status in (
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("models.example", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.", 403),
        ("", 403),
        ("[", 403),
    ):
        assert client.get("/v1/models", headers={"host": host}).status_code == status, host
    for origin, status in (
        ("http://127.0.0.1", 200),
        ("https://site.example", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://127.0.0.1:1", 403),
    ):
        response = client.post("/v1/embeddings", json={"input": "a"}, headers={"origin": origin})
        assert response.status_code == status, origin
        is_shared = response.headers.get("access-control-allow-origin") == origin
        assert is_shared == (origin == "https://site.example")
    asks = {"access-control-request-method": "POST"}
    assert client.options("/v1/embeddings", headers={"origin": "https://site.example", **asks}).status_code == 204
    assert client.options("/v1/embeddings", headers={"origin": "https://evil.example", **asks}).status_code == 403


def test_a_server_with_keys_answers_none_without(serve):
    client = serve(keys=["first", "second"])
    for key, status in (("first", 200), ("second", 200), ("firs", 401), ("", 401), ("first second", 401)):
        response = client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        assert response.status_code == status, key
    refused = client.post("/v1/embeddings", json={"input": "a"})
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert client.get("/v1/models", headers={"authorization": "Basic first"}).status_code == 401
    assert client.get("/health").json() == {"status": "ok"}


def test_answers_have_an_id_their_times_and_a_strict_policy(client):
    response = embed(client, "a", model="words")
    assert {"x-compute-time", "x-queue-time", "x-compute-tokens"} <= set(response.headers)
    assert len(response.headers["x-request-id"]) == 32
    assert "default-src 'none'" in response.headers["content-security-policy"]
    sent = client.get("/health", headers={"x-request-id": "mine-1"})
    assert sent.headers["x-request-id"] == "mine-1"
    assert client.get("/health", headers={"x-request-id": "<b>"}).headers["x-request-id"] != "<b>"
    for path in ("/../../etc/passwd", "/%2e%2e/etc/passwd", "/static/../x", "/v1/embeddings/"):
        response = client.get(path, follow_redirects=False)
        assert response.status_code in (404, 405), path
        assert "error" in response.json()


def test_a_full_queue_answers_429_and_says_when_to_retry(client, models, monkeypatch):
    engine = models.by_name["words"].engine
    monkeypatch.setattr(engine, "queue_tokens", 0)
    monkeypatch.setattr(engine, "_queue", [object()])
    response = embed(client, "a text that no cache has")
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "rate_limit_error"


def test_a_failure_answers_500_with_an_id_and_neither_answer_nor_log_quotes_the_text(
    client, models, monkeypatch, capsys
):
    def fail(inputs):
        raise ValueError(f"cannot compute {inputs!r} of secretword")

    monkeypatch.setattr(models.by_name["tags"].engine, "_compute", fail)
    response = client.post("/ner", json={"text": "secretword"}, headers={"x-request-id": "failing-1"})
    assert response.status_code == 500
    assert "failing-1" in response.json()["error"]["message"]
    logged = capsys.readouterr().err
    assert "failing-1" in logged
    assert "ValueError" in logged
    assert "secretword" not in response.text + logged
    assert embed(client, "a").status_code == 200


def test_requests_that_wait_share_a_batch(models, monkeypatch):
    tagger, sizes, gate = models.by_name["tags"], [], Event()
    compute = tagger.engine._compute

    def hold(texts):
        sizes.append(len(texts))
        assert gate.wait(60)
        return compute(texts)

    async def ask_five():
        first = asyncio.create_task(tagger.tag(["a"], Usage()))
        while not sizes:
            await asyncio.sleep(0.01)
        others = [asyncio.create_task(tagger.tag([MENTION], Usage())) for _ in range(4)]
        await asyncio.sleep(0.01)
        gate.set()
        return await asyncio.gather(first, *others)

    monkeypatch.setattr(tagger.engine, "_compute", hold)
    asyncio.run(ask_five())
    assert sizes == [1, 4]


def test_a_client_that_goes_cancels_its_request(models, monkeypatch):
    """Plain ASGI: the client sends its request, and closes the connection while the network computes."""
    application, engine = app(models), models.by_name["tags"].engine
    messages = [{"type": "http.request", "body": json.dumps({"text": "a"}).encode()}]
    headers = [(b"host", b"127.0.0.1")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/ner",
        "raw_path": b"/ner",
        "query_string": b"",
        "headers": headers,
    }
    sent = []

    async def receive():
        if messages:
            return messages.pop()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    job = Future()
    monkeypatch.setattr(engine, "submit", lambda *_: job)
    whole = {**scope, "scheme": "http", "server": ("127.0.0.1", 80), "root_path": ""}
    asyncio.run(application(whole, receive, send))
    assert job.cancelled()
    assert sent[0]["status"] == 499


@pytest.mark.promise("With `--invariant` a text has the same bits whatever is asked with it", about="serving")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_invariant_server_gives_a_text_the_same_bits_whatever_is_asked_with_it(model, precision):
    settings = ServeSettings(invariant=True, precision=precision, cache_mb=0, batch_tokens=1024)
    models = open_models({"words": model}, settings)
    client = TestClient(app(models), base_url=HOST)
    texts = [*TEXTS, "a dog barks . ein hund bellt .", *(f"{word} dog" for word in TEXTS[0].split())]
    singly = [vectors_of(embed(client, text))[0] for text in texts]
    for asked in (texts[::-1], [text for text in texts for _ in range(2)], ["dog " * 9, *texts[3:]]):
        rows = vectors_of(embed(client, asked))
        for text, row in zip(asked, rows, strict=True):
            assert text not in texts or (row == singly[texts.index(text)]).all()
    batches = models.by_name["words"].engine.counts.batches
    assert batches < 1 + 3 * len(texts), "texts share batches"
    encoded = SentenceEncoder.load(model).encode(texts, precision=precision)
    np.testing.assert_allclose(singly, encoded, atol=1e-6 if precision == "fp32" else 0.05)
    models.close()


def test_words_rank_hits_of_an_index_that_has_them(client, model, table, tmp_path):
    body = {"query": "ein hund bellt", "top_k": 1, "mode": "hybrid"}
    refused = client.post("/search", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "mode")
    index = build_index(model, table, tmp_path / "index", show=["parity"], lexical=True)
    models = open_models({"words": model, "index": tmp_path / "index"}, ServeSettings())
    lexical = TestClient(app(models), base_url=HOST)
    [expected] = index.search(["ein hund bellt"], 1, mode="hybrid")
    for more in ({}, {"filter": {"parity": "odd"}}):
        ([hit],) = (result["hits"] for result in lexical.post("/search", json=body | more).json()["results"])
        assert (hit["text"], hit["words"]) == ("ein hund bellt", ["ein", "hund", "bellt"])
        assert hit["score"] == pytest.approx(expected[0].score)
    models.close()


def test_a_student_answers_from_an_index_of_its_teacher(model, table, tmp_path):
    index = build_index(model, table, tmp_path / "index")
    teacher = SentenceEncoder.load(model)
    student = teacher.with_parts(spaces=[index.manifest.origin.model_digest], normalize=True)
    student.save(tmp_path / "student")
    models = open_models({"student": tmp_path / "student", "index": tmp_path / "index"}, ServeSettings())
    client = TestClient(app(models), base_url=HOST)
    (result,) = client.post("/search", json={"query": "ein hund bellt", "top_k": 1}).json()["results"]
    assert result["hits"][0]["text"] == "ein hund bellt"
    models.close()


def test_no_vectors_are_kept_of_sensitive_texts(model):
    with sensitive_data():
        models = open_models({"words": model}, ServeSettings())
    assert models.by_name["words"].cache.limit == 0
    models.close()


def test_the_memory_of_vectors_is_bounded_and_forgets_the_oldest():
    from pipelines.serve.embedding import VectorCache

    cache = VectorCache(10 * (256 + 32))
    for number in range(30):
        cache.put(bytes([number]), np.full(8, number, np.float32))
        cache.get(b"\x00")
        assert cache.size <= cache.limit
    assert [number for number in range(30) if cache.get(bytes([number])) is not None] == [0, *range(21, 30)]


def test_names_are_those_of_folders_and_two_of_one_name_are_refused(tmp_path, table):
    folder = tmp_path / "student" / "0123456789ab" / "model"
    folder.mkdir(parents=True)
    assert list(named_sources([("", str(folder)), ("mine", str(folder)), ("", table), ("", "a/b")])) == [
        "student",
        "mine",
        "faq",
        "a/b",
    ]
    with pytest.raises(RequestError, match="found student twice; name one: NAME=FOLDER"):
        named_sources([("", str(folder)), ("student", "x")])


def test_an_index_folder_is_asked_by_the_encoder_that_it_belongs_to(model, table, tmp_path):
    build_index(model, table, tmp_path / "index", show=["id"])
    models = open_models({"words": model, "index": tmp_path / "index"}, ServeSettings())
    client = TestClient(app(models), base_url=HOST)
    (result,) = client.post("/search", json={"query": "a", "top_k": 1}).json()["results"]
    assert result["hits"][0]["columns"] == {"id": "4"}
    models.close()
    with pytest.raises(RequestError, match="expected an encoder beside it"):
        open_models({"index": tmp_path / "index"}, ServeSettings())
    with pytest.raises(RequestError, match="expected an encoder, a cross-encoder"):
        open_models({"x": tmp_path}, ServeSettings())


def test_an_answer_in_two_parts_does_not_wait_for_the_client():
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_other_machines_reach_a_server_with_keys_only(tmp_path):
    assert AddressOptions(host="::1").host == "::1"
    for host in ("0.0.0.0", "192.168.0.1", "models.example"):
        with pytest.raises(ValueError, match="--key-file"):
            AddressOptions(host=host)
        assert AddressOptions(host=host, key_file=tmp_path / "keys").host == host
