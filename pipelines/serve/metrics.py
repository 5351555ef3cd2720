"""Metrics of a server in the text format of Prometheus; no label holds anything of a request."""

import bisect
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from pipelines.serve.embedding import ServedEncoder
from pipelines.serve.models import Models

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class RequestMetrics:
    """Counts and durations of requests, by route."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Counts a request that was answered."""
        with self._lock:
            self._counts[route, status] += 1
            buckets = self._buckets.setdefault(route, [0] * (len(BUCKETS) + 1))
            buckets[bisect.bisect_left(BUCKETS, seconds)] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]

    def lines(self) -> Iterator[str]:
        """The lines of the text format."""
        rows = [
            (f'route="{route}",status="{status}"', count) for (route, status), count in sorted(self._counts.items())
        ]
        yield from _family("requests_total", "counter", "Requests by route and status.", rows)
        name = "bertrelay_request_duration_seconds"
        yield from (f"# HELP {name} Seconds until a request was answered.", f"# TYPE {name} histogram")
        for route, counts in sorted(self._buckets.items()):
            for bound, total in zip((*map(str, BUCKETS), "+Inf"), accumulate(counts), strict=True):
                yield f'{name}_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'{name}_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'{name}_count{{route="{route}"}} {sum(counts)}'


def exposition(metrics: RequestMetrics, models: Models) -> str:
    """All metrics in the text format."""
    return "\n".join([*metrics.lines(), *_model_lines(models), ""])


def _model_lines(models: Models) -> Iterator[str]:
    """The lines about the engines and memories of vectors."""
    engines = models.engines
    for name, text in (
        ("batches", "Batches that the network has computed."),
        ("inputs", "Inputs that the network has computed."),
        ("tokens", "Tokens that the network has computed."),
        ("seconds", "Seconds that the network has computed."),
        ("cancelled", "Inputs that were dropped because the client had gone."),
        ("refused", "Requests for which the queue had no space."),
    ):
        rows = [(f'model="{_escape(model)}"', getattr(engine.counts, name)) for model, engine in engines.items()]
        yield from _family(f"{name}_total", "counter", text, rows)
    rows = [(f'model="{_escape(model)}"', engine.waiting_tokens) for model, engine in engines.items()]
    yield from _family("queue_tokens", "gauge", "Tokens that wait.", rows)
    caches = {model.name: model.cache for model in models.with_engines if isinstance(model, ServedEncoder)}
    rows = [(f'model="{_escape(model)}"', cache.hits) for model, cache in caches.items()]
    yield from _family("cache_hits_total", "counter", "Texts whose vector was in memory.", rows)
    rows = [(f'model="{_escape(model)}"', cache.size) for model, cache in caches.items()]
    yield from _family("cache_bytes", "gauge", "Bytes of vectors in memory.", rows)


def _family(name: str, kind: str, text: str, rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP bertrelay_{name} {text}"
    yield f"# TYPE bertrelay_{name} {kind}"
    for labels, value in rows:
        yield f"bertrelay_{name}{{{labels}}} {value}"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
