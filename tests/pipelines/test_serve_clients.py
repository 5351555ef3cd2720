"""The server asked by the clients that people use, which are installed in an environment of their own.

CLIENTS names its Python; without it the tests are skipped. The environment has openai, cohere, langchain-openai,
and llama-index-embeddings-text-embeddings-inference.
"""

import json
import os
import re
import subprocess
import time

import numpy as np
import pytest

CLIENTS = os.environ.get("CLIENTS")
READY = re.compile(r"ready: (http://127\.0\.0\.1:\d+)\n")
WORDS = ["a", "dog", "barks", "ein", "hund", "bellt", "개가", "짖는다", "."]
TEXTS = [" ".join(WORDS[number % 7 : number % 7 + 1 + number % 3]) for number in range(2048)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CLIENTS is None, reason="CLIENTS names no Python that has the clients"),
]


@pytest.fixture
def address(start_forked, model, cross_encoder):
    def start(*words):
        served = [f"words={model}", f"pairs={cross_encoder}"]
        process, printed = start_forked("serve", *served, "--precision", "fp32", "--port", "0", *words)
        while not (ready := READY.search(printed()[0])):
            assert process.is_alive(), printed()[1]
            time.sleep(0.1)
        return ready[1]

    return start


def run_client(code, *arguments):
    """The JSON that a program of the clients' environment prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    command = [CLIENTS, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OPENAI = """
import json, sys, openai
texts = json.load(sys.stdin)
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", max_retries=0)
def refusal(**fields):
    try:
        client.embeddings.create(**{"model": "words", "input": "a", **fields})
    except openai.APIStatusError as error:
        return [type(error).__name__, error.code, error.param]
answer = client.embeddings.create(model="words", input=texts)
print(json.dumps({
    "vectors": [row.embedding for row in answer.data],
    "floats": client.embeddings.create(model="words", input=texts[:3], encoding_format="float").data[2].embedding,
    "cut": client.embeddings.create(model="words", input="a dog", dimensions=4).data[0].embedding,
    "tokens": answer.usage.total_tokens,
    "models": [model.id for model in client.models.list()],
    "refusals": [refusal(model="other"), refusal(dimensions=3), refusal(input="dog " * 40), refusal(input=[1, 2])],
}))
"""


@pytest.mark.promise("OpenAI's client gets the vectors of `encode`", about="elsewhere")
def test_openai(address, encoder):
    document = run_client(OPENAI, address("--dimensions", "4"))
    expected = encoder.encode(TEXTS, precision="fp32")
    np.testing.assert_allclose(document["vectors"], expected, atol=1e-6)
    np.testing.assert_allclose(document["floats"], expected[2], atol=1e-6)
    first = encoder.encode(["a dog"], precision="fp32")[0, :4]
    np.testing.assert_allclose(document["cut"], first / np.linalg.norm(first), atol=1e-6)
    assert document["tokens"] > len(TEXTS)
    assert document["models"] == ["words", "words:query", "pairs"]
    assert document["refusals"] == [
        ["NotFoundError", "model_not_found", "model"],
        ["BadRequestError", "invalid", "dimensions"],
        ["BadRequestError", "context_length_exceeded", "input"],
        ["BadRequestError", "invalid", "input"],
    ]


RETRIES = """
import json, sys, openai
from concurrent.futures import ThreadPoolExecutor
texts = json.load(sys.stdin)
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", max_retries=int(sys.argv[2]))
def embed(number):
    try:
        rows = client.embeddings.create(model="words", input=[f"{number} {text}" for text in texts]).data
        return len(rows)
    except openai.RateLimitError as error:
        return int(error.response.headers["retry-after"])
with ThreadPoolExecutor(12) as threads:
    print(json.dumps(list(threads.map(embed, range(12)))))
"""


def test_a_client_of_a_full_server_retries_until_it_is_answered(address):
    server = address("--queue-tokens", "1", "--cache-mb", "0")
    without = run_client(RETRIES, server, 0)
    assert 0 < sum(answer == len(TEXTS) for answer in without) < 12
    assert run_client(RETRIES, server, 60) == [len(TEXTS)] * 12


COHERE = """
import json, sys, cohere
client = cohere.ClientV2(api_key="none", base_url=sys.argv[1])
answer = client.rerank(model="pairs", query="ein hund", documents=["a dog barks", "barks .", "ein"], top_n=2)
print(json.dumps([[row.index, row.relevance_score] for row in answer.results]))
"""


def test_cohere(address, cross_encoder):
    from teachers import load_scorer

    texts = ["a dog barks", "barks .", "ein"]
    scores = load_scorer(cross_encoder).predict([("ein hund", text) for text in texts], precision="fp32")
    order = np.argsort(-scores)[:2].tolist()
    rows = run_client(COHERE, address())
    assert [index for index, _ in rows] == order
    assert [score for _, score in rows] == pytest.approx(scores[order].tolist(), abs=1e-6)


LANGCHAIN = """
import json, sys
from langchain_openai import OpenAIEmbeddings
texts = json.load(sys.stdin)
model = OpenAIEmbeddings(model="words", base_url=sys.argv[1] + "/v1", check_embedding_ctx_length=False)
print(json.dumps(model.embed_documents(texts)))
"""
LLAMA_INDEX = """
import json, sys
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
texts = json.load(sys.stdin)
model = TextEmbeddingsInference(model_name="words", base_url=sys.argv[1], embed_batch_size=32)
print(json.dumps(model.get_text_embedding_batch(texts[:100])))
"""


def test_langchain(address, encoder):
    vectors = run_client(LANGCHAIN, address())
    np.testing.assert_allclose(vectors, encoder.encode(TEXTS, precision="fp32"), atol=1e-6)


def test_llama_index(address, encoder):
    vectors = np.array(run_client(LLAMA_INDEX, address()))
    expected = encoder.encode(TEXTS[:100], precision="fp32")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), expected, atol=1e-6)
