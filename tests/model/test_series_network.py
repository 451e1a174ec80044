"""The series network: quantiles that never cross, leads that do not know of each other, streams at any lag."""

import numpy as np
import pytest
import torch

from rfa.model.series.network import LeadQueries, SeriesNetwork
from rfa.runtime.series.config import FEATURES, LEVELS, MEDIAN, PATCH, PATHS, SeriesConfig
from rfa.runtime.series.leads import FARTHEST, lead_table

SMALL = SeriesConfig(
    d_model=32, n_layers=2, n_heads=2, head_dim=4, n_slots=4, embedding_width=32, head_width=32, head_inner=32
)


def network(seed=0):
    torch.manual_seed(seed)
    model = SeriesNetwork(SMALL).eval()
    with torch.no_grad():
        # At its start the head follows no path, and hardly its state.
        for parameter in model.head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def inputs(batch=2, length=9, leads=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(batch, length, FEATURES, generator=generator)
    ends = PATCH * torch.arange(1, length + 1).expand(batch, length)
    asked = LeadQueries(
        torch.randint(1, FARTHEST, (batch, length, leads), generator=generator),
        torch.randn(batch, length, leads, PATHS, generator=generator),
    )
    return tokens, ends, asked


@pytest.mark.parametrize("mode", ["recurrent", "attention"])
@torch.no_grad()
def test_quantiles_are_in_order_at_every_lead(mode):
    model = network()
    model.mode = mode
    quantiles = model(*inputs())
    assert quantiles.shape == (2, 9, 5, len(LEVELS))
    # A gap may be less than the spacing of float32 at the median.
    assert (quantiles.diff(dim=-1) >= 0).all() and (quantiles[..., -1] > quantiles[..., 0]).all()


@torch.no_grad()
def test_a_lead_is_reported_the_same_in_any_company():
    model = network()
    tokens, ends, asked = inputs()
    whole = model(tokens, ends, asked)
    for k in range(5):
        alone = model(tokens, ends, LeadQueries(*(part[:, :, k : k + 1] for part in asked)))
        torch.testing.assert_close(alone[:, :, 0], whole[:, :, k], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["recurrent", "attention"])
@torch.no_grad()
def test_nothing_is_recorded_before_it_comes(mode):
    model = network()
    model.mode = mode
    tokens, ends, asked = inputs()
    later = tokens.clone()
    later[:, 6:] += 1
    one, other = model(tokens, ends, asked), model(later, ends, asked)
    torch.testing.assert_close(one[:, :6], other[:, :6], atol=1e-6, rtol=1e-6)
    assert (one[:, 6:] - other[:, 6:]).abs().max() > 1e-3


@torch.no_grad()
def test_the_recurrent_mode_knows_how_long_ago_a_token_was():
    model = network()
    tokens, ends, _ = inputs()
    late = ends.clone()
    late[:, 5:] += 40 * PATCH
    one, other = model.states(tokens, ends), model.states(tokens, late)
    assert torch.equal(one[:, :5], other[:, :5])
    assert (one[:, 5:] - other[:, 5:]).abs().max() > 1e-3
    # What it does not know is what time it is: cells are counted from anywhere.
    assert model.mode == "recurrent"


@torch.no_grad()
def test_paths_are_followed_by_weights_of_the_state():
    """The median moves with a path by exactly the weight that the state gives it, when the hidden units do not."""
    model = network()
    model.head.asked.weight.zero_()
    tokens, ends, asked = inputs()
    moved = asked._replace(paths=asked.paths.index_add(-1, torch.tensor([2]), torch.ones(2, 9, 5, 1)))
    difference = (model(tokens, ends, moved) - model(tokens, ends, asked))[..., MEDIAN]
    weight = model.head.follow(model.states(tokens, ends))[..., 2]
    torch.testing.assert_close(difference, weight[..., None].expand_as(difference), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_leads_beyond_the_farthest_look_as_far():
    model = network()
    tokens, ends, asked = inputs()
    outputs = [
        model(tokens, ends, asked._replace(leads=torch.full_like(asked.leads, lead)))
        for lead in (FARTHEST, FARTHEST + 1, 10 * FARTHEST, FARTHEST // 2)
    ]
    assert (
        torch.equal(outputs[0], outputs[1])
        and torch.equal(outputs[0], outputs[2])
        and not torch.equal(outputs[0], outputs[3])
    )
    assert (np.diff(lead_table()[1:, 0]) > 0).all()


def test_a_configuration_says_what_is_wrong():
    with pytest.raises(ValueError, match="n_slots must be >= 1"):
        SeriesConfig(n_slots=0)
    with pytest.raises(ValueError, match="head_width must be a multiple of 32, got 0"):
        SeriesConfig(head_width=0)
    with pytest.raises(ValueError, match="head_dim must be even"):
        SeriesConfig(head_dim=3)
    with pytest.raises(ValueError, match="has no key"):
        SeriesConfig.from_dict({"width": 3})
