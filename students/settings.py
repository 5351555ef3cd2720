"""Settings that stages of several folders share: a teacher, and prompts; free of torch."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag

from bertrelay.model.folder import ModelFolder
from bertrelay.model.settings import NewEncoder
from bertrelay.settings import DataSource, EncoderSource, InputFile, ModelSource, Settings

CONVERT_NPY = (
    "python -c \"import numpy, pyarrow, pyarrow.parquet; v = numpy.load('vectors.npy'); "
    "t = [line.rstrip('\\n') for line in open('texts.txt', encoding='utf-8')]; "
    "columns = {'text': t, 'vector': pyarrow.FixedSizeListArray.from_arrays(v.ravel(), v.shape[1])}; "
    "pyarrow.parquet.write_table(pyarrow.table(columns), 'vectors.parquet')\""
)
"""Command that makes Parquet of a `.npy` file and the text of each of its rows, a line each."""


def _parquet(path: InputFile) -> InputFile:
    suffix = Path(path).suffix
    if suffix != ".parquet":
        remedy = f"; a line converts it: {CONVERT_NPY}" if suffix == ".npy" else ""
        raise ValueError(f"expected a .parquet file, found {suffix or 'no suffix'}{remedy}")
    return path


class TeacherVectors(DataSource):
    """A teacher's vectors in a file, for one that is behind an API."""

    vectors: Annotated[InputFile, AfterValidator(_parquet)]
    """Parquet with the columns `text` and `vector`, as `bertrelay encode` writes it: a row for every sentence that the
    teacher is to encode, of training and held-out data."""


Teacher = Annotated[
    Annotated[EncoderSource, Tag("model")] | Annotated[TeacherVectors, Tag("vectors")],
    Discriminator(
        lambda value: "vectors" if isinstance(value, dict | TeacherVectors) else "model",
    ),
]


class PromptText(Settings):
    """The text of a prompt that the model does not name."""

    text: Annotated[str, Field(min_length=1)]
    """Text that precedes each sentence, with the space at its end where one belongs there."""


Prompt = Annotated[
    Annotated[str, Field(min_length=1), Tag("name")] | Annotated[PromptText, Tag("text")],
    Discriminator(lambda value: "text" if isinstance(value, dict | PromptText) else "name"),
]
"""The name of one of a model's prompts, as in `encode`, or a text."""


def prompt_problem(prompt: Any, model: Any) -> str:
    """The error for a name that is none of the model's prompts, or that is the text of one; empty when it is valid.

    Names are checked where the model's folder exists.
    """
    if not isinstance(prompt, str):
        return ""
    if prompt != prompt.strip() or prompt.endswith(":"):
        return f"expected the name of a prompt, found {prompt!r}; for any text write {{ text = {prompt!r} }}"
    if isinstance(model, NewEncoder):
        return unknown_prompt(prompt, [])
    if not isinstance(model, ModelSource) or model.folder is None or not model.folder.is_dir():
        return ""
    names = ModelFolder(model.folder).prompt_names
    return "" if prompt in names else unknown_prompt(prompt, names)


def prompt_problems(models: Mapping[str, Any], settings: Settings) -> Iterator[tuple[str, str]]:
    """(key, error) of the invalid prompts of `settings`; `models` has the model of each key."""
    for key, model in models.items():
        if fault := prompt_problem(getattr(settings, key), model):
            yield key, fault


def unknown_prompt(prompt: str, names: Sequence[str]) -> str:
    """The error for a prompt that is none of a model's `names`."""
    expected = f"one of the model's prompts {', '.join(names)}" if names else "no name, as the model has no prompts"
    return f"expected {expected}, found {prompt!r}; for any text write {{ text = {prompt!r} }}"
