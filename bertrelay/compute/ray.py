"""Shards computed by the workers of a Ray cluster.

A worker is an actor that loads the model once, takes shards, and writes each as one process would. This process sends
the texts of a shard when the input is a file; of a dataset it sends the numbers of rows, which workers read themselves.
When all shards are written it assembles the output. When a worker or its node is lost, other workers compute its
shards; a call that is killed resumes at the shards that are missing.
"""

import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple
from uuid import uuid4

from bertrelay.compute.engine import RAY, Engine
from bertrelay.compute.work import Content, Item, Work
from bertrelay.data.shards import ShardStore
from bertrelay.device import ComputePrecision, resolve_precision
from bertrelay.errors import BertRelayError, RequestError, WorkError
from bertrelay.privacy import GROUP_READS, current_umask, is_sensitive, sensitive_data
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.progress import Bar, log
from bertrelay.signals import STOPPING

if TYPE_CHECKING:
    import torch

POLL_SECONDS = 1.0
PATIENCE_SECONDS, NODE_SECONDS, ANSWER_SECONDS = 30.0, 60.0, 10.0
"""Until a message when no worker has started; until a node has to report its versions, and the head of a cluster to
answer."""
TOKEN_MODE = "RAY_AUTH_MODE"
SHARDS_AT_ONCE = 8
"""The most that a worker is given at once, so that it seldom waits for this process."""
MOST_LOST, STARTING = 3, -1
"""After this many lost workers a shard, or starting, is assumed to kill them."""
PACKAGES = ["bertrelay", "torch", "transformers", "tokenizers", "pyarrow"]
"""They decide the results: every node has the same versions."""
_checked_nodes = set[str]()  # which have those of this process


def _ray() -> Any:
    """The package, loaded where it is used. Raises RequestError where it is absent."""
    try:
        import ray
    except ImportError as error:
        raise RequestError("engine: expected Ray, which is not installed: pip install 'bertrelay[ray]'") from error
    return ray


@contextmanager
def connect(engine: Engine) -> Iterator["RayExecutor"]:
    """Connects to the cluster of `engine`; a connection that this process has is used as it is, and stays.

    Raises RequestError where none answers, where a node has other versions, and for sensitive data where a dashboard
    runs that is not allowed.
    """
    ray = _ray()
    if ray.is_initialized():
        _check_dashboard(engine)
        _check_versions()
        yield RayExecutor(engine)
        return
    with _token_mode():
        _connect(engine)
        try:
            _check_dashboard(engine)
            _check_versions()
            yield RayExecutor(engine)
        finally:
            ray.shutdown()


@contextmanager
def _token_mode() -> Iterator[None]:
    """Makes this process send its Ray token, if it has one, for as long as it is connected.

    `ray start` requires the token as soon as its machine has one, but a process that connects to an address sends it
    only in the mode `token`. A cluster that requires none cannot call a process in that mode: there the user sets
    $RAY_AUTH_MODE to `disabled`. A mode that is set stays.
    """
    before = os.environ.get(TOKEN_MODE)
    config: Any = None
    if before is None:
        raylet: Any = import_module("ray._raylet")
        with suppress(AttributeError, TypeError):  # of an older Ray, which asks for a token by $RAY_AUTH_MODE alone
            has_token = raylet.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True)
            config = raylet.Config if has_token else None
    if config is not None:
        os.environ[TOKEN_MODE] = "token"
        config.initialize("")  # reads the environment again
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(TOKEN_MODE, None)  # by Ray itself too, where it started a cluster
        if config is not None:
            config.initialize("")


