import pytest
from indexes import BLOCK

from bertrelay import encode_files
from bertrelay.inference import encode as encoding
from bertrelay.model.encoder import SentenceEncoder
from students.searching import build as building
from students.searching import faiss as neighbours
from students.searching import grow


@pytest.fixture(scope="session")
def texts():
    """61 different sentences."""
    subjects = ["the dog", "two cats", "ein Hund", "le chat", "eine Maus"]
    verbs = ["runs", "sleeps", "bellt", "dort", "waits", "singt"]
    adverbs = ["here", "im Haus", "dehors"]
    return [f"{subject} {verb} {adverb}" for subject in subjects for verb in verbs for adverb in adverbs][:61]


@pytest.fixture(scope="session")
def encoder(tiny_encoder, texts):
    return tiny_encoder("bert", texts)


@pytest.fixture
def corpus(texts, tmp_path):
    """The sentences, and three blank lines: 4, 20 and the last one."""
    lines = [*texts[:3], "", *texts[3:18], " \t", *texts[18:], ""]
    path = tmp_path / "corpus.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def small_segments(monkeypatch):
    """Segments of 24 sentences, in blocks of 8."""
    monkeypatch.setattr(building, "SEGMENT_ROWS", 3 * BLOCK)
    monkeypatch.setattr(grow, "SEGMENT_ROWS", 3 * BLOCK)
    monkeypatch.setattr(neighbours, "EXACT_BLOCK", BLOCK)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(encoding, "BLOCK_SENTENCES", BLOCK)
    monkeypatch.setattr(encode_files, "BLOCK_SENTENCES", BLOCK)
    monkeypatch.setattr(neighbours, "GRAPH_BLOCK", BLOCK)


@pytest.fixture
def encoded(monkeypatch):
    """Every sentence that is tokenized, which is what happens to one that is encoded."""
    seen = []
    tokenize = SentenceEncoder.tokenize

    def spy(self, sentences):
        seen.extend(sentences)
        return tokenize(self, sentences)

    monkeypatch.setattr(SentenceEncoder, "tokenize", spy)
    return seen


@pytest.fixture
def linked(monkeypatch):
    """The number of vectors of each graph that is built."""
    counts, build_structure = [], building.build_structure

    def spy(kind, vectors, hnsw):
        counts.append(len(vectors))
        return build_structure(kind, vectors, hnsw)

    monkeypatch.setattr(building, "build_structure", spy)
    return counts
