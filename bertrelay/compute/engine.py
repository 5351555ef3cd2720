"""Settings of where shards are computed: in this process and those beside it, or by the workers of a Ray cluster."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from bertrelay.errors import RequestError
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.settings import Positive, Settings, UnusedWith, options_of

LOCAL, RAY = "local", "ray"
OF_CLUSTERS = UnusedWith(engine=LOCAL)
ADDRESS = re.compile(rf"{LOCAL}|{RAY}(://[\w.-]+:\d+)?")


def _address(value: str) -> str:
    if not ADDRESS.fullmatch(value):
        raise ValueError(f"expected local, ray or ray://HOST:PORT, found {value!r}")
    return value


class Engine(Settings):
    """Engine that computes shards; results are the same bytes at the same precision, device and number of threads."""

    engine: Annotated[str, AfterValidator(_address)] = LOCAL
    """`local`; `ray`, the cluster of $RAY_ADDRESS or of this machine, else a new one; or `ray://HOST:PORT`."""
    workers: Annotated[Positive | None, OF_CLUSTERS] = None
    """Number of workers; as many as fit into the cluster when absent."""
    cpus_per_worker: Annotated[Positive | None, OF_CLUSTERS] = None
    """Cores per worker; when absent those of the smallest node, shared by the workers on it."""
    gpus_per_worker: Annotated[float | None, Field(ge=0), OF_CLUSTERS] = None
    """GPUs per worker, 0.5 for two workers on one; when absent 1 where there are any, else 0."""
    dashboard: Annotated[bool, OF_CLUSTERS] = False
    """Allow sensitive data on a cluster whose dashboard runs."""

    @model_validator(mode="after")
    def _whole_gpus(self) -> Self:
        if self.gpus_per_worker and self.gpus_per_worker > 1 and self.gpus_per_worker % 1:
            raise ValueError(
                f"gpus_per_worker: expected a fraction of one or a whole number, found {self.gpus_per_worker}"
            )
        return self

    @classmethod
    def of(cls, engine: "Engine | str", process_group: ProcessGroup = SINGLE_PROCESS) -> "Engine":
        """`engine`, or the one of that name. Raises RequestError for another, and for Ray in several processes."""
        settings = engine if isinstance(engine, Engine) else options_of(cls, {"engine": engine})
        if process_group.size > 1 and not settings.is_local:
            raise RequestError(
                f"engine: expected one process that hands out work to {settings.engine}, found {process_group.size}; "
                "leave --processes out, and give --workers"
            )
        return settings

    @property
    def is_local(self) -> bool:
        return self.engine == LOCAL


LOCAL_ENGINE = Engine()
