"""The MODEL of a command, looked at before anything heavy is loaded."""

from bertrelay.errors import RequestError
from bertrelay.settings import ModelSource, no_model_folder
from pipelines.privacy import keep_to_ourselves

MODEL_HELP = "A model folder, a hub id (name or name@revision), or package:name/path."


def check_model(model: str) -> None:
    """Sees that a folder is there, and that no hub is spoken to unless `model` is a hub id. Raises RequestError."""
    try:
        source = ModelSource.parse(model)
    except ValueError as error:
        raise RequestError(f"model: {error}") from error
    if source.stage_reference:
        raise RequestError(f"model: {model} is how recipes name a stage's output; here give its folder")
    if source.folder and not source.folder.is_dir():
        raise RequestError(f"model: {no_model_folder(source.folder)}")
    keep_to_ourselves(names_hub=source.folder is None)
