import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
from pydantic import ValidationError

from bertrelay.compute.engine import Engine
from bertrelay.errors import RequestError
from bertrelay.fingerprint import leaves, with_stage_paths
from bertrelay.settings import (
    RUN_ONLY,
    HubDataset,
    InputFile,
    ModelSource,
    PathText,
    Seed,
    Settings,
    UnusedWith,
    UsedWith,
    descriptions,
    no_model_folder,
    options_of,
)


class Corpus(Settings):
    path: InputFile
    workers: Annotated[int, RUN_ONLY] = 2


class Described(Settings):
    layers: int = 1
    """Layers of the network,
    without the embeddings."""
    seed: Seed = 0
    heads: int = 1
    """Heads of a layer."""
    words: int = 0


class Cell(Settings):
    layers: int = 1
    """Layers of the network."""


class DescribedAgain(Described):
    layers: int = 2
    """Layers to keep."""
    heads: int = 2


class Loss(Settings):
    kind: str = "softmax"
    mse: float = 0.0
    cosine: float = 0.0
    margin: Annotated[float, UsedWith(kind=("triplet", "angle"))] = 1.0
    temperature: Annotated[float, UsedWith("mse", "cosine")] = 0.5
    scale: Annotated[float, UsedWith("mse", "cosine")] = 2.0
    folds: Annotated[int, UnusedWith(kind="cosine")] = 10
    steps: list[str] = ["a", "b"]
    pause: Annotated[int, UsedWith(steps="c")] = 0


class Example(Settings):
    epochs: int = 1
    rate: float = 0.5
    words: list[str] = []
    base: ModelSource | None = None
    data: HubDataset | None = None
    train: list[Corpus] = []
    log_every: Annotated[int, RUN_ONLY] = 10


@pytest.mark.parametrize("wrong", [{"epochs": "2"}, {"epochs": 2.0}, {"epochs": True}, {"words": "a"}, {"epohs": 2}])
def test_nothing_is_coerced_and_nothing_unknown_is_taken(wrong):
    with pytest.raises(ValidationError):
        Example(**wrong)
    with pytest.raises(RequestError, match=f"^{next(iter(wrong))}: "):
        options_of(Example, wrong)


def test_a_path_counts_from_where_it_was_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert InputFile.parse("a/b") == str(tmp_path / "a/b")
    assert InputFile.parse(PathText("../b", Path("/data/recipes"))) == "/data/b"
    assert InputFile.parse(PathText("/b", Path("/data"))) == "/b"
    assert InputFile.parse("~/b") == str(Path.home() / "b")
    assert Corpus(path=PathText("b", Path("/data"))).path == "/data/b"


def test_a_reference_stays_one_and_has_two_parts():
    assert InputFile.parse("@teacher/model/a").stage_reference == ("teacher", "model/a")
    assert ModelSource.parse("@teacher").stage_reference == ("teacher", "")
    assert ModelSource.parse("owner/name").stage_reference is None


def test_a_model_is_a_folder_when_it_is_one_or_is_written_like_one(tmp_path):
    (tmp_path / "models").mkdir()
    assert ModelSource.parse(PathText("models", tmp_path)).folder == tmp_path / "models"
    assert ModelSource.parse(PathText("./none", tmp_path)).folder == tmp_path / "none"
    assert ModelSource.parse(PathText("none", tmp_path)).folder is None


def test_two_words_are_a_folder_where_the_first_stands_and_no_revision_pins_them(tmp_path):
    (tmp_path / "models/nomic").mkdir(parents=True)

    def parsed(text):
        return ModelSource.parse(PathText(text, tmp_path))

    assert parsed("models/nomci").folder == tmp_path / "models/nomci"
    assert parsed("models/nomci@main").hub_id == "models/nomci"
    assert parsed("owner/nomic").hub_id == "owner/nomic"
    assert parsed("owner/models/nomic").folder == tmp_path / "owner/models/nomic"


def test_a_missing_model_folder_is_reported_with_the_nearest_or_how_a_hub_id_is_written(tmp_path):
    (tmp_path / "models/nomic").mkdir(parents=True)
    (tmp_path / "models/nomix").touch()
    message = no_model_folder(tmp_path / "models/nomci")
    assert (
        message
        == f"expected a model folder, found none at {tmp_path}/models/nomci; did you mean {tmp_path}/models/nomic?"
    )
    assert no_model_folder(tmp_path / "modles/nomic").endswith(f"did you mean {tmp_path}/models?")
    message = no_model_folder(tmp_path / "models/xlm-roberta", "models/xlm-roberta")
    assert message.endswith("check the path; for a model of the hub write models/xlm-roberta@main")
    assert no_model_folder(Path("/q9/z8/y7")).endswith("check the path")


def test_a_file_in_place_of_a_model_is_no_hub_id(tmp_path):
    (tmp_path / "talk.ko").touch()
    source = ModelSource.parse(PathText("talk.ko", tmp_path))
    assert source.folder == tmp_path / "talk.ko"
    assert no_model_folder(source.folder) == f"expected a model folder, found a file: {tmp_path}/talk.ko"


