"""The engine of a served model: batches, order, limits, cancelling, failures."""

import threading

import pytest

from pipelines.serve.engine import Engine, QueueFullError, first_only, fixed_shape, one_shape


class Network:
    """Computes twice a number; holds batches until `release`, and keeps what it computed."""

    def __init__(self):
        self.batches, self._gate, self.has_begun = [], threading.Event(), threading.Event()

    def release(self):
        self._gate.set()

    def __call__(self, values):
        self.has_begun.set()
        assert self._gate.wait(20)
        self.batches.append(list(values))
        if "broken" in values:
            raise ValueError("broken")
        return [2 * value for value in values]


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def engine(network):
    made = []

    def make(**options):
        limits = {"batch_tokens": 40, "max_tokens": 40, "queue_tokens": 400, **options}
        made.append(Engine(network, **limits))
        return made[0]

    yield make
    network.release()
    made[0].close()


def hold(engine, network):
    """A first request that the network holds, while others arrive."""
    job = engine.submit([0], [1])
    assert network.has_begun.wait(20)
    return job


def test_a_single_request_is_computed_at_once_and_what_waits_shares_a_batch(engine, network):
    engine = engine()
    first = hold(engine, network)
    others = [engine.submit([number], [8]) for number in range(1, 6)]
    network.release()
    assert first.result(20).results == [0]
    assert [job.result(20).results for job in others] == [[2], [4], [6], [8], [10]]
    assert network.batches == [[0], [1, 2, 3, 4, 5]]


def test_results_are_in_the_order_of_the_request_whatever_the_batches(engine, network):
    engine, sizes = engine(), [3, 40, 1, 20, 7, 40, 2] * 5
    network.release()
    values = list(range(len(sizes)))
    assert engine.submit(values, sizes).result(20).results == [2 * value for value in values]
    assert all(sum(1 for _ in batch) * max(sizes[value] for value in batch) <= 40 for batch in network.batches)


@pytest.mark.promise("One sentence does not wait for a request of thousands", about="serving")
def test_a_sentence_passes_a_request_of_thousands(engine, network):
    engine = engine(queue_tokens=10**6)
    hold(engine, network)
    many = engine.submit(list(range(1000)), [20] * 1000)
    single = engine.submit([7000], [20])
    network.release()
    assert single.result(20).results == [14000]
    assert next(number for number, batch in enumerate(network.batches) if 7000 in batch) < 10
    many.result(20)


def test_a_full_queue_refuses_and_says_when_to_retry(engine, network):
    engine = engine()
    hold(engine, network)
    engine.submit([1], [390])
    with pytest.raises(QueueFullError) as full:
        engine.submit([2], [20])
    assert full.value.retry_seconds >= 1
    assert engine.counts.refused == 1
    network.release()


def test_an_idle_engine_takes_a_request_beyond_the_limit(engine, network):
    network.release()
    assert engine().submit([1, 2], [300, 300]).result(20).results == [2, 4]


def test_a_cancelled_request_is_not_computed(engine, network):
    engine = engine()
    hold(engine, network)
    cancelled, other = engine.submit([5, 6], [4, 4]), engine.submit([7], [4])
    assert cancelled.cancel()
    network.release()
    assert other.result(20).results == [14]
    assert network.batches == [[0], [7]]
    assert engine.counts.cancelled == 2
    assert engine.waiting_tokens == 0


def test_an_input_that_fails_fails_its_own_request_only(engine, network):
    engine = engine()
    hold(engine, network)
    good, bad = engine.submit([1], [4]), engine.submit(["broken"], [4])
    network.release()
    assert good.result(20).results == [2]
    with pytest.raises(ValueError, match="broken"):
        bad.result(20)
    assert engine.submit([3], [4]).result(20).results == [6]


def test_an_engine_that_shares_no_batch_computes_each_input_by_itself(engine, network):
    engine = engine(choose=first_only)
    hold(engine, network)
    jobs = [engine.submit([number], [4]) for number in (1, 2, 3)]
    network.release()
    assert [job.result(20).results for job in jobs] == [[2], [4], [6]]
    assert network.batches == [[0], [1], [2], [3]]


def test_inputs_of_one_fixed_shape_share_a_batch_that_is_never_larger(engine, network):
    limits = {"batch_tokens": 1024, "max_tokens": 40}
    assert [fixed_shape(tokens, *limits.values()) for tokens in (1, 8, 9, 33, 40)] == [
        (8, 4),
        (8, 4),
        (12, 2),
        (40, 1),
        (40, 1),
    ]
    engine = engine(choose=one_shape, queue_tokens=10**4, **limits)
    hold(engine, network)
    job = engine.submit(list(range(1, 10)), [8, 9, 1, 30, 5, 12, 7, 10, 3])
    network.release()
    assert job.result(20).results == [2 * value for value in range(1, 10)]
    assert network.batches == [[0], [1, 3, 5, 7], [2, 6], [4], [8], [9]]


def test_groups_do_not_mix(engine, network):
    engine = engine()
    hold(engine, network)
    jobs = [engine.submit([number], [4], group=number % 2) for number in (1, 2, 3)]
    network.release()
    assert [job.result(20).results for job in jobs] == [[2], [4], [6]]
    assert network.batches == [[0], [1, 3], [2]]


def test_closing_computes_what_waits_and_refuses_what_comes(engine, network):
    engine = engine()
    hold(engine, network)
    waiting = engine.submit([1], [4])
    network.release()
    engine.close()
    assert waiting.result(0).results == [2]
    with pytest.raises(QueueFullError):
        engine.submit([2], [4])
