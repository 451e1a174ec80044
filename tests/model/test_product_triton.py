"""Products of rows by a matrix with what is around them: against float64, and a row against itself in any company.

They run on a GPU where there is one, else in Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")

from rfa.model import product_triton
from rfa.model.product_triton import FEW_ROWS, LARGE, MEDIUM, PART, Norm, Tile, add_product, product

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6  # of the norm
# Half a unit of float32.
UNIT = torch.finfo(torch.float32).eps / 2
# Rows, columns, factors: of no whole block; of several parts and turns; one.
SHAPES = [(19, 43, 100), (3, 9, 2 * PART + 5), (1, 1, 1)]


def of(rows: int, columns: int, factors: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Norm, Tensor]:
    """Rows, a matrix in a dtype, a norm and what is there before a sum."""
    generator = torch.Generator().manual_seed(rows)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE)

    norm = Norm(torch.linspace(0.5, 2, factors, device=DEVICE), EPS)
    return normal(rows, factors), normal(columns, factors).to(dtype), norm, normal(rows, columns)


@pytest.fixture
def soon_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are many however few programs there are."""
    make_many_soon(monkeypatch)


def make_many_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, block in {"LARGE": LARGE, "MEDIUM": MEDIUM}.items():
        monkeypatch.setattr(product_triton, name, block._replace(programs=1))


def normed(x: Tensor, norm: Norm) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight.to(x)


def every_form(x: Tensor, weight: Tensor, norm: Norm, before: Tensor) -> dict[str, Tensor]:
    """By the kernel."""
    total = before.clone()
    add_product(total, x.to(weight.dtype), weight)
    return {
        "plain": product(x.to(weight.dtype), weight), "normed": product(x, weight, norm),
        "gelu": product(x, weight, norm, with_gelu=True), "added": total,
    }  # fmt: skip


def assert_products(rows: int, columns: int, factors: int, dtype: torch.dtype) -> None:
    """Within the rounding of the factors, and of the products and sums of each number, once."""
    x, weight, norm, before = of(rows, columns, factors, dtype)
    found = every_form(x, weight, norm, before)
    unit, wide = torch.finfo(dtype).eps / 2, weight.double()
    plain, scaled = x.to(dtype).double(), normed(x.double(), norm)
    # Where numbers lie between two of a dtype, float32 and float64 may round to different ones.
    own = unit if dtype != torch.float32 else 0.0
    sums, of_norm = plain @ wide.T, scaled @ wide.T
    spread, spread_of_norm = plain.abs() @ wide.abs().T, scaled.abs() @ wide.abs().T
    # The norm's own: a mean of squares, which is halved by the root, and its inverse to an ulp, and two products.
    of_sum, of_factors = 2 * factors * UNIT, (factors + 6) * UNIT + own
    expected = {
        "plain": (sums, of_sum * spread),
        "normed": (of_norm, (of_sum + of_factors) * spread_of_norm),
        # Nowhere steeper than 1.13; and the number itself in its dtype.
        "gelu": (F.gelu(of_norm), (1.13 * (of_sum + of_factors) + 8 * UNIT + unit) * (spread_of_norm + 1)),
        "added": (sums + before.double(), of_sum * spread + UNIT * (sums + before).abs()),
    }
    for name, (exact, limit) in expected.items():
        assert found[name].dtype == (dtype if name == "gelu" else torch.float32)
        assert ((found[name].double() - exact).abs() <= limit).all(), name


def assert_company_changes_nothing(
    dtype: torch.dtype, rows: int = FEW_ROWS + 3, factors: int = 100, columns: int = 43
) -> None:
    """First, last or in the middle of a block, alone or beside others, broken ones among them."""
    x, weight, norm, before = of(rows, columns, factors, dtype)
    x[5], before[5] = torch.nan, torch.nan
    whole = every_form(x, weight, norm, before)
    for own in ([0], [rows - 1], [1, 9, 16], [5, 17], [*reversed(range(6, 18))], [*range(3, rows, 2)]):
        for name, part in every_form(x[own], weight, norm, before[own]).items():
            assert torch.equal(part.nan_to_num(1e9), whole[name][own].nan_to_num(1e9)), (name, own)
            assert part.isnan().all(1).tolist() == [row == 5 for row in own], (name, own)


def assert_many_rows(dtype: torch.dtype) -> None:
    """In blocks of either size, and a row as among few."""
    for rows, factors in ((2 * LARGE.rows + 3, 100), (2 * MEDIUM.rows + 3, 2 * PART + 5)):
        block = LARGE if factors <= PART else MEDIUM
        tile = Tile.of(torch.empty(43, factors, dtype=dtype), rows)
        assert (tile.BM, tile.BN, tile.BK, tile.warps) == (*block[:3], max(tile.PARTS, block.warps))
        assert_products(rows, 43, factors, dtype)
        if not tile.INTERPRETED:  # where NumPy sums a block, in an order that depends on how large it is
            assert_company_changes_nothing(dtype, rows, factors)


def assert_norms_agree(factors: int) -> None:
    """The norm that a product makes, times the matrix of one, has the bits of the norm that is made for many rows."""
    x, _, norm, _ = of(35, 1, factors, torch.float32)
    x *= torch.logspace(-12, 12, len(x), device=DEVICE)[:, None]
    weight = torch.eye(factors, device=DEVICE)
    tile = Tile.of(weight.half(), 64)._replace(BM=LARGE.rows)
    made, rest = product_triton.normed(x, norm, tile, torch.float32)
    assert rest is None
    assert torch.equal(made, product(x, weight, norm))


@pytest.mark.parametrize("factors", [1, 100, 256])
def test_norms_agree(factors: int) -> None:
    assert_norms_agree(factors)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_with_what_is_around_it(shape: tuple[int, int, int]) -> None:
    assert_products(*shape, torch.float32)


def test_a_row_is_summed_alike_among_any_others() -> None:
    assert_company_changes_nothing(torch.float32)


@pytest.mark.usefixtures("soon_many")
def test_many_rows() -> None:
    assert_many_rows(torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 40, 1024])
@pytest.mark.parametrize("factors", [1, 256, 1000, 4096])
@pytest.mark.parametrize("columns", [1, 256, 1792, 50_257])
def test_tiles(columns: int, factors: int, rows: int, dtype: torch.dtype) -> None:
    """Powers of two; factors enough for a tensor core; many programs where there are columns for them; and the parts of
    a sum do not depend on the rows."""
    weight = torch.empty(columns, factors, dtype=dtype)
    tile = Tile.of(weight, rows)
    assert Tile.of(weight, 1)[5:7] == (tile.PARTS, tile.LENGTH) and factors <= tile.PARTS * tile.LENGTH
    assert all(number & (number - 1) == 0 for number in (tile.BN, tile.BK, tile.PARTS, tile.warps))
    assert tile.BK >= 16
    assert tile.BN * tile.BK * tile.PARTS * dtype.itemsize <= 64 << 10
    assert tile.is_of_many or tile.BN == 4 or 2 * columns // tile.BN > 128
    # Another kind of product, wgmma, takes 64 rows by four warps.
    assert tile.BM < 64 or tile.warps % 4
