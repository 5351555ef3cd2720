"""Revisions of hub ids: the recipe's pin, else what the first run wrote into `<recipe>.lock`.

Only a run asks the hub, and only for what is not known. `plan` reads the lock file.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_json
from bertrelay.settings import HubDataset, Source
from pipelines.recipe.steps import Recipe, Step


def name_of(source: Source) -> str:
    """The name of a hub id in a lock file."""
    return f"{'dataset' if isinstance(source, HubDataset) else 'model'} {source.hub_id}"


def hub_ids(step: Step) -> list[Source]:
    """The models and data sets that a step takes from a hub."""
    return [source for _, source in step.sources if source.hub_id]


def unknown_ids(step: Step, revisions: Mapping[str, str]) -> list[Source]:
    """The hub ids of a step whose revision neither the recipe nor the lock file has."""
    return [source for source in hub_ids(step) if not source.revision and name_of(source) not in revisions]


def revisions_of(recipe: Recipe, steps: Iterable[Step], runs: Path, ask: bool = False) -> dict[str, str]:
    """`model owner/name` or `dataset owner/name` to its revision, as the recipe's lock file knows it.

    The file is beside the recipe; a built-in recipe's is with the runs. ask: what it lacks for `steps` is fetched from
    the hub and written down.
    """
    source = recipe.source
    path = source.path.with_suffix(".lock") if source.path else runs / f"{source.stem}.lock"
    revisions = read_json(path) if path.exists() else {}
    if revisions is None or not all(isinstance(revision, str) for revision in revisions.values()):
        raise RequestError(
            f"{path}: expected a JSON object of revisions, found something else; delete it, "
            "and the next run asks the hub again"
        )
    missing = {name_of(source): source for step in steps for source in unknown_ids(step, revisions)}
    if missing and ask:
        revisions |= {name: ask_hub(source) for name, source in missing.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dict(sorted(revisions.items())))
    return revisions


def ask_hub(source: Source) -> str:
    """The newest revision of a hub id. Raises RequestError when there is no such id, or no hub to be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

    name, pinned = name_of(source), f"{source.hub_id}@REVISION"
    try:
        hub = HfApi()
        info = (hub.dataset_info if isinstance(source, HubDataset) else hub.model_info)(str(source.hub_id))
    except (RepositoryNotFoundError, GatedRepoError, HFValidationError) as error:
        raise RequestError(
            f"{name}: the hub has none of that name that it lets you read; check the spelling, "
            "or log in with `hf auth login` if it is private"
        ) from error
    except OfflineModeIsEnabled as error:
        raise RequestError(
            f"{name}: its revision is not known yet and HF_HUB_OFFLINE is set; unset it for the first run, or pin the "
            f"revision: {pinned}"
        ) from error
    except Exception as error:  # no network has as many names as the hub's client had HTTP libraries
        raise RequestError(
            f"{name}: the hub could not be reached ({type(error).__name__}). Connect to the network for the first run, "
            f"pin a revision that is already downloaded ({pinned}), or give a folder instead"
        ) from error
    if not info.sha:
        raise RequestError(f"{name}: the hub gives no revision; pin one: {pinned}")
    return str(info.sha)


def set_hub_access(names_hub: bool) -> None:
    """Allows access to a hub only for requests with a hub id, without telemetry; environment variables of the user win.

    The hub's client reads them once, when it is imported, so they are set before anything heavy is loaded.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not names_hub:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
