"""What is recorded for a bundle with compiled kernels is all that serving launches."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from rfa.export.kernel_recording import SIZES
from rfa.model.product_triton import Tile
from rfa.training.language_config import LanguageRun, find_config


@pytest.mark.parametrize("name", ["books", "paper"])
def test_products_are_recorded_in_each_of_their_blocks(name: str) -> None:
    """Rows of a product are tokens of prompts, up to a piece of 1,024, or streams; of the vocabulary streams alone."""
    model = LanguageRun.from_file(find_config(name)).model
    width, mixed = model.d_model, 2 * model.head_dim * model.n_heads
    joint = 3 * mixed + 2 * model.n_heads * model.n_slots
    layers = ((joint, width), (width, mixed), (4 * width, width), (width, 4 * width))
    streams = [streams for streams, _ in SIZES]
    for rows, shapes in (([*streams, *(n * m for n, m in SIZES)], layers), (streams, ((model.vocab_size, width),))):
        for shape in shapes:
            weight = torch.empty(shape, dtype=torch.bfloat16, device="meta")
            recorded = {Tile.of(weight, count) for count in rows}
            assert {Tile.of(weight, count) for count in range(1, 1025)} <= recorded, shape
