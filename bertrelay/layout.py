"""A sentence encoder's folder as sentence-transformers lays it out: what stands around the weights, read and written.

Written are the keys and class paths that its versions 3 to 6 load; read are those of every version.
"""

from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bertrelay.backbone import read_config
from bertrelay.errors import RequestError
from bertrelay.files import write_json
from bertrelay.pooling import POOLINGS, in_folder_order

TRANSFORMER_CONFIGS = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
OLD_POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
}
OTHER_POOLING_KEYS = {"weightedmean": "pooling_mode_weightedmean_tokens", "lasttoken": "pooling_mode_lasttoken"}
CLASS_PATH = "sentence_transformers.models."
CHAINS = [
    ["Transformer", "Pooling"],
    ["Transformer", "Pooling", "Dense"],
    ["Transformer", "Pooling", "Normalize"],
    ["Transformer", "Pooling", "Dense", "Normalize"],
]


@dataclass(frozen=True)
class Dense:
    """The projection's shape; `activation` is the path of a class of torch.nn, `folder` where its weights stand."""

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "torch.nn.modules.linear.Identity"
    folder: str = "2_Dense"


@dataclass(frozen=True)
class Prompts:
    """Texts that a model expects before a sentence, by name, and the name of the one that always stands there."""

    texts: dict[str, str] = field(default_factory=dict)
    default: str | None = None

    def text(self, name: str | None = None) -> str:
        """The prompt called `name`, else the default one, else nothing. Raises RequestError for an unknown name."""
        name = self.default if name is None else name
        if name is None:
            return ""
        if name not in self.texts:
            raise RequestError(
                f"prompt: expected one of {sorted(self.texts) or 'none, the model has no prompts'}, found {name!r}"
            )
        return self.texts[name]


@dataclass(frozen=True)
class Layout:
    """All that a folder says about an encoder, apart from weights, network and tokenizer.

    token_dim: size of a token vector; None where only the network's own config says it.
    max_tokens: the longest input, special tokens included; None where only the tokenizer says it.
    """

    pooling: tuple[str, ...] = ("mean",)
    token_dim: int | None = None
    dense: Dense | None = None
    normalize: bool = False
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: Prompts = Prompts()
    similarity: str | None = None
    transformer_folder: str = ""


def read_layout(folder: Path) -> Layout:
    """What `folder` says. A plain transformers folder says nothing, and is pooled by the mean.

    Raises RequestError for modules and poolings that this project does not have.
    """
    modules = read_config(folder / "modules.json")
    if modules is None:
        return Layout()
    paths = {_kind(module): str(module.get("path", "")) for module in modules}
    _check_chain(folder, [_kind(module) for module in modules])
    transformer = _read_transformer(folder / paths["Transformer"])
    pooling = read_config(folder / paths["Pooling"] / "config.json") or {}
    model = read_config(folder / "config_sentence_transformers.json") or {}
    prompts = Prompts(_prompt_texts(model), model.get("default_prompt_name"))
    _check_prompts_are_pooled(folder, pooling, prompts)
    return Layout(
        pooling=_read_pooling(folder, pooling),
        token_dim=pooling.get("embedding_dimension", pooling.get("word_embedding_dimension")),
        dense=_read_dense(folder, paths["Dense"]) if "Dense" in paths else None,
        normalize="Normalize" in paths,
        max_tokens=_max_tokens(transformer),
        lower_case=bool(transformer.get("do_lower_case", False)),
        prompts=prompts,
        similarity=model.get("similarity_fn_name"),
        transformer_folder=paths["Transformer"],
    )


def _kind(module: dict[str, Any]) -> str:
    """The class name: its path has changed with the versions, its name never."""
    path = str(module.get("type", ""))
    return path.rpartition(".")[2] if path.startswith("sentence_transformers.") else path


def _check_chain(folder: Path, kinds: list[str]) -> None:
    if kinds not in CHAINS:
        raise RequestError(
            f"model: expected the modules Transformer, Pooling and then perhaps Dense and Normalize, "
            f"found {', '.join(kinds) or 'none'} in {folder / 'modules.json'}; sentence-transformers itself can use it"
        )