def test_a_hub_id_has_a_name_and_perhaps_a_revision():
    for kind, text, expected in (
        (ModelSource, "owner/name@abc", ("owner/name", "abc", None)),
        (ModelSource, "bert-base-uncased", ("bert-base-uncased", None, None)),
        (ModelSource, "/a@b", (None, None, Path("/a@b"))),
        (HubDataset, "owner/d@1", ("owner/d", "1", None)),
    ):
        parsed = kind.parse(text)
        assert (parsed.hub_id, parsed.revision, parsed.folder) == expected


@pytest.mark.parametrize("wrong", ["a b", "a/b c", "", "https://hub/x"])
def test_what_is_neither_folder_nor_id_is_refused(wrong):
    with pytest.raises(ValidationError, match="expected a model folder"):
        Example(base=wrong)
    with pytest.raises(ValidationError, match="expected a data set of the hub"):
        Example(data=wrong)


def test_a_package_gives_a_folder_inside_it_and_a_missing_one_is_reported():
    import pydantic

    assert ModelSource.parse("package:pydantic/v1").folder == Path(pydantic.__file__).parent / "v1"
    for name in ("package:no_such_package/x", "package:os.path/x", "package:"):
        with pytest.raises(ValidationError, match="is not installed"):
            Example(base=name)


def test_leaves_are_flat_and_know_what_is_run_only():
    settings = Example(words=["a", "b"], train=[Corpus(path="/x")])
    leaf_of = {leaf.key: leaf for leaf in leaves(settings)}
    assert list(leaf_of) == ["epochs", "rate", "words[0]", "words[1]", "base", "data", "train[0].path", "log_every"]
    assert [key for key, leaf in leaf_of.items() if leaf.run_only] == ["log_every"]


def test_stage_paths_are_filled_in_everywhere_and_the_settings_stay_as_they_were():
    settings = Example(base="@teacher/model", train=[Corpus(path="@samples/a.tsv"), Corpus(path="/x")])
    filled = with_stage_paths(settings, lambda stage, inner: Path("/runs") / stage / inner)
    assert filled.base.folder == Path("/runs/teacher/model")
    assert [corpus.path for corpus in filled.train] == ["/runs/samples/a.tsv", "/x"]
    assert settings.base == "@teacher/model"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"margin": 2.0}, "margin: without effect, because kind is softmax and not triplet or angle. Leave it out."),
        ({"temperature": 1.0, "scale": 1.0}, "temperature, scale: without effect, because mse is 0 and cosine is 0"),
        ({"pause": 2}, "pause: without effect, because steps is a, b and not c"),
        ({"kind": "cosine", "folds": 2}, "folds: without effect, because kind is cosine. Leave it out."),
    ],
)
def test_a_setting_without_effect_is_refused_with_the_reason(values, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        options_of(Loss, values)


@pytest.mark.parametrize(
    "values", [{"kind": "angle", "margin": 2.0}, {"cosine": 1.0, "scale": 1.0}, {"steps": ["c", "d"], "pause": 1}]
)
def test_a_setting_with_an_effect_or_at_its_default_is_accepted(values):
    assert Loss(**values).model_dump(include=set(values)) == values


def test_a_description_stands_under_its_field_or_under_that_of_the_base_or_is_that_of_the_type():
    assert descriptions(Described) == {
        "layers": "Layers of the network, without the embeddings.",
        "seed": "Seed of every random choice.",
        "heads": "Heads of a layer.",
        "words": "",
    }
    assert descriptions(DescribedAgain)["layers"] == "Layers to keep."
    assert descriptions(DescribedAgain)["heads"] == "Heads of a layer."


def test_settings_of_a_notebook_have_no_descriptions(monkeypatch):
    notebook = ModuleType("notebook")  # has no file, as `__main__` there
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    monkeypatch.setattr(Cell, "__module__", "notebook")
    assert descriptions(Cell) == {"layers": ""}


def test_a_fault_of_the_settings_as_a_whole_begins_with_what_is_wrong():
    with pytest.raises(RequestError, match=r"^workers: without effect, because engine is local"):
        options_of(Engine, {"workers": 2})


def test_a_missing_folder_is_a_model_of_the_hub_only_where_it_was_written_as_one(tmp_path):
    (tmp_path / "owner").mkdir()
    written = ModelSource.parse(PathText("owner/name", tmp_path))
    assert no_model_folder(written.folder, written.written).endswith("for a model of the hub write owner/name@main")
    absolute = ModelSource.parse(str(tmp_path / "owner/name"))
    assert no_model_folder(absolute.folder, absolute.written).endswith("owner/name; check the path")
    (tmp_path / "owner/mame").mkdir()
    assert no_model_folder(absolute.folder, absolute.written).endswith("did you mean " + str(tmp_path) + "/owner/mame?")
