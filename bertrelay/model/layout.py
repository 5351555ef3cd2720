"""The files of a sentence-transformers folder around the weights: reads those of every version, writes for 3 to 6."""

import re
import shutil
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field

from bertrelay.errors import RequestError, describe
from bertrelay.files import write_json
from bertrelay.model.files import Description, Size, read_model_file
from bertrelay.model.settings import PoolingMode
from bertrelay.progress import log
from bertrelay.settings import Metric

POOLINGS = get_args(PoolingMode)  # in the order in which the older keys concatenate them
TRANSFORMER_CONFIGS = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
KEYS_WHEN_SET = {"weightedmean", "lasttoken"}  # unknown to the oldest versions
CLASS_PATH = "sentence_transformers.models."
MODEL_CONFIG = "config_sentence_transformers.json"
QUERY, DOCUMENT = "query", "document"
ROUTES = {QUERY, DOCUMENT}
"""The encoders of a pair, as sentence-transformers names them in a `Router`."""
ROUTER_CONFIG = "router_config.json"
MODULE_FOLDER = re.compile(rf"(?:(?:{QUERY}|{DOCUMENT})_)?\d+_[A-Za-z]\w*")
AFTER_POOLING = {"Dense", "Normalize"}

Content = TypeVar("Content")


@dataclass(frozen=True)
class Dense:
    """The shape of a projection; `activation` is the path of a class of torch.nn, `folder` has the weights.

    normalized: scale the projected vector to length 1 first, as a module before it states.
    """

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "torch.nn.modules.linear.Identity"
    normalized: bool = False
    folder: str = ""


@dataclass(frozen=True)
class Prompts(MutableMapping[str, str]):
    """Texts that a model expects before a sentence, by name, and the name of the default one.

    Behaves as the dict of texts that sentence-transformers has.
    """

    texts: dict[str, str] = field(default_factory=dict)
    default: str | None = None

    def __getitem__(self, name: str) -> str:
        return self.texts[name]

    def __setitem__(self, name: str, text: str) -> None:
        if not (isinstance(name, str) and isinstance(text, str)):
            raise RequestError(f"prompts: expected a text by name, found {describe(text)} under {describe(name)}")
        self.texts[name] = text

    def __delitem__(self, name: str) -> None:
        del self.texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Prompts):
            return (self.texts, self.default) == (other.texts, other.default)
        return self.texts == other

    def text(self, name: str | None = None) -> str:
        """The prompt `name`, or the default one, or an empty text. Raises RequestError for an unknown name."""
        name = self.default if name is None else name
        if name is None:
            return ""
        if not isinstance(name, str) or name not in self.texts:
            expected = f"expected one of {sorted(self.texts)}" if self.texts else "the model has no prompts"
            hint = "leave it out, or in Python give the text as prompt="
            raise RequestError(f"prompt: {expected}, found {describe(name)}; {hint}")
        return self.texts[name]


@dataclass(frozen=True)
class Layout:
    """The statements of a folder about an encoder, apart from weights, network and tokenizer.

    include_prompt: pool the tokens of a prompt with those of the sentence.
    token_dim: size of a token vector; None when only the network's config has it.
    dense: the projections after the pooling, in their order; `normalize` follows them.
    max_tokens: the longest input, special tokens included; None when only the tokenizer has it.
    truncate_dim: number of first dimensions that a vector keeps; all when None.
    spaces: digests, by `encoder_digest`, of encoders that share this vector space.
    matryoshka_dimensions: numbers of first dimensions that the model was trained to be cut to.
    static: the vector of a text is the mean of those of its tokens in a table, without a network.
    route: of an encoder of a pair, `query` or `document`.
    query: of a pair, whose encoder of documents this is, the layout of the encoder of queries.
    """

    pooling: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    token_dim: int | None = None
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: Prompts = Prompts()
    similarity: str | None = None
    truncate_dim: int | None = None
    spaces: tuple[str, ...] = ()
    matryoshka_dimensions: tuple[int, ...] = ()
    transformer_folder: str = ""
    static: bool = False
    route: str = ""
    query: "Layout | None" = None

    @property
    def digested(self) -> dict[str, object]:
        """The statements that determine whole vectors, for a digest: not how these are compared or cut, nor folders."""
        statements = {name: getattr(self, name) for name in LAYOUT_DIGESTED}
        dense = [{name: getattr(projection, name) for name in DENSE_DIGESTED} for projection in self.dense]
        return {**statements, "dense": dense, "prompts": asdict(self.prompts)}

    @property
    def modules(self) -> list[tuple[str, str]]:
        """The kind and the folder of every module, in the order of `modules.json`, or of the route of a pair."""
        kinds = ["StaticEmbedding"] if self.static else ["Transformer", "Pooling"]
        for dense in self.dense:
            kinds += ["Normalize", "Dense"] if dense.normalized else ["Dense"]
        kinds += ["Normalize"] if self.normalize else []
        prefix = f"{self.route}_" if self.route else ""
        return [(kind, f"{prefix}{index}_{kind}" if index or prefix else "") for index, kind in enumerate(kinds)]