def _read_transformer(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = next(filter(None, (read_config(folder / name) for name in TRANSFORMER_CONFIGS)), {})
    task = config.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise RequestError(f"model: expected a network that gives token vectors, found the task {task!r} in {folder}")
    return config


def _max_tokens(transformer: dict[str, Any]) -> int | None:
    given = transformer.get("max_seq_length")
    for key in ("tokenizer_args", "processor_kwargs"):
        given = given or (transformer.get(key) or {}).get("model_max_length")
    return int(given) if given else None


def _prompt_texts(model: dict[str, Any]) -> dict[str, str]:
    return {name: text for name, text in (model.get("prompts") or {}).items() if text is not None}


def _check_prompts_are_pooled(folder: Path, pooling: dict[str, Any], prompts: Prompts) -> None:
    if prompts.texts and not pooling.get("include_prompt", True):
        raise RequestError(
            f"model: expected prompts that enter the pooling, found include_prompt = false in {folder}; "
            "sentence-transformers itself can use it"
        )


def _read_pooling(folder: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """The poolings in the order of their concatenation: a new list's own, or the fixed one of the old keys."""
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for mode, key in (OLD_POOLING_KEYS | OTHER_POOLING_KEYS).items() if config.get(key)]
    modes = [modes] if isinstance(modes, str) else list(modes) or ["mean"]
    modes = ["mean_sqrt_len" if mode == "mean_sqrt_len_tokens" else mode for mode in modes]
    unknown = [mode for mode in modes if mode not in POOLINGS]
    if unknown:
        raise RequestError(
            f"model: expected the poolings {', '.join(POOLINGS)}, found {', '.join(unknown)} in {folder}"
        )
    return tuple(modes)


def _read_dense(folder: Path, path: str) -> Dense:
    config = read_config(folder / path / "config.json") or {}
    odd = [
        key
        for key in ("module_input_name", "module_output_name")
        if config.get(key, "sentence_embedding") != "sentence_embedding"
    ]
    if odd or config.get("use_residual") or "in_features" not in config or "out_features" not in config:
        raise RequestError(
            f"model: expected a Dense module with in_features, out_features, bias and activation_function, "
            f"found {sorted(config)} in {folder / path / 'config.json'}"
        )
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if not activation.startswith("torch.nn."):
        raise RequestError(f"model: expected an activation of torch.nn, found {activation!r} in {folder / path}")
    return Dense(config["in_features"], config["out_features"], config.get("bias", True), activation, path)


def write_layout(folder: Path, layout: Layout) -> None:
    """Writes all of `layout` under `folder`; the weights are the caller's."""
    kinds = [
        "Transformer",
        "Pooling",
        *(["Dense"] if layout.dense else []),
        *(["Normalize"] if layout.normalize else []),
    ]
    paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index > 0)]
    for path in paths:
        (folder / path).mkdir(parents=True, exist_ok=True)
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": CLASS_PATH + kind}
        for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    write_json(folder / "modules.json", modules)
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": layout.max_tokens, "do_lower_case": layout.lower_case}
    )
    write_json(folder / "1_Pooling" / "config.json", _pooling_config(layout))
    write_json(folder / "config_sentence_transformers.json", _model_config(layout))
    if layout.dense:
        write_json(folder / layout.dense.folder / "config.json", _dense_config(layout.dense))


def _pooling_config(layout: Layout) -> dict[str, Any]:
    """Old keys, which every version reads, unless the order of the poolings is one that only the new list can say."""
    if layout.pooling != in_folder_order(layout.pooling):
        modes = ["mean_sqrt_len_tokens" if mode == "mean_sqrt_len" else mode for mode in layout.pooling]
        return {"embedding_dimension": layout.token_dim, "pooling_mode": modes, "include_prompt": True}
    chosen = {key: mode in layout.pooling for mode, key in OLD_POOLING_KEYS.items()}
    return {"word_embedding_dimension": layout.token_dim, **chosen}


def _model_config(layout: Layout) -> dict[str, Any]:
    return {
        # Its own version is left out: a reader older than that would warn.
        "__version__": {"transformers": version("transformers"), "pytorch": version("torch")},
        "prompts": layout.prompts.texts,
        "default_prompt_name": layout.prompts.default,
        "similarity_fn_name": layout.similarity or "cosine",
    }


def _dense_config(dense: Dense) -> dict[str, Any]:
    return {
        "in_features": dense.in_features,
        "out_features": dense.out_features,
        "bias": dense.bias,
        "activation_function": dense.activation,
    }
