"""The contract of a stage: a settings model, and one function `run(settings, context) -> metrics`."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, cast

from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL_ENGINE, Engine
from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Executor
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.files import check_location, check_name, explain_write_errors, read_json, write_json
from bertrelay.inputs import check_inputs, unchanged_inputs
from bertrelay.privacy import sensitive_data
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.settings import AnySettings, PrecisionName, Settings, names_sensitive

WORK = "work"
PRECISION = f"{WORK}/precision.json"

Metrics = dict[str, float | None]
"""Flat metric names to values; what was not measured is absent or None, never 0."""


@dataclass(frozen=True)
class StageContext:
    """Output folders and the process group of a stage.

    output: the stage's own folder; all processes see the same one. Files that a stage needs only until it is done
        (checkpoints, token ids) go below `work` in it, which the runner removes after the stage has finished.
    cache: shared between runs, content-addressed; a stage locks the part that it fills.
    sensitive: the stage reads sensitive data, and not only a model; its reports then quote none of it.
    engine: for computations item by item.
    """

    output: Path
    cache: Cache
    process_group: ProcessGroup = SINGLE_PROCESS
    sensitive: bool = False
    engine: Engine = LOCAL_ENGINE

    @property
    def work(self) -> Path:
        return self.output / WORK

    @property
    def engine_before_training(self) -> Engine:
        """The engine for computations before a training: processes that share a training use no cluster."""
        return self.engine if self.process_group.size == 1 else LOCAL_ENGINE

    def precision(self, setting: PrecisionName, executor: Executor | None = None) -> ComputePrecision:
        """The precision of the whole stage. A stage calls this once, in every process, and passes the result on.

        `auto` is resolved by the main process, or where `executor` computes, and recorded: a stage that is stopped
        resumes in the precision in which it began, on another machine, too.
        Raises RequestError where this machine cannot compute in that.
        """
        record, executor = self.output / PRECISION, executor or LocalExecutor(self.process_group)
        recorded = on_main(lambda: read_json(record) or {}, self.process_group)
        begun = recorded.get("precision") if setting == "auto" else None
        try:
            precision = executor.precision(begun or setting, default_device())
        except RequestError as error:
            if begun is None:
                raise
            raise RequestError(
                f"{self.output}: expected a machine that computes in {begun}, in which this began. Resume it on one, "
                f"or remove what it has done so far: with --force in a run. ({error})"
            ) from error
        if self.process_group.is_main:
            record.parent.mkdir(parents=True, exist_ok=True)
            write_json(record, {"precision": precision})
        return precision


Run = Callable[[Settings, StageContext], Metrics]
"""The work of a stage. Every process calls it; files are written by the main one unless shared on purpose."""


@unchanged_inputs()
def run_alone(
    run: Callable[[AnySettings, StageContext], Metrics],
    settings: AnySettings,
    folder: Path,
    cache: Cache | None = None,
    sensitive: bool = False,
) -> Metrics:
    """Runs a stage outside of a recipe: writes into `folder` and returns the metrics; called after a stop, resumes.

    cache: shared with other runs; `folder/cache` when absent.
    sensitive: the stage reads sensitive data, as a source of `settings` may, too.
    """
    sensitive = sensitive or names_sensitive(settings)
    with sensitive_data() if sensitive else nullcontext():
        folder.mkdir(parents=True, exist_ok=True)
        context = StageContext(folder, cache or Cache(folder / "cache"), ProcessGroup.from_environment(), sensitive)
        metrics = run(settings, context)
        check_inputs()
        if context.process_group.is_main:
            rmtree(context.work, ignore_errors=True)
    return metrics


def check_new(output: Path, option: str = "output") -> None:
    """Raises RequestError when `output` exists already, or when there is no folder to create it in."""
    check_name(output, option)
    if output.exists():
        raise RequestError(f"{option}: expected a folder that does not exist yet, found {output}; name another")
    check_location(output.absolute(), option=option)


@unchanged_inputs()
def write_model(
    run: Callable[[AnySettings, StageContext], Metrics], settings: AnySettings, output: Path, metrics_file: str = ""
) -> Metrics:
    """Runs a stage and moves the folder `model/` that it writes to `output`, when all is done; returns the metrics.

    metrics_file: the name of a file in it that has the metrics, too.
    """
    temporary = TemporaryDirectory(prefix=f".{output.name}.", dir=output.absolute().parent)
    with explain_write_errors(output), temporary as name:
        metrics = run_alone(run, settings, Path(name))
        model = Path(name, "model")
        if metrics_file:
            write_json(model / metrics_file, metrics)
        check_inputs()
        model.rename(output)
    return metrics


@dataclass(frozen=True)
class Stage:
    """One kind of stage. The two import paths are loaded late, so that listing stages loads nothing heavy.

    kind: the name in a recipe after `uses`, such as `students.distill`.
    version: a number to raise when the same settings give another result.
    settings: `package.module:Class` of the settings model, free of torch and transformers.
    run: `package.module:function` of the work.
    metrics: `package` or `package:family` in whose `metrics.toml` the metrics are declared, for reports.
    sensitive: it reads tables of patients.
    verdict: `package.module:function` from recorded metrics to the `Verdict` on the model, or None, free of torch.
    """

    kind: str
    version: int
    settings: str
    run: str
    metrics: str = ""
    sensitive: bool = False
    verdict: str = ""

    @property
    def summary(self) -> str:
        """The line of the stage in `bertrelay recipes`: the first of its settings' docstring."""
        return str(self.load_settings().__doc__).partition("\n")[0]

    def load_settings(self) -> type[Settings]:
        return cast(type[Settings], load(self.settings))

    def load_run(self) -> Run:
        return cast(Run, load(self.run))


def load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
