"""The command `bertrelay data check`."""

import json

import pytest
from typer.testing import CliRunner

from bertrelay.errors import RequestError
from pipelines.cli.app import app


def check(*arguments):
    return CliRunner().invoke(app, ["data", "check", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def files(tmp_path):
    for name, first in (("train", "B-X"), ("devel", "B-X"), ("test", "I-X")):
        lines = "".join(f"{name}{number}\t{'B-X' if number else first}\n\n" for number in range(60))
        (tmp_path / f"{name}.tsv").write_text(lines)
    return [tmp_path / f"{name}.tsv" for name in ("train", "devel", "test")]


def test_good_data_ends_with_0_and_data_that_will_not_do_with_1(files):
    result = check(*files[:2])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"train  {files[0]}"
    assert "good  tags" in result.stdout
    result = check("--train", files[0], "--test", files[2], "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["files"] == {"train": str(files[0]), "test": str(files[2])}
    assert document["verdict"] == "fail"
    verdicts = {each["check"]: each["verdict"] for each in document["checks"]}
    assert (verdicts["tags"], verdicts["leaks train/test"]) == ("fail", "good")
    with pytest.raises(RequestError, match="not both"):
        check(files[0], "--test", files[1])


def test_columns_are_chosen_and_lengths_measured_in_a_models_word_pieces(tiny_encoder, tmp_path):
    tiny_encoder("bert", ["train devel 0 1 2"]).save(tmp_path / "model")
    (tmp_path / "a.conll").write_text("0\ta\tB-X\tNN\n" * 50)
    result = check(tmp_path / "a.conll", "--columns", "1", "-2", "--model", tmp_path / "model", "--json")
    assert result.exit_code == 0
    assert "X 50" in result.stdout
    (found,) = [each for each in json.loads(result.stdout)["checks"] if each["check"] == "tokens in a sentence"]
    assert found["figures"]["longest"] >= 1
    assert "38 that the model reads at once" in found["told"]
