import pytest

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from students.parallel.hold_out import run
from students.parallel.settings import SplitSettings


def split(folder, rows, **settings):
    """The pairs of each part of a file of `rows`."""
    path = folder / "en-de.tsv"
    path.write_text("".join(f"{english}\t{other}\n" for english, other in rows), encoding="utf-8")
    source = {"path": str(path), "languages": ["de"], "max_misplaced": 1.0}
    output = folder / "out"
    output.mkdir(exist_ok=True)
    metrics = run(SplitSettings.model_validate({"parallel": [source], **settings}), StageContext(output, Cache(folder)))
    parts = {}
    for part in ("train", "test"):
        lines = (output / part / "en-de.tsv").read_text("utf-8").splitlines()
        parts[part] = [tuple(line.split("\t")) for line in lines]
        assert metrics[f"{part}/de"] == len(lines)
    return parts


def test_the_parts_have_every_pair_and_share_no_english_sentence(tmp_path):
    rows = [(f"Sentence {number % 60}", f"Satz {number}") for number in range(90)]
    rows.append(("SENTENCE 3", "Satz drei"))
    parts = split(tmp_path, rows, test_sentences=5)
    assert sorted(parts["train"] + parts["test"]) == sorted(rows)
    english = {part: {source.casefold() for source, _ in pairs} for part, pairs in parts.items()}
    assert len(english["test"]) == 5 and english["train"].isdisjoint(english["test"])
    assert split(tmp_path, rows[::-1], test_sentences=5)["test"] == parts["test"][::-1]
    assert split(tmp_path, rows, test_sentences=5, seed=1)["test"] != parts["test"]


def test_a_tenth_is_held_out_of_few_sentences(tmp_path):
    assert len(split(tmp_path, [(f"Sentence {row}", f"Satz {row}") for row in range(39)])["test"]) == 3
    with pytest.raises(RequestError, match="expected 10 different English sentences or more, found 9"):
        split(tmp_path, [(f"Sentence {row}", f"Satz {row}") for row in range(9)])
