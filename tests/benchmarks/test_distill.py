from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.distill import AUTO, Result, as_accurate, claims, write_rows


def result(pairs: int, seconds: float, accuracy: float) -> Result:
    return Result("", pairs, [seconds], [accuracy])


def results(of_64: float, of_48: float) -> dict[str, Result]:
    return {
        "default": result(64, 60.0, 0.7),
        "bf16": result(32, 33.0, 0.9),
        "weights": result(32, 30.0, 0.8),
        "sorted": result(32, 20.0, 0.95),  # with a sampler of ours: no setting of its own
        "auto-64": result(64, 9.0, of_64),
        "auto-48": result(48, 10.0, of_48),
        "auto-32": result(32, 12.0, 0.85),
        "fp32": result(32, 20.0, 0.9),
    }


def ours_of(found: dict[str, Result]) -> list[Result]:
    return [found[name] for name in AUTO]


def test_each_of_theirs_stands_beside_the_fastest_of_ours_that_is_as_accurate() -> None:
    found = results(of_64=0.75, of_48=0.8)
    assert as_accurate(found["default"], ours_of(found)) is found["auto-64"]
    assert as_accurate(found["weights"], ours_of(found)) is found["auto-48"]
    assert as_accurate(found["bf16"], ours_of(found)) is None
    assert [claim.found for claim in claims(found)] == ["6.67 (6.67–6.67)", "3.00 (3.00–3.00)", "3.00 (3.00–3.00)"]
    assert all(claim.holds for claim in claims(found))


def test_a_fast_but_less_accurate_training_carries_no_claim() -> None:
    found = results(of_64=0.75, of_48=0.79)
    assert as_accurate(found["weights"], ours_of(found)) is found["auto-32"]
    assert [claim.holds for claim in claims(found)] == [True, False, True]
    found = results(of_64=0.1, of_48=0.1) | {"weights": result(32, 30.0, 0.86)}
    assert not claims(found | {"fp32": result(32, 20.0, 0.6)})[2].holds, "fast, but less accurate than the default"
    assert [claim.found for claim in claims(found)][:2] == ["5.00 (5.00–5.00)", "none of ours is as accurate"]


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
