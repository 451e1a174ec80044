"""Training of a series network from the weights of a narrower one."""

from dataclasses import replace

import pytest
import torch

from rfa.model.series.network import SeriesNetwork
from rfa.runtime.series.config import SeriesConfig
from rfa.training.series_batches import synthetic_batch
from rfa.training.series_network import pinball, weighted_mean
from rfa.training.wider_series import is_wider, widened

NARROW = SeriesConfig(
    d_model=32, n_layers=2, n_heads=2, head_dim=4, n_slots=4, mlp_ratio=2,
    embedding_width=32, head_width=32, head_inner=32,
)  # fmt: skip
WIDE = replace(NARROW, d_model=96, mlp_ratio=3, embedding_width=64)


@pytest.fixture
def narrow():
    """A network whose weights are all different from their initial values, like those of a trained one."""
    torch.manual_seed(0)
    network = SeriesNetwork(NARROW)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize("mode", ["recurrent", "attention"])
def test_a_wider_network_has_the_same_outputs(narrow, mode):
    batch = synthetic_batch(0, 4, 16)
    wide = widened(narrow, WIDE)
    narrow.mode = wide.mode = mode
    with torch.no_grad():
        expected = narrow(batch.tokens, batch.ends, batch.asked)
        # Products of both widths add the same numbers in different orders, with a relative error of about 96 · 2⁻²⁴.
        torch.testing.assert_close(wide(batch.tokens, batch.ends, batch.asked), expected, rtol=1e-4, atol=1e-4)
    assert wide.config == WIDE


def test_new_units_are_trained(narrow):
    """After two steps, every parameter of the new units has a gradient: first those that write, then those that
    read."""
    wide = widened(narrow, WIDE)
    batch = synthetic_batch(0, 4, 16)
    optimiser = torch.optim.SGD(wide.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        weighted_mean(pinball(wide(batch.tokens, batch.ends, batch.asked), batch), batch.weights).backward()
        optimiser.step()
    for name, parameter in wide.named_parameters():
        old = narrow.get_parameter(name)
        if parameter.shape == old.shape or parameter.grad is None:  # weights of the attention mode have no gradient
            continue
        is_new = torch.ones_like(parameter, dtype=torch.bool)
        is_new[tuple(slice(size) for size in old.shape)] = False
        assert parameter.grad[is_new].abs().sum() > 0, name


def test_only_a_wider_configuration_replaces_that_of_the_network():
    """A narrower one, such as that of `series_tune` for a wide network, is ignored."""
    assert is_wider(WIDE, NARROW) and not is_wider(NARROW, WIDE) and not is_wider(NARROW, NARROW)
    assert not is_wider(replace(WIDE, embedding_width=32), replace(NARROW, embedding_width=64))


@pytest.mark.parametrize(
    "change", [{"d_model": 64, "mlp_ratio": 1, "embedding_width": 32}, {"embedding_width": 32}, {"n_layers": 3}]
)
def test_only_widths_may_grow(narrow, change):
    wide = widened(narrow, WIDE)
    with pytest.raises(ValueError, match="cannot start from"):
        widened(wide, replace(WIDE, **change))