DENSE_DIGESTED = ("in_features", "out_features", "bias", "activation", "normalized")
LAYOUT_DIGESTED = ("pooling", "include_prompt", "token_dim", "normalize", "max_tokens", "lower_case")


class _Module(Description):
    type: str
    path: str = ""

    @property
    def kind(self) -> str:
        """The class name, which is the same in all versions; its path is not."""
        return self.type.rpartition(".")[2] if self.type.startswith("sentence_transformers.") else self.type


class _RouterParameters(Description):
    default_route: str | None = None
    route_mappings: dict[str, str] | None = None


class _Router(Description):
    types: dict[str, str]
    structure: dict[str, list[str]]
    parameters: _RouterParameters = _RouterParameters()


class _TokenizerOptions(Description):
    model_max_length: Annotated[int, Field(ge=1)] | None = None


class _Transformer(Description):
    max_seq_length: Size | None = None
    do_lower_case: bool | None = None
    transformer_task: str = "feature-extraction"
    tokenizer_args: _TokenizerOptions | None = None
    processor_kwargs: _TokenizerOptions | None = None

    @property
    def max_tokens(self) -> int | None:
        options = self.tokenizer_args or self.processor_kwargs
        return self.max_seq_length or (options.model_max_length if options else None)


class _PoolingConfig(Description):
    embedding_dimension: Size | None = None
    word_embedding_dimension: Size | None = None
    pooling_mode: str | list[str] | None = None
    pooling_mode_cls_token: bool | None = None
    pooling_mode_max_tokens: bool | None = None
    pooling_mode_mean_tokens: bool | None = None
    pooling_mode_mean_sqrt_len_tokens: bool | None = None
    pooling_mode_weightedmean_tokens: bool | None = None
    pooling_mode_lasttoken: bool | None = None
    include_prompt: bool = True


class _DenseConfig(Description):
    in_features: Size
    out_features: Size
    bias: bool = True
    activation_function: str
    use_residual: bool = False
    module_input_name: str | None = "sentence_embedding"
    module_output_name: str | None = "sentence_embedding"


class _NormalizeConfig(Description):
    module_input_name: str = "sentence_embedding"
    module_output_name: str | None = None


class _PromptTexts(Description):
    prompts: dict[str, str | None] | None = None


class _ModelConfig(_PromptTexts):
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None
    truncate_dim: Size | None = None
    spaces: list[str] = Field(default=[])
    matryoshka_dimensions: list[Size] = Field(default=[])


def read_layout(folder: Path) -> Layout:
    """The layout of `folder`, of a pair with that of its queries. A plain transformers folder is pooled by the mean.

    Raises RequestError for modules and poolings that this project does not have, for files that are missing or not as
    expected, and for module folders without a `modules.json`; warns of those that it does not name.
    """
    modules = read_model_file(folder / "modules.json", list[_Module])
    module_folders = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and MODULE_FOLDER.fullmatch(path.name)
    )
    if modules is None:
        return _read_plain(folder, module_folders)
    routes = _read_routes(folder, modules)
    _check_folders(folder, [*modules, *(module for route in routes.values() for module in route)], module_folders)
    model = read_model_file(folder / MODEL_CONFIG, _ModelConfig) or _ModelConfig()
    if not routes:
        return _read_modules(folder, modules, model)
    query = _read_modules(folder, routes[QUERY], model)
    query = replace(query, route=QUERY, prompts=Prompts({QUERY: query.prompts.texts.get(QUERY, "")}, QUERY))
    return replace(_read_modules(folder, routes[DOCUMENT], model), route=DOCUMENT, query=query)