def _connect(engine: Engine) -> None:
    """Connects this process, whose signal handlers stay. Raises RequestError where no cluster answers."""
    address = os.environ.get("RAY_ADDRESS") if engine.engine == RAY else engine.engine
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    try:
        _check_answers(address)
        _init(address)
    except RequestError:
        raise
    except (ImportError, OSError, RuntimeError, ValueError, _ray().exceptions.AuthenticationError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RequestError(
            f"engine: expected a Ray cluster at {address or 'this machine'}, found none that answers ({reason}); start "
            "it with `ray start --head` and the same versions of Ray and Python, or give the address of its head. If "
            "it runs, give this process its token, in ~/.ray/auth_token or $RAY_AUTH_TOKEN_PATH (`ray get-auth-token` "
            "prints it there)"
        ) from error
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():  # Ray has set its own
            signal.signal(number, handler)


def _check_answers(address: str | None) -> None:
    """Raises OSError where nothing listens at HOST:PORT: Ray would try for minutes."""
    host, _, port = (address or "").removeprefix(f"{RAY}://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()


def _init(address: str | None) -> None:
    """Connects to the cluster there; without an address to the one that `ray start` began here, or else starts one."""
    ray = _ray()
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    # Sockets need a short path, which $TMPDIR of a sensitive stage is not; what memory cannot hold goes there.
    short, temporary = f"{os.environ.get('RAY_TMPDIR', '/tmp')}/ray", tempfile.gettempdir()
    if address := address or _started_here(Path(short)):
        try:
            ray.init(address, **options)
        except ConnectionAbortedError:  # a client's server is forked by a process with threads, and can end at once
            ray.init(address, **options)
    else:
        ray.init("local", include_dashboard=False, _temp_dir=short, object_spilling_directory=temporary, **options)


def _started_here(folder: Path) -> str | None:
    """The cluster that `ray start` recorded in Ray's folder; None where none was, or it has ended.

    Ray's "auto" would also find those that other calls have started for themselves.
    """
    try:
        address = (folder / "ray_current_cluster").read_text(encoding="utf-8").strip()
        _check_answers(address)
    except OSError:
        return None
    return address


def _check_dashboard(engine: Engine) -> None:
    """Raises RequestError for sensitive data on a cluster whose dashboard runs, unless `engine` allows it."""
    if is_sensitive() and not engine.dashboard and (url := _dashboard_url()):
        raise RequestError(
            f"engine: expected no dashboard beside sensitive data, found one at {url}; start the cluster with "
            "--include-dashboard=false, or allow it with --dashboard"
        )


def _dashboard_url() -> str:
    from ray.experimental.internal_kv import _internal_kv_get

    return (_internal_kv_get("webui:url", namespace="dashboard") or b"").decode()


def _version_reader() -> Callable[[], dict[str, str]]:
    """Makes a function that reads the versions of PACKAGES: a closure, as cloudpickle sends one by value to a node."""

    def read() -> dict[str, str]:
        from importlib.metadata import PackageNotFoundError, version

        versions = {}
        for name in PACKAGES:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                versions[name] = "none"
        return versions

    return read


def _check_same(local: dict[str, str], remote: dict[str, str], node: str) -> None:
    """Raises RequestError where the versions of a node are others than those of the process that is called."""
    for name in PACKAGES:
        if remote[name] != local[name]:
            raise RequestError(
                f"engine: expected {name} {local[name]} on every node, found {remote[name]} on node {node}; install "
                "the same versions there"
            )


def _check_versions() -> None:
    """Raises RequestError for a node whose packages are others than those of this process; each node is asked once."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray, read = _ray(), _version_reader()
    local, reader = read(), ray.remote(num_cpus=0)(read)
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    for node in nodes.keys() - _checked_nodes:
        on_node = reader.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        try:
            remote = ray.get(on_node.remote(), timeout=NODE_SECONDS)
        except ray.exceptions.RayError as error:
            if node not in {other["NodeID"] for other in ray.nodes() if other["Alive"]}:
                continue  # it was lost since, and nothing runs there
            raise RequestError(f"engine: node {nodes[node]} gives no answer ({type(error).__name__})") from error
        _check_same(local, remote, nodes[node])
        _checked_nodes.add(node)


class Resources(NamedTuple):
    """Number of workers, and cores and GPUs of each."""

    workers: int
    cpus: int
    gpus: float

    def reserved(self, remote: Any) -> Any:
        """A remote function or class of Ray with the resources of a worker."""
        return remote.options(num_cpus=self.cpus, num_gpus=self.gpus)


def resources_of(engine: Engine) -> Resources:
    """The workers of `engine` that fit into the cluster. Raises RequestError where no node has enough for one."""
    ray = _ray()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores, cards = ([int(node.get(kind, 0)) for node in nodes] for kind in ("CPU", "GPU"))
    gpus = engine.gpus_per_worker if engine.gpus_per_worker is not None else float(max(cards) > 0)
    fitting = [int(has / gpus + 1e-9) if gpus else 1 for has in cards]  # workers of a node, by GPUs
    shares = [max(1, has // most) for has, most in zip(cores, fitting, strict=True) if has and most]
    cpus = engine.cpus_per_worker or min(shares, default=1)
    for name, requested, most in (("gpus_per_worker", gpus, max(cards)), ("cpus_per_worker", cpus, max(cores))):
        if requested > most:
            raise RequestError(f"{name}: expected a node that has {requested:g}, found {most} at most in the cluster")
    by_gpus = [most if gpus else has for has, most in zip(cores, fitting, strict=True)]
    workers = sum(min(has // cpus, most) for has, most in zip(cores, by_gpus, strict=True))
    return Resources(engine.workers or max(1, workers), cpus, gpus)


def precision_of(engine: Engine, requested: str | None) -> ComputePrecision:
    """The `requested` precision where a worker computes."""
    ray, resources = _ray(), resources_of(engine)
    call = resources.reserved(ray.remote(resolve_precision)).remote(requested)
    while not ray.wait([call], timeout=PATIENCE_SECONDS)[0]:
        _log_waiting(resources)
    try:
        return ComputePrecision(_result(call))
    except ray.exceptions.RayError as error:
        raise WorkError(
            f"a worker was lost before it began ({type(error).__name__}); run the same command again"
        ) from error


def _log_waiting(resources: Resources) -> None:
    log(f"no worker has started yet; each needs {resources.cpus} cores and {resources.gpus:g} GPUs")


class _Worker:
    """The actor. Its errors are the project's own, and name nothing of sensitive data."""

    def __init__(self, is_sensitive: bool, group_read: bool) -> None:
        self._is_sensitive, self._group_read = is_sensitive, group_read
        self._name = uuid4().hex  # in its temporary files: one that is taken to be lost may still write

    def _privacy(self) -> AbstractContextManager[None]:
        return sensitive_data(self._group_read) if self._is_sensitive else nullcontext()

    def start(self, job: Sequence[Any], versions: dict[str, str], folder: str, cpus: int) -> None:
        """Loads the model, where the node, which may have joined late, has these versions.

        job: a list of one reference, to the shards and the `start` of its work. Ray reads a bare reference
            before the call, one in a list here, after the versions are checked.
        folder: which relative paths start from.
        """
        node = _ray().util.get_node_ip_address()
        _check_same(versions, _version_reader()(), node)
        import torch

        os.environ["RAYON_NUM_THREADS"] = str(cpus)  # of tokenizers
        torch.set_num_threads(cpus)  # a node's environment may say otherwise
        with self._privacy():
            self._shards, load = _ray().get(job[0])
            if Path(folder).is_dir():
                os.chdir(folder)
            if not self._shards.is_visible():
                raise RequestError(
                    f"{self._shards.location}: expected a folder that all workers share, found none on node {node}. "
                    "Use a folder on a disk that every node mounts"
                )
            self._compute = load()

    def fill(self, numbers: Sequence[int], items: Sequence[Any]) -> None:
        """Writes the shards of these numbers, one from each item."""
        with self._privacy():
            contents = self._compute(items, Bar())
            for number, content in zip(numbers, contents, strict=True):
                self._shards.write(number, content, self._name)


def _result(call: Any) -> Any:
    """Returns the result of a call. Raises the project's own errors as they were, others as WorkError."""
    ray = _ray()
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, BertRelayError):
            raise cause from None
        raise WorkError(f"a worker ended with {type(cause).__name__}: {cause}") from error


@dataclass(frozen=True)
class RayExecutor:
    """Computes shards by the workers of the cluster that this process is connected to."""

    engine: Engine
    process_group: ProcessGroup = SINGLE_PROCESS
    sends_work: bool = True

    def precision(self, requested: str | None, device: "torch.device") -> ComputePrecision:  # noqa: ARG002
        return requested if isinstance(requested, ComputePrecision) else precision_of(self.engine, requested)

    def compute(self, shards: ShardStore[Content], missing: Sequence[int], work: Work[Item, Content], bar: Bar) -> None:
        """Returns when all `missing` shards are written."""
        if missing:
            _WorkerPool(shards, missing, work, resources_of(self.engine)).fill(bar)


class _WorkerPool(Generic[Item, Content]):
    """The workers that compute the `missing` shards: `work.start` is sent to each, and `work.read` called here."""

    def __init__(
        self, shards: ShardStore[Content], missing: Sequence[int], work: Work[Item, Content], resources: Resources
    ) -> None:
        ray = _ray()
        self._shards, self._read, self._resources = shards, work.read, resources
        self._to_do = deque(missing)  # that no worker has
        self._unfinished = set(self._to_do)  # that are not on the disk
        self._new = set[int]()  # that are, since the bar was advanced
        self._lost = Counter[int]()  # workers, by the shard that they were computing
        self._calls: dict[Any, tuple[Any, list[int]]] = {}  # to a worker, and the shards it has; none while it starts
        self._job, self._versions = [ray.put((shards, work.start))], _version_reader()()

    def fill(self, bar: Bar) -> None:
        """Returns when all shards are on the disk.

        Raises RequestError for a folder that workers do not share, WorkError where more than MOST_LOST workers are lost
        over one shard, and what workers raise.
        """
        ray = _ray()
        last_work = time.monotonic()
        try:
            for _ in range(min(self._resources.workers, len(self._to_do))):
                self._start_worker()
            while self._to_do or any(numbers for _, numbers in self._calls.values()):
                for call in ray.wait(list(self._calls), timeout=POLL_SECONDS)[0]:
                    self._handle_result(call)
                at_work = sum(bool(numbers) for _, numbers in self._calls.values())
                self._update_progress(at_work, bar)
                if at_work:
                    last_work = time.monotonic()
                elif time.monotonic() - last_work > PATIENCE_SECONDS:
                    last_work = time.monotonic()
                    _log_waiting(self._resources)
        finally:
            for worker, _ in self._calls.values():
                ray.kill(worker)

    def _start_worker(self) -> None:
        ray = _ray()
        worker = self._resources.reserved(ray.remote(_Worker)).remote(is_sensitive(), current_umask() == GROUP_READS)
        call = worker.start.remote(self._job, self._versions, str(Path.cwd()), self._resources.cpus)
        self._calls[call] = worker, []

    def _handle_result(self, call: Any) -> None:
        """Gives the worker of a call that has returned its next shards, or replaces it if it was lost."""
        ray = _ray()
        worker, numbers = self._calls.pop(call)
        try:
            _result(call)
        except ray.exceptions.RayError as error:  # its process or its node has ended
            self._count_written()
            computing = [number for number in numbers if number in self._unfinished][:1]
            self._lost.update(computing if numbers else [STARTING])
            # A node that is lost takes along all workers that start on it.
            most = {STARTING: MOST_LOST * self._resources.workers}
            often = [number for number, count in self._lost.items() if count > most.get(number, MOST_LOST)]
            if often:
                _check_versions()  # a node that joined late may lack a package
                what = "while they loaded the model" if STARTING in often else f"over shard {often[0]:,}"
                raise WorkError(
                    f"{self._lost[often[0]]} workers were lost {what} ({type(error).__name__}), perhaps because memory "
                    "ran out; give fewer --workers a node, or less with --batch-tokens. The same command resumes"
                ) from error
            self._to_do.extendleft(number for number in reversed(numbers) if number in self._unfinished)
            if self._to_do:
                self._start_worker()
            return
        if not numbers:
            self._lost[STARTING] = 0
        if not self._to_do:
            ray.kill(worker)
            return
        size = min(SHARDS_AT_ONCE, -(-len(self._to_do) // (2 * self._resources.workers)))
        numbers = [self._to_do.popleft() for _ in range(size)]
        items = [self._read(self._shards.spans[number]) for number in numbers]
        self._calls[worker.fill.remote(numbers, items)] = worker, numbers

    def _update_progress(self, at_work: int, bar: Bar) -> None:
        """Advances the bar by the shards that are new on the disk."""
        self._count_written()
        bar.advance(sum(self._shards.spans[number].size for number in self._new), f"{at_work} workers")
        self._new.clear()

    def _count_written(self) -> None:
        written = self._unfinished.difference(self._shards.missing())
        self._unfinished -= written
        self._new |= written
