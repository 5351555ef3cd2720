import json
import os
import resource
import secrets
import signal
import tracemalloc
from hashlib import blake2b
from itertools import chain, pairwise
from multiprocessing import get_context

import numpy as np
import pytest
from datasets import Dataset

import domain.pretraining.corpus as corpus_module
from bertrelay.cache import Cache
from bertrelay.errors import RequestError, WorkError
from bertrelay.fingerprint import Digests
from bertrelay.model.new import train_unigram, train_wordpiece
from domain.pretraining import documents as documents_module
from domain.pretraining.corpus import build_corpus
from domain.pretraining.settings import DocumentSource
from domain.text.sentences import sentence_spans

WORDS = ["heart", "lung", "liver", "kidney", "pain", "fever", "cough", "drug", "dose", "trial", "cell", "gene", "mouse"]
TOKENIZER = train_wordpiece([" ".join(WORDS) + " the of in was. 0123456789"], 160, 64)


def texts(count, first=0):
    """Documents of one to seven sentences of one to nine words."""
    return [_text(np.random.default_rng(number)) for number in range(first, first + count)]


def _text(generator):
    lengths = generator.integers(1, 10, generator.integers(1, 8))
    return " ".join(" ".join(generator.choice(WORDS, length)).capitalize() + "." for length in lengths)


def written(path, documents):
    rows = ({"text": document} if isinstance(document, str) else document for document in documents)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build(folder, *files, share=0.0, tokenizer=TOKENIZER, **settings):
    sources = [DocumentSource(path=str(file), **settings) for file in files]
    return build_corpus(sources, tokenizer, Cache(folder / "cache"), Digests(), share)


def sentences_of(corpus):
    """The ids of each sentence of each document."""
    ids = [corpus.tokens(start, stop).tolist() for start, stop in pairwise(corpus.sentence_starts.tolist())]
    bounds = corpus.document_starts.tolist()
    return [ids[start:stop] for start, stop in pairwise(bounds)]


def expected(documents, tokenizer=TOKENIZER):
    """The ids that transformers gives, sentence by sentence."""
    cut = [[document[a:b] for a, b in sentence_spans(document)] for document in documents]
    return [[tokenizer(sentence, add_special_tokens=False)["input_ids"] for sentence in sentences] for sentences in cut]


@pytest.mark.parametrize("size", [300, 2**23])
def test_a_corpus_holds_the_ids_of_the_sentences_of_its_documents(tmp_path, monkeypatch, size):
    monkeypatch.setattr(corpus_module, "SHARD_CHARACTERS", size)
    monkeypatch.setattr(corpus_module, "BATCH", 5)
    wrapped = "The heart of the  mouse was in pain, and the cell of the gene of the\nmouse was in pain."
    second = written(tmp_path / "b.jsonl", [*texts(20, 40), wrapped])
    corpus = build(tmp_path, written(tmp_path / "a.jsonl", texts(40)), second)
    expected_ids = expected([*texts(60), " ".join(wrapped.split())])
    assert sentences_of(corpus) == expected_ids
    assert len(corpus) == corpus.facts["sentences"] == corpus.document_starts[-1]
    assert (corpus.facts["shards"] > 10) == (size < 1000)
    ids = [token for document in expected_ids for sentence in document for token in sentence]
    for start, stop in np.sort(np.random.default_rng(0).integers(0, len(ids) + 1, (100, 2))).tolist():
        assert corpus.tokens(start, stop).tolist() == ids[start:stop]
    first, *_ = sorted((tmp_path / "cache").rglob("*.arrow"))
    rows = Dataset.from_file(str(first))
    assert rows["lengths"] == [list(map(len, document)) for document in expected_ids][: len(rows)]
    assert list(chain(*rows["ids"])) == ids[: sum(map(len, rows["ids"]))]
    inside = corpus.tokens(0, corpus.sentence_starts[1])
    assert not inside.flags.owndata and not inside.flags.writeable  # mapped, and not read