def _read_routes(folder: Path, modules: Sequence[_Module]) -> dict[str, list[_Module]]:
    """The modules of each encoder of a pair, with those that follow for both; nothing of a single encoder.

    Raises RequestError for other routes than one of queries and one of documents.
    """
    if not modules or modules[0].kind != "Router":
        return {}
    path = folder / modules[0].path / ROUTER_CONFIG
    router = _required(path, _Router)
    named = [name for names in router.structure.values() for name in names]
    if router.structure.keys() != ROUTES or router.parameters.route_mappings or not router.types.keys() >= set(named):
        raise RequestError(
            f"model: expected a Router with the routes {DOCUMENT} and {QUERY}, of modules in types, without "
            f"route_mappings, found {', '.join(sorted(router.structure)) or 'none'} in {path}; sentence-transformers "
            "itself can use it"
        )
    if router.parameters.default_route not in (None, DOCUMENT):
        log(f"model: warning: default_route in {path} is {router.parameters.default_route}; here it is {DOCUMENT}")
    return {
        route: [
            *(_Module(type=router.types[name], path=(Path(modules[0].path) / name).as_posix()) for name in names),
            *modules[1:],
        ]
        for route, names in router.structure.items()
    }


def _read_modules(folder: Path, modules: Sequence[_Module], model: _ModelConfig) -> Layout:
    """The layout of the modules of one encoder."""
    modules = [module for module in modules if module.kind != "Dropout"]  # it has no effect after training
    kinds = [module.kind for module in modules]
    is_static = kinds[:1] == ["StaticEmbedding"]
    first = 1 if is_static else 2  # of the modules after the pooling
    if (not is_static and kinds[:2] != ["Transformer", "Pooling"]) or not AFTER_POOLING.issuperset(kinds[first:]):
        raise RequestError(
            f"model: expected the modules Transformer and Pooling, or StaticEmbedding, and then perhaps Dense and "
            f"Normalize, found {', '.join(kinds) or 'none'} in {folder / 'modules.json'}; sentence-transformers itself "
            "can use it"
        )
    transformer, pooling = _Transformer(), _PoolingConfig()
    if not is_static:
        transformer = _read_transformer(folder / modules[0].path)
        pooling = _required(folder / modules[1].path / "config.json", _PoolingConfig)
    dense, normalize = _read_projections(folder, modules[first:])
    similarity = model.similarity_fn_name
    if similarity not in (None, *get_args(Metric)):
        log(
            f"warning: similarity_fn_name in {folder / MODEL_CONFIG} is {describe(similarity)}, none of "
            f"{', '.join(get_args(Metric))}: cosine is used"
        )
        similarity = None
    return Layout(
        pooling=_read_pooling(folder, pooling),
        include_prompt=pooling.include_prompt,
        token_dim=pooling.embedding_dimension or pooling.word_embedding_dimension,
        dense=dense,
        normalize=normalize,
        max_tokens=transformer.max_tokens,
        lower_case=bool(transformer.do_lower_case),
        prompts=_read_prompts(folder, model),
        similarity=similarity,
        truncate_dim=model.truncate_dim,
        spaces=tuple(model.spaces),
        matryoshka_dimensions=tuple(model.matryoshka_dimensions),
        transformer_folder=modules[0].path,
        static=is_static,
    )


def read_prompt_names(folder: Path) -> list[str]:
    """The names of the prompts of the sentence encoder in `folder`."""
    stated = read_model_file(folder / MODEL_CONFIG, _PromptTexts)
    return list(stated.prompts or ()) if stated else []


def _check_folders(folder: Path, modules: Sequence[_Module], module_folders: Sequence[str]) -> None:
    for module in modules:
        _check_inside(folder, module.path)
    named = {part for module in modules for part in Path(module.path).parts[:1]}
    if unnamed := set(module_folders) - named:
        log(
            f"model: warning: {folder / 'modules.json'} does not name {', '.join(sorted(unnamed))}, which is ignored. "
            "If it should not be, copy the folder again"
        )


