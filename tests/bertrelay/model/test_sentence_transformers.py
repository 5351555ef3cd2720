"""Code written for sentence-transformers runs here with its import line changed, and gives the same."""

import numpy as np
import pytest
import torch

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import Prompts

peer = pytest.importorskip("sentence_transformers")

THEIRS = "from sentence_transformers import SentenceTransformer"
OURS = "from bertrelay import SentenceEncoder as SentenceTransformer"

EXAMPLES = {
    "encode and compare": """
        model = SentenceTransformer(path, device="cpu")
        embeddings = model.encode(texts)
        similarities = model.similarity(embeddings, embeddings)
        print(embeddings.shape, similarities.shape)
        result = embeddings, similarities, model.encode(texts[0]), model.similarity(embeddings[0], embeddings[1:])
    """,
    "queries and documents": """
        model = SentenceTransformer(path, device="cpu")
        queries = model.encode_query(texts[:2])
        documents = model.encode_document(texts[2:], batch_size=2, show_progress_bar=False)
        result = queries, documents, model.similarity(queries, documents), model.encode_query(texts[0], prompt="Rain. ")
    """,
    "prompts": """
        model = SentenceTransformer(path, device="cpu")
        result = (
            model.encode(texts),
            model.encode(texts, prompt_name="query"),
            model.encode(texts, prompt="A dog runs. "),
            model.encode(texts, prompt_name="query", prompt="A dog runs. "),
            model.encode(texts, prompt=""),
        )
    """,
    "attributes": """
        model = SentenceTransformer(path, device="cpu")
        model.prompts = {"title": "Rain: "}
        model.default_prompt_name = "title"
        model.truncate_dim = 5
        model.save_pretrained(path + "/again")
        again = SentenceTransformer(path + "/again", device="cpu")
        result = model.encode(texts), model.get_embedding_dimension(), again.encode(texts)
    """,
    "queries and documents without a prompt of their own": """
        model = SentenceTransformer(path, device="cpu")
        model.default_prompt_name = "query"
        result = [model.encode_query(texts), model.encode_document(texts)]
        model.prompts = {"title": "Two dogs: "}
        model.default_prompt_name = "title"
        result += [model.encode(texts), model.encode_query(texts), model.encode_document(texts)]
        model.prompts = {"title": "Two dogs: ", "query": ""}
        result += [model.encode_query(texts), model.encode_document(texts), model.encode_query(texts, prompt="")]
    """,
    "attributes without a value, and by the enumeration": """
        from sentence_transformers import SimilarityFunction
        model = SentenceTransformer(path, device="cpu")
        result = [model.prompts["query"], "title" in model.prompts, sorted(model.prompts), len(model.prompts)]
        result += [model.prompts == {"query": "Two dogs: ", "document": "Rain: "}, model.prompts.get("title", "")]
        model.prompts["query"] = "A dog: "
        result += [model.encode(texts, prompt_name="query", precision=None)]
        model.similarity_fn_name = SimilarityFunction.EUCLIDEAN
        result += [model.similarity_fn_name, model.similarity(result[-1], result[-1])]
        model.similarity_fn_name = None
        result += [model.similarity_fn_name]
    """,
    "errors": """
        model = SentenceTransformer(path, device="cpu")
        result = []
        for options in ({"prompt_name": "title"}, {"precision": "int7"}):
            try:
                model.encode(texts, **options)
            except ValueError as error:
                result.append("a ValueError")
        try:
            model.similarity_fn_name = "jaccard"
        except ValueError as error:
            result.append("a ValueError")
    """,
    "semantic search": """
        from sentence_transformers import util
        model = SentenceTransformer(path, device="cpu")
        corpus = model.encode(texts[2:], convert_to_tensor=True)
        queries = model.encode(texts[:2], convert_to_tensor=True)
        hits = util.semantic_search(queries, corpus, top_k=3)
        scores, rows = torch.topk(model.similarity(queries[0], corpus)[0], k=3)
        result = [(hit["corpus_id"], hit["score"]) for each in hits for hit in each], scores, rows
    """,
    "paraphrase mining": """
        from sentence_transformers import util
        model = SentenceTransformer(path, device="cpu")
        result = util.paraphrase_mining(model, texts, top_k=2, max_pairs=5)
    """,
    "clusters": """
        from sentence_transformers import util
        model = SentenceTransformer(path, device="cpu")
        embeddings = model.encode(texts, convert_to_tensor=True)
        result = util.community_detection(embeddings, min_community_size=1, threshold=0.9)
    """,
    "shapes of the result": """
        model = SentenceTransformer(path, device="cpu")
        model.max_seq_length = 6
        result = (
            model.encode(texts, normalize_embeddings=True, truncate_dim=4),
            model.encode(texts, convert_to_tensor=True, normalize_embeddings=True),
            model.encode(texts, convert_to_numpy=False),
            model.encode(texts[0], convert_to_numpy=False),
            model.encode(texts[0], precision="float32"),
            model.encode(texts[0], convert_to_tensor=True, truncate_dim=3),
            model.max_seq_length,
            model.get_embedding_dimension(),
            str(model.device),
        )
    """,
    "other similarities": """
        model = SentenceTransformer(path, device="cpu")
        result = [model.similarity_fn_name]
        embeddings = model.encode(texts)
        for name in ("cosine", "dot", "euclidean", "manhattan"):
            model.similarity_fn_name = name
            result += [model.similarity(embeddings, embeddings[:3])]
            result += [model.similarity_pairwise(embeddings[1:], embeddings[:-1])]
    """,
}


