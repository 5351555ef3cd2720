from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.distill import Result, claims, write_rows


def test_claims_ask_for_the_time_of_the_fastest_and_the_accuracy_of_the_best_of_its_own_settings() -> None:
    figures = {"default": (60.0, 0.9), "bf16": (30.0, 0.8), "auto": (10.0, 0.85), "fp32": (20.0, 0.9)}
    figures["sorted"] = (20.0, 0.95)  # with a sampler of ours: no setting of its own
    results = {name: Result(name, 64, [seconds], [accuracy]) for name, (seconds, accuracy) in figures.items()}
    judged = claims(results)
    assert [claim.found for claim in judged] == ["6.00 (6.00–6.00)", "3.00 (3.00–3.00)", "0.8500", "3.00 (3.00–3.00)"]
    assert [claim.holds for claim in judged] == [True, True, False, True]


def test_every_drawn_sentence_stands_beside_each_of_its_translations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.distill.TRIED_ON", 2)
    folder = tmp_path / "parallel" / "multi30k"
    folder.mkdir(parents=True)
    for code in ("en", "de", "fr"):
        (folder / f"train.{code}.gz").write_text("".join(f"{code} {number}\n" for number in range(9)))
    write_rows(Namespace(data=tmp_path, scratch=tmp_path, languages=["de", "fr"], rows=7, seed=3))
    for name, count in (("rows", 6), ("few", 2)):
        english, other = ((tmp_path / name / file).read_text().split("\n")[:-1] for file in ("en.txt", "other.txt"))
        assert len(english) == count
        assert [line.split()[1] for line in english] == [line.split()[1] for line in other]
        if name == "rows":
            both = {(line.split()[1], found.split()[0]) for line, found in zip(english, other, strict=True)}
            assert both == {(line.split()[1], code) for line in english for code in ("de", "fr")}
            assert len(both) == count