def _read_plain(folder: Path, module_folders: list[str]) -> Layout:
    """The layout of a folder without `modules.json`. Raises RequestError if other files show that it is lost."""
    traces = [*module_folders, *([MODEL_CONFIG] if (folder / MODEL_CONFIG).exists() else [])]
    if traces:
        raise RequestError(
            f"model: expected modules.json beside {', '.join(traces)} in {folder}, found none; without it the pooling "
            "and what follows it would be lost. Copy the folder again, or take these away for a plain network"
        )
    transformer = _read_transformer(folder)
    return Layout(max_tokens=transformer.max_tokens, lower_case=bool(transformer.do_lower_case))


def _check_inside(folder: Path, path: str) -> None:
    """Raises RequestError for a module outside the model's folder, links followed."""
    try:
        is_inside = (folder / path).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        is_inside = False
    if not is_inside:
        raise RequestError(
            f"model: expected a path inside the model's folder in {folder / 'modules.json'}, found {path!r}"
        )


def _required(path: Path, content: type[Content]) -> Content:
    value = read_model_file(path, content)
    if value is None:
        raise RequestError(f"model: expected {path}, which modules.json asks for, found none; copy the folder again")
    return value


def _read_transformer(folder: Path) -> _Transformer:
    read = (read_model_file(folder / name, _Transformer) for name in TRANSFORMER_CONFIGS)
    config = next(filter(None, read), _Transformer())
    if config.transformer_task != "feature-extraction":
        raise RequestError(
            f"model: expected a network that gives token vectors, found the task {config.transformer_task!r} in "
            f"{folder}"
        )
    return config


def _read_prompts(folder: Path, model: _ModelConfig) -> Prompts:
    texts = {name: text for name, text in (model.prompts or {}).items() if text is not None}
    default = model.default_prompt_name
    if default is not None and default not in texts:
        raise RequestError(
            f"model: expected default_prompt_name to be one of {sorted(texts) or 'no prompts'} in "
            f"{folder / MODEL_CONFIG}, found {default!r}"
        )
    return Prompts(texts, default)


def _read_pooling(folder: Path, config: _PoolingConfig) -> tuple[str, ...]:
    """The poolings in the order of concatenation: that of a new list, or the fixed order of the old keys."""
    modes = config.pooling_mode
    if modes is None:
        chosen = {mode: getattr(config, key) for mode, key in POOLING_KEYS.items()}
        is_unset = all(value is None for value in chosen.values())
        modes = ["mean"] if is_unset else [mode for mode, value in chosen.items() if value]
    modes = [modes] if isinstance(modes, str) else modes
    modes = ["mean_sqrt_len" if mode == "mean_sqrt_len_tokens" else mode for mode in modes]
    unknown = [mode for mode in modes if mode not in POOLINGS]
    if unknown or not modes or len(set(modes)) < len(modes):
        raise RequestError(
            f"model: expected one or more of the poolings {', '.join(POOLINGS)}, each once, found "
            f"{', '.join(unknown or modes) or 'none'} in {folder}"
        )
    return tuple(modes)


def _read_projections(folder: Path, modules: Sequence[_Module]) -> tuple[tuple[Dense, ...], bool]:
    """The projections of the modules after the pooling, and True if a normalisation follows the last one."""
    dense, normalized = list[Dense](), False
    for module in modules:
        if module.kind == "Dense":
            dense.append(replace(_read_dense(folder, module.path), normalized=normalized))
        else:
            path = folder / module.path / "config.json"
            config = read_model_file(path, _NormalizeConfig) if module.path else None
            _check_names(path, *((config.module_input_name, config.module_output_name) if config else ()))
        normalized = module.kind == "Normalize"
    return tuple(dense), normalized


def _read_dense(folder: Path, path: str) -> Dense:
    config = _required(folder / path / "config.json", _DenseConfig)
    residual = ["use_residual"] if config.use_residual else []
    _check_names(folder / path / "config.json", config.module_input_name, config.module_output_name, *residual)
    return Dense(config.in_features, config.out_features, config.bias, config.activation_function, folder=path)


def _check_names(path: Path, *names: str | None) -> None:
    others = set(names) - {None, "sentence_embedding"}
    if others:
        raise RequestError(
            f"model: expected a module from sentence vectors to sentence vectors, found {', '.join(map(str, others))} "
            f"in {path}; sentence-transformers itself can use it"
        )