@pytest.fixture
def path(make_encoder, tmp_path, monkeypatch):
    """A model with prompts; both compute in float32, as sentence-transformers does by itself."""
    monkeypatch.setattr("bertrelay.device.computes_in_bf16", lambda _: False)
    prompts = Prompts({"query": "Two dogs: ", "document": "Rain: "}, default="document")
    make_encoder(prompts=prompts, similarity_fn_name="dot").save(tmp_path)
    return str(tmp_path)


@pytest.mark.promise("sentence-transformers' examples give the same with the import line changed", about="elsewhere")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_the_same_with_its_import_line_changed(name, path, sentences):
    ours, theirs = ({"path": path, "texts": sentences, "torch": torch} for _ in range(2))
    body = "\n".join(line.removeprefix(" " * 8) for line in EXAMPLES[name].splitlines())
    exec(f"{OURS}\n{body}", ours)
    exec(f"{THEIRS}\n{body}", theirs)
    assert_same(ours["result"], theirs["result"])


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(ours, str | int):
        assert ours == theirs
    else:
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype) if not isinstance(ours, float) else True
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_queries_and_documents_without_a_prompt_of_their_own(path, make_encoder, sentences):
    """No prompt is used then, not the default one. The prompt of documents may have the name `passage`, as in E5."""
    make_encoder(prompts=Prompts({"title": "Rain: "}, default="title")).save(path)
    encoder, theirs = SentenceEncoder(path), peer.SentenceTransformer(path, device="cpu")
    np.testing.assert_allclose(encoder.encode_query(sentences), theirs.encode_query(sentences), atol=2e-5)
    encoder = make_encoder(prompts=Prompts({"passage": "Rain: "}))
    result, expected = encoder.encode_document(sentences), encoder.encode(sentences, prompt_name="passage")
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected 1 or more, found 0"),
        ({"batch_tokens": "many"}, "batch_tokens: expected 1 or more, found 'many'"),
        ({"truncate_dim": -1}, "truncate_dim: expected 1 or more, found -1"),
        ({"prompt_name": "title"}, r"document.*query.*'title'"),
        ({"precision": "int8"}, "precision: .* found 'int8'; for vectors in fewer bits .*quantized"),
        ({"prompt": 3}, "prompt: expected text, found 3"),
    ],
)
def test_options_without_a_meaning_are_refused(options, message, path):
    with pytest.raises(RequestError, match=message):
        SentenceEncoder(path).encode(["Rain."], **options)


def test_an_attribute_without_a_meaning_is_refused(path):
    encoder = SentenceEncoder(path)
    wrong = {"default_prompt_name": "title", "truncate_dim": 0, "max_seq_length": 0, "similarity_fn_name": "maxsim"}
    for name, value in wrong.items():
        with pytest.raises(RequestError, match=f"{name.split('_')[-2]}.*found"):
            setattr(encoder, name, value)
    assert encoder.similarity_fn_name == "dot"
    with pytest.raises(RequestError, match="prompts: expected a text by name, found 3 under 'query'"):
        encoder.prompts["query"] = 3
    with pytest.raises(RequestError, match="prompts: expected a text by name, found 3 under 'query'"):
        encoder.prompts = {"query": 3}
    with pytest.raises(RequestError, match="special tokens"):
        encoder.max_seq_length = 2
    assert encoder.max_seq_length == 40
    encoder.max_seq_length = None
    assert encoder.max_seq_length == 40
