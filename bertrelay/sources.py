"""Finds the folder of a model: here, in an installed package, or downloaded from a hub."""

import os
from functools import partial
from pathlib import Path

from bertrelay.cache import Cache
from bertrelay.errors import RequestError, describe
from bertrelay.settings import ModelSource, no_model_folder

OTHER_FRAMEWORKS = ["onnx/*", "openvino/*", "coreml/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf"]


def model_folder(source: str | Path, revision: str | None = None, cache: Cache | None = None) -> Path:
    """The folder of `source`: a folder, `package:name/path`, or a hub id (`@revision` or not), which is downloaded."""
    if not isinstance(source, str | os.PathLike):
        raise RequestError(f"model: expected a folder or the name of a model, found {describe(source)}")
    try:
        located = ModelSource.parse(str(source))
    except ValueError as error:
        raise RequestError(f"model: {error}") from error
    if located.folder is not None:
        if not located.folder.is_dir():
            raise RequestError(f"model: {no_model_folder(located.folder, located.written)}")
        return located.folder
    from huggingface_hub import snapshot_download

    options = {"revision": revision or located.revision, "cache_dir": cache and cache.hub}
    fetch = partial(snapshot_download, str(located.hub_id), **options)
    try:
        folder = Path(fetch(ignore_patterns=[*OTHER_FRAMEWORKS, "pytorch_model*.bin"]))
        return folder if any(folder.rglob("*.safetensors")) else Path(fetch(ignore_patterns=OTHER_FRAMEWORKS))
    except (OSError, ValueError) as error:
        raise RequestError(
            f"model: {str(located)!r} is no folder here, and could not be downloaded ({type(error).__name__}); check "
            "the name and the network, or give a folder"
        ) from error