def write_layout(folder: Path, layout: Layout) -> None:
    """Writes `layout` to `folder`; the caller writes weights, network and tokenizer."""
    routes = [layout] if layout.query is None else [layout.query, layout]
    paths = {path for route in routes for _, path in route.modules}
    for path in _paths_of_modules(folder) - paths:
        shutil.rmtree(folder / path, ignore_errors=True)  # of an earlier encoder
    for route in routes:
        _write_modules(folder, route)
    (folder / ROUTER_CONFIG).unlink(missing_ok=True)
    modules = layout.modules
    if layout.query is not None:
        modules = [("Router", "")]
        write_json(folder / ROUTER_CONFIG, _router_config(routes))
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": CLASS_PATH + kind}
        for index, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", listed)
    model = {
        # Without the version of sentence-transformers, for which older readers would warn.
        "__version__": {"transformers": version("transformers"), "pytorch": version("torch")},
        "prompts": layout.prompts.texts,
        "default_prompt_name": layout.prompts.default,
        "similarity_fn_name": layout.similarity or "cosine",
        **({"truncate_dim": layout.truncate_dim} if layout.truncate_dim else {}),
        **({"spaces": list(layout.spaces)} if layout.spaces else {}),
        **({"matryoshka_dimensions": list(trained)} if (trained := layout.matryoshka_dimensions) else {}),
    }
    write_json(folder / MODEL_CONFIG, model)


def _write_modules(folder: Path, layout: Layout) -> None:
    """Writes the configurations of the modules of one encoder."""
    for _, path in layout.modules:
        (folder / path).mkdir(parents=True, exist_ok=True)
    if not layout.static:
        (_, transformer), (_, pooling), *_ = layout.modules
        limits = {"max_seq_length": layout.max_tokens, "do_lower_case": layout.lower_case}
        write_json(folder / transformer / "sentence_bert_config.json", limits)
        write_json(folder / pooling / "config.json", _pooling_config(layout))
    paths = [path for kind, path in layout.modules if kind == "Dense"]
    for dense, path in zip(layout.dense, paths, strict=True):
        sizes = {"in_features": dense.in_features, "out_features": dense.out_features}
        rest = {"bias": dense.bias, "activation_function": dense.activation}
        write_json(folder / path / "config.json", sizes | rest)


def _router_config(routes: Sequence[Layout]) -> dict[str, Any]:
    return {
        "types": {path: CLASS_PATH + kind for route in routes for kind, path in route.modules},
        "structure": {route.route: [path for _, path in route.modules] for route in routes},
        "parameters": {"default_route": DOCUMENT, "allow_empty_key": True, "route_mappings": {}},
    }


def _paths_of_modules(folder: Path) -> set[str]:
    """The folders of the modules of an encoder or a pair that was saved to `folder` before."""
    try:
        modules = read_model_file(folder / "modules.json", list[_Module]) or []
        router = read_model_file(folder / ROUTER_CONFIG, _Router)
    except RequestError:
        return set()
    paths = {module.path for module in modules} | (set(router.types) if router else set())
    return set(filter(MODULE_FOLDER.fullmatch, paths))


def in_folder_order(modes: Sequence[str]) -> tuple[str, ...]:
    """`modes` in the order of the older keys, which every version of sentence-transformers reads."""
    return tuple(sorted(modes, key=lambda mode: POOLINGS.index(mode) if mode in POOLINGS else len(POOLINGS)))


def _pooling_config(layout: Layout) -> dict[str, Any]:
    """Old keys, which every version reads, unless only the new list can express the order of the poolings."""
    if layout.pooling != in_folder_order(layout.pooling):
        modes = ["mean_sqrt_len_tokens" if mode == "mean_sqrt_len" else mode for mode in layout.pooling]
        return {"embedding_dimension": layout.token_dim, "pooling_mode": modes, "include_prompt": layout.include_prompt}
    chosen = {
        key: mode in layout.pooling
        for mode, key in POOLING_KEYS.items()
        if mode in layout.pooling or mode not in KEYS_WHEN_SET
    }
    without = {} if layout.include_prompt else {"include_prompt": False}
    return {"word_embedding_dimension": layout.token_dim, **chosen, **without}
