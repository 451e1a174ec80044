"""Attention without gradients goes block by block of queries: the same numbers as in one piece."""

import pytest
import torch

from rfa.model.attention import reference
from rfa.model.attention.reference import relative_attention
from rfa.model.dynamics import DynamicsParameters, banded_decay, banded_frequencies


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("options", [{}, {"kernel": "gaussian"}, {"prior": "constant"}])
def test_blocks_equal_the_whole(length, options):
    dynamics = DynamicsParameters(banded_frequencies(4, 4), banded_decay(4, 4, 0.5))().to(torch.float64)
    q, k, v = torch.randn(3, 2, length, 4, 8, dtype=torch.float64)
    whole = relative_attention(q, k, v, dynamics, **options)
    with torch.no_grad():
        blocks = relative_attention(q, k, v, dynamics, **options)
    for one, other in zip(whole, blocks, strict=True):
        torch.testing.assert_close(other, one.detach(), rtol=1e-12, atol=1e-13)


def test_no_block_sees_all_pairs(monkeypatch):
    sizes = []
    original = reference._attend

    def watched(q, k, *rest, **options):
        sizes.append((q.shape[1], k.shape[1]))
        return original(q, k, *rest, **options)

    monkeypatch.setattr(reference, "_attend", watched)
    dynamics = DynamicsParameters(banded_frequencies(2, 4), banded_decay(2, 4, 0.5))()
    with torch.no_grad():
        relative_attention(*torch.randn(3, 1, 150, 2, 8), dynamics)
    assert sizes == [(64, 150), (64, 86), (22, 22)]