def test_a_group_is_held_out_as_a_whole_and_adding_documents_moves_none(tmp_path):
    def held_out(numbers, share=0.3):
        rows = [{"text": texts(1, n)[0], "patient": n // 3} for n in numbers]
        corpus = build(tmp_path, written(tmp_path / "a.jsonl", rows), share=share, group="patient")
        return dict(zip(numbers, corpus.held_out.tolist(), strict=True))

    few, many = held_out(range(60)), held_out([*range(300, 360), *range(60, 0, -1), 0])
    more = held_out(range(60), share=0.5)
    assert all(more[number] or not tokens for number, tokens in few.items()) and sum(more.values()) > sum(few.values())
    assert all(many[number] == tokens for number, tokens in few.items())
    assert all(few[number] == few[number - number % 3] for number in few)
    assert 0.15 < np.mean(list(many.values())) < 0.45


def test_groups_keep_patients_apart_and_documents_without_one_are_alone(tmp_path):
    rows = [{"text": "A heart.", "p": 1}, {"text": "A lung.", "p": 2}, {"text": "A dose.", "p": 1}, {"text": "A cell."}]
    rows += [{"text": "A gene."}, {"text": "A bone.", "p": 2}]
    groups = build(tmp_path, written(tmp_path / "a.jsonl", rows), group="p").groups.tolist()
    assert groups[0] == groups[2] and groups[1] == groups[5]
    assert len(set(groups)) == 4


@pytest.mark.promise("No hash on disk shows whose a document is", about="privacy")
def test_no_hash_on_the_disk_shows_whose_a_document_is(tmp_path, monkeypatch):
    keys, draw = [], secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda size: keys.append(draw(size)) or keys[-1])
    rows = [{"text": text, "p": f"patient {n % 9}"} for n, text in enumerate(texts(60))]
    file = written(tmp_path / "a.jsonl", rows)
    hashed = {
        blake2b(f"group\0patient {n}".encode(), digest_size=8, key=key).digest()
        for n in range(9)
        for key in (b"", corpus_module.HASH_KEY)
    }
    one, other = (build(tmp_path / run, file, group="p", share=0.4) for run in ("one", "other"))
    assert one.groups.tolist() == other.groups.tolist() == [n % 9 for n in range(60)]
    assert one.held_out.tolist() == other.held_out.tolist()
    files = [sorted((tmp_path / run).rglob("*.arrow")) for run in ("one", "other")]
    hashes = [[group for file in part for group in Dataset.from_file(str(file))["group"]] for part in files]
    assert all(len(set(part)) == 9 for part in hashes) and not set(hashes[0]) & set(hashes[1])
    assert not hashed & {value.to_bytes(8, "little", signed=True) for part in hashes for value in part}
    contents = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert len(set(keys)) == 2 and not any(key.encode() in contents or bytes.fromhex(key) in contents for key in keys)


def test_documents_that_cannot_be_trained_from_are_counted_with_their_reason(tmp_path, capsys):
    rows = [*texts(200), "", {"text": None}, "\u0007\u0007", "Heart 肺 lung 肝.", {"text": 3}]
    corpus = build(tmp_path, written(tmp_path / "a.jsonl", rows))
    alone = sum(len(document) == 1 for document in expected(texts(200))) + 1
    assert corpus.facts["documents"] == 201 and corpus.facts["documents_of_one_sentence"] == alone
    assert corpus.facts["left_out"] == {"without text": 3}
    assert corpus.facts["unknown_tokens"] == 2
    assert corpus.facts["rejects"] == {"not text": 1}
    printed = capsys.readouterr().err
    assert "left out 3 × without text" in printed and "1 × not text" in printed
    (listed,) = (tmp_path / "cache").rglob("rejects.jsonl")
    assert json.loads(listed.read_text()) == {"file": str(tmp_path / "a.jsonl"), "line": 205, "reason": "not text"}


def test_too_many_unusable_documents_stop_and_a_larger_limit_resumes_from_there(tmp_path):
    file = written(tmp_path / "a.jsonl", [*texts(50), {"text": 3}, {"text": 4}])
    source = [DocumentSource(path=str(file))]
    with pytest.raises(WorkError, match=r"2 of 52 records cannot be used.*2 × not text"):
        build_corpus(source, TOKENIZER, Cache(tmp_path / "cache"), Digests())
    assert build_corpus(source, TOKENIZER, Cache(tmp_path / "cache"), Digests(), 0.0, 0.05).facts["documents"] == 50


@pytest.mark.parametrize(
    ("documents", "share", "message"),
    [
        (["", " "], 0, r"no document with text was found \(left out 2 × without text\)"),
        (texts(3), 1e-6, "held_out_share: 1e-06 of 3 documents holds none of them out"),
        (texts(3), 0.999999, "holds all of them out"),
    ],
)
def test_a_corpus_of_nothing_or_with_all_or_nothing_held_out_is_refused(tmp_path, documents, share, message):
    with pytest.raises(RequestError, match=message):
        build(tmp_path, written(tmp_path / "a.jsonl", documents), share=share)


@pytest.mark.promise("No text of a document is in errors or rejects", about="privacy")
def test_no_text_of_a_document_is_in_errors_or_rejects(tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "MARK one."}\n{"text": ["MARK"]}\n{"text": "MARK\n')
    with pytest.raises(WorkError) as refused:
        build(tmp_path, file)
    listed = "".join(path.read_text() for path in (tmp_path / "cache").rglob("*.json*"))
    assert "MARK" not in str(refused.value) + capsys.readouterr().err + listed


def test_what_changes_the_corpus_makes_another_and_nothing_else_does(tmp_path, monkeypatch):
    file = written(tmp_path / "a.jsonl", [{"text": text, "other": f"Fever. {text}"} for text in texts(30)])
    unigram = train_unigram(texts(30), 60, 32)
    assert sentences_of(build(tmp_path, file)) == expected(texts(30))
    assert sentences_of(build(tmp_path, file, tokenizer=unigram)) == expected(texts(30), unigram)
    assert len(sentences_of(build(tmp_path, file, text="other"))[0]) == len(expected(texts(30))[0]) + 1
    with monkeypatch.context() as unread:
        unread.setattr(documents_module, "read_documents", None)
        assert sentences_of(build(tmp_path, file)) == expected(texts(30))
    written(file, [*texts(30), "One more."])
    assert len(sentences_of(build(tmp_path, file))) == 31


def test_memory_holds_one_shard_whatever_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "SHARD_CHARACTERS", 3000)
    peaks = []
    for count in (60, 60, 500):  # what is made once is made by the first
        file = written(tmp_path / f"{len(peaks)}.jsonl", texts(count, count * len(peaks)))
        tracemalloc.start()
        corpus = build(tmp_path, file)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert corpus.facts["shards"] > 12
    assert peaks[2] < 1.5 * peaks[1]


def in_another_process(work):
    """Runs a preparation in a process; returns its exit code, negative for a signal."""
    process = get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@pytest.fixture
def steps(monkeypatch):
    """The files that are read and the shards that are written, in order; a name put before them kills instead."""
    seen: list[str] = []
    write, read = corpus_module._write_shard, documents_module.read_documents

    def write_shard(path, batch):
        number = path.name.strip(".").partition(".")[0]
        if f"kill at {number}" in seen:
            path.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(number)
        write(path, batch)

    def read_documents(source, file):
        seen.append(file.name)
        return read(source, file)

    monkeypatch.setattr(corpus_module, "_write_shard", write_shard)
    monkeypatch.setattr(documents_module, "read_documents", read_documents)
    return seen


@pytest.mark.promise("Preparing documents resumes at its shard and ends the same", about="resume")
def test_a_killed_preparation_resumes_at_its_shard_and_ends_the_same(tmp_path, steps, monkeypatch):
    monkeypatch.setattr(corpus_module, "SHARD_CHARACTERS", 1000)
    (tmp_path / "in").mkdir()
    for number in range(4):
        rows = [{"text": text, "p": n % 7} for n, text in enumerate(texts(25, 25 * number))]
        written(tmp_path / "in" / f"{number}.jsonl", [*rows, {"text": 1}, ""])

    def prepare(run):
        source = DocumentSource(path=str(tmp_path / "in"), group="p")
        return build_corpus([source], TOKENIZER, Cache(tmp_path / run), Digests(), rejects_limit=0.1)

    whole = prepare("whole")
    numbers = [step for step in steps if step.isdigit()]
    for kill_at in ("000004", "000007"):
        steps[:] = [f"kill at {kill_at}"]
        assert in_another_process(lambda: prepare("killed")) == -signal.SIGKILL
    steps.clear()
    killed = prepare("killed")
    assert [step for step in steps if step.isdigit()] == numbers[7:]
    # One pass for where shards end, and one for the text.
    assert [step for step in steps if not step.isdigit()] == 2 * [f"{number}.jsonl" for number in range(4)]
    facts = killed.facts
    assert (facts["documents"], facts["left_out"], facts["rejects"]) == (100, {"without text": 4}, {"not text": 4})
    assert killed.groups.tolist() == whole.groups.tolist() and sentences_of(killed) == sentences_of(whole)
    files = [{path.name: content(path) for path in (tmp_path / run).rglob("*.*")} for run in ("whole", "killed")]
    assert files[0] == files[1]


def content(path):
    """The bytes of a file, of a shard without its hashes, whose key is another in every preparation."""
    if path.suffix != ".arrow":
        return path.read_bytes()
    return json.dumps(Dataset.from_file(str(path)).remove_columns("group").to_dict()).encode()


@pytest.mark.parametrize(("later", "change"), [(texts(39), "became shorter"), ([*texts(39), "Pain."], "changed")])
def test_documents_that_change_while_they_are_read_are_an_error(tmp_path, monkeypatch, later, change):
    file, fill = written(tmp_path / "a.jsonl", texts(40)), corpus_module.fill

    def rewritten(*arguments):
        written(file, later)
        return fill(*arguments)

    monkeypatch.setattr(corpus_module, "fill", rewritten)
    with pytest.raises(WorkError, match=f"documents: the input {change} while it was read; run the same command again"):
        build(tmp_path, file)
    assert not list(tmp_path.rglob("corpus.json"))


def test_a_full_disk_is_an_error_after_which_the_same_call_resumes(tmp_path):
    file = written(tmp_path / "a.jsonl", texts(120))

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        with pytest.raises(WorkError, match=r"could not write .*000000\.arrow: File too large; free space"):
            build(tmp_path, file)

    assert in_another_process(work) == 0
    assert sentences_of(build(tmp_path, file)) == expected(texts(120))
