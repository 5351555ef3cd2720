"""The settings of a model card; free of torch."""

import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from bertrelay.languages import EachOnce, LanguageCode
from bertrelay.settings import InputFile, ModelSource, Settings, UsedWith

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@cache
def known_licenses() -> list[str]:
    """The identifiers of licenses that Hugging Face's cards have."""
    return files("pipelines.cards").joinpath("licenses.txt").read_text("utf-8").split()


def _license(value: str) -> str:
    """The identifier of a license, which may be written as people do: `mit` of MIT License."""
    words = re.sub(r"\b(the|licen[cs]e|version|v(?=\d))\b|[,()]|\bv(?=\d)", " ", value.lower())
    plain = re.sub(r"[\s_-]+", "-", words.strip())
    if plain in known_licenses():
        return plain
    if value not in known_licenses():
        near = get_close_matches(value.lower(), known_licenses(), n=1)
        hint = f"did you mean {near[0]}?" if near else "for any other write other, with license_name and license_link"
        raise ValueError(f"expected an identifier such as apache-2.0, mit or cc-by-sa-4.0, found {value!r}; {hint}")
    return value


def _hub_name(value: str) -> str:
    if not HUB_NAME.fullmatch(value):
        raise ValueError(f"expected a name of the hub, owner/name or name, found {value!r}")
    return value


HubName = Annotated[str, AfterValidator(_hub_name)]


class CardSettings(Settings):
    """A copy of a model, in `model/`, with a model card for Hugging Face's hub as its README.md."""

    model: ModelSource
    """Encoder, tagger, question answerer, scorer of pairs or outcome model: a model folder, `@stage/model`,
    `package:name/path` or a hub id."""
    results: Annotated[list[InputFile], Field(min_length=1)]
    """Folders of finished stages: of trainings the card has data, settings and times, of evaluations the metrics."""
    name: HubName
    """Name of the model on the hub, owner/name."""
    license: Annotated[str, AfterValidator(_license)]
    """Identifier of the license on the hub, such as apache-2.0 or mit; for any other `other`."""
    license_name: Annotated[str | None, UsedWith(license="other")] = None
    """Name of a license called `other`."""
    license_link: Annotated[str | None, UsedWith(license="other")] = None
    """Link to a license called `other`."""
    languages: Annotated[list[LanguageCode], EachOnce] = []
    """Languages that the model is for; of an encoder English and those of its training data when empty."""
    base_model: list[HubName] = []
    """Hub ids of the models it was made from, beside those that a recipe names."""
    teacher: HubName | None = None
    """Hub id of the teacher, where the training was given a folder."""
    datasets: list[HubName] = []
    """Hub ids of the data sets it was trained on, beside those that a recipe names."""
    description: str = ""
    """Description of the model, a sentence or a paragraph of Markdown."""
    limits: list[str] = []
    """Sentences to add to those about the model's limits."""

    @model_validator(mode="after")
    def _whole_license(self) -> Self:
        if self.license == "other" and not (self.license_name and self.license_link):
            raise ValueError("license: expected license_name and license_link with a license called other")
        return self
