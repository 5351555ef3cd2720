"""A model folder, each of whose small files is read once, before anything heavy is loaded. Free of torch."""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, create_model

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.model.files import (
    GRAPHS,
    PACKAGES,
    Backend,
    Count,
    Description,
    Size,
    has_weights,
    read_model_file,
    validate,
)
from bertrelay.model.kinds import ALSO, BY_ARCHITECTURE, BY_FILE, CLASSIFIER, ENCODER, KINDS, NETWORK, SCORER, ModelKind
from bertrelay.model.layout import Layout, read_layout, read_prompt_names
from bertrelay.sources import model_folder

CONFIG = "config.json"
CHECKED: dict[Any, str] = {
    Size: "vocab_size hidden_size embedding_size intermediate_size dim hidden_dim",
    Count: "num_hidden_layers num_attention_heads num_hidden_groups inner_group_num n_layers n_heads",
    Annotated[int, Field(ge=0, lt=2**31)]: "type_vocab_size pad_token_id",
    Annotated[float, Field(gt=0, lt=1)]: "layer_norm_eps norm_eps",
    Annotated[float, Field(ge=0, le=1)]: "hidden_dropout_prob attention_probs_dropout_prob dropout attention_dropout",
}
"""Numbers of a `config.json` that are checked before a network is built of it; transformers checks the rest."""


class NetworkConfig(Description):
    """The statements of a `config.json` about a network and its head."""

    model_type: str
    architectures: list[str] | None = None
    max_position_embeddings: Size | None = None
    num_labels: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    id2label: dict[str, str | int] | None = None


class _Heads(Description):
    architectures: list[str] | None = None
    id2label: dict[str, str | int] | None = None


_NUMBERS: dict[str, Any] = {name: (kind | None, None) for kind, names in CHECKED.items() for name in names.split()}
_CheckedConfig = create_model("_CheckedConfig", __base__=NetworkConfig, **_NUMBERS)


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds a model; its files are read when first needed, and then remembered.

    Every property raises RequestError for files that are not as expected.
    """

    path: Path

    @classmethod
    def find(
        cls, source: "str | Path | ModelFolder", revision: str | None = None, cache: Cache | None = None
    ) -> "ModelFolder":
        """The folder of a path, `package:name/path` or hub id, which is downloaded. Raises RequestError without one."""
        return source if isinstance(source, ModelFolder) else cls(model_folder(source, revision, cache))

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """The content of `config.json`; None without one."""
        return read_model_file(self.path / CONFIG, dict[str, Any])

    @cached_property
    def network_config(self) -> NetworkConfig | None:
        """The checked content of `config.json`; None without one."""
        return None if self.config is None else validate(_CheckedConfig, self.config, self.path / CONFIG)

    @cached_property
    def layout(self) -> Layout:
        """The layout of a sentence encoder's folder, or of a plain one, pooled by the mean."""
        return read_layout(self.path)

    @cached_property
    def transformer(self) -> "ModelFolder":
        """The folder of an encoder's network and tokenizer: this one, or the one inside that `modules.json` names."""
        inner = self.layout.transformer_folder
        return ModelFolder(self.path / inner) if inner else self

    @cached_property
    def prompt_names(self) -> list[str]:
        """The names of a sentence encoder's prompts."""
        return read_prompt_names(self.path)

    @cached_property
    def backends(self) -> list[Backend]:
        """The backends usable here, by weights, graphs and packages; graphs without their package if nothing else."""
        graphs = [backend for backend, path in GRAPHS.items() if (self.path / path).is_file()]
        usable = [backend for backend in graphs if find_spec(PACKAGES[backend])]
        if has_weights(self.path) or not graphs:
            return ["torch", *usable]
        return usable or graphs

    @cached_property
    def kind(self) -> ModelKind | None:
        """The kind of model by the folder's small files; None without any of a model."""
        for file, kind in BY_FILE.items():
            if (self.path / file).is_file():
                return kind
        config = None if self.config is None else validate(_Heads, self.config, self.path / CONFIG)
        names = (config and config.architectures) or ()
        heads = (kind for ending, kind in BY_ARCHITECTURE.items() for name in names if name.endswith(ending))
        by_head = next(heads, None)
        if by_head is CLASSIFIER and config is not None and len(config.id2label or ()) == 1:
            return SCORER
        if (self.path / "modules.json").is_file():
            return ENCODER
        return by_head or (None if config is None else NETWORK)

    def fault(self, expected: str = "") -> str:
        """The error for a folder without a model, or with none of the kind `expected`; else empty."""
        if self.kind is None:
            inner = ModelFolder(self.path / "model")
            hint = f"; give {inner.path}" if inner.kind else ""
            return f"expected a model folder with a {CONFIG}, found none in {self.path}{hint}"
        kind = KINDS.get(expected, self.kind)
        if self.kind in {kind, *ALSO.get(kind, ())}:
            return ""
        return f"expected {kind.words}, found in {self.path} {self.kind.words}; {self.kind.use}"

    def check_kind(self, expected: str) -> None:
        """Raises RequestError for the head of another kind than `expected`; encoders and networks are for loaders."""
        if self.kind not in (None, ENCODER, NETWORK) and (fault := self.fault(expected)):
            raise RequestError(f"model: {fault}")
