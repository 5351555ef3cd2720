import pytest
import torch

from bertrelay.cpu_kernels import Dropout, apply_dropout

MANY = 1_000_000


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_is_dropped_and_the_mean_stays(p: float) -> None:
    torch.manual_seed(1)
    values = apply_dropout(torch.full((MANY,), 3.0), p)
    off = 5 * (p * (1 - p) / MANY) ** 0.5  # five standard deviations of a share, and the rounding of p
    assert abs((values == 0).float().mean().item() - p) < off + 2**-17
    assert torch.allclose(values.unique(), torch.tensor([0.0, 3 / (1 - p)]), rtol=1e-3)
    assert abs(values.mean().item() / 3 - 1) < off / (1 - p)


@pytest.mark.parametrize("apart", [1, 2, 3, 4, 8])
def test_neighbours_are_dropped_independently(apart: int) -> None:
    torch.manual_seed(2)
    gone = apply_dropout(torch.ones(MANY), 0.3) == 0
    both = (gone[:-apart] & gone[apart:]).float().mean().item()
    assert abs(both - 0.09) < 5 * (0.09 * 0.91 / MANY) ** 0.5


def test_the_gradient_is_that_of_what_was_kept() -> None:
    values = torch.ones(1_001, dtype=torch.float64, requires_grad=True)
    result = apply_dropout(values, 0.25)
    result.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, result.detach())


def test_a_seed_repeats_it_and_the_next_call_differs() -> None:
    def drawn() -> torch.Tensor:
        return apply_dropout(torch.ones(77), 0.5)

    torch.manual_seed(3)
    first, second = drawn(), drawn()
    torch.manual_seed(3)
    assert torch.equal(drawn(), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("p", "expected"), [(0.0, 1.0), (1.0, 0.0)])
def test_none_and_all_may_be_dropped(p: float, expected: float) -> None:
    assert apply_dropout(torch.ones(5), p).tolist() == [expected] * 5


def test_it_rests_outside_training() -> None:
    ones = torch.ones(100)
    assert torch.equal(Dropout(0.4).eval()(ones), ones)
    assert not torch.equal(Dropout(0.4).train()(ones), ones)
