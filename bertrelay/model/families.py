"""Published families of encoders: a model used with another pooling or prompt than its family's gives poor vectors."""

import re
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Literal, NamedTuple

from bertrelay.model.encoder import SentenceEncoder

Part = Literal["pooling", "prompt"]


class Family(NamedTuple):
    """pattern: of the whole name of a model. prompts: texts one of which precedes every text; none in most families."""

    name: str
    pattern: str
    pooling: str
    prompts: tuple[str, ...] = ()


@cache
def families() -> tuple[Family, ...]:
    """The families of `families.toml`."""
    listed = tomllib.loads(files("bertrelay.model").joinpath("families.toml").read_text("utf-8"))["family"]
    return tuple(Family(**{**family, "prompts": tuple(family.get("prompts", ()))}) for family in listed)


def family_of(model: str) -> Family | None:
    """The family of a hub id or a folder by its name: of `intfloat/multilingual-e5-small` and `e5_small` it is E5."""
    name = PurePath(model).name.lower().replace("_", "-")
    return next((family for family in families() if re.fullmatch(family.pattern, name)), None)


def unlike_family(model: str, encoder: SentenceEncoder, prompt: str | None = None) -> dict[Part, str]:
    """Describes in words how the use of `encoder`, opened from `model`, differs from its family; empty without one.

    prompt: the text before each sentence; not compared when None.
    """
    family, differences = family_of(model), dict[Part, str]()
    if family is None:
        return differences
    if encoder.pooling.modes != (family.pooling,):
        modes = ", ".join(encoder.pooling.modes)
        differences["pooling"] = f"{family.name} models pool by {family.pooling}, found {modes}"
    if family.prompts and prompt is not None and not prompt.startswith(family.prompts):
        expected = " or ".join(map(repr, family.prompts))
        differences["prompt"] = f"{family.name} models expect the prompt {expected} before each text, found {prompt!r}"
    return differences
