"""Launches that others take before Triton: what they are told of them, and that all else stays as it was."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from rfa.model.attention.triton_rotation import _rotation_kernel
from rfa.model.decoder_triton import slots_kernel
from rfa.model.kernel_launches import KernelCall, intercept_launches, intercepted_launches, source_hash
from rfa.model.recurrence.triton_forward import scan_kernel
from tests.kernels import interpreted

pytestmark = interpreted


def turned(grid: object = (2,)) -> torch.Tensor:
    """(1, 0) by a quarter, five times over in two programs of four rows."""
    x, cos, sin = torch.tensor([[1.0, 0.0]] * 5), torch.zeros(1, 1), torch.ones(1, 1)
    out = torch.full_like(x, 9.0)
    _rotation_kernel[grid](
        x, cos, sin, out, 5, 1, DIMS=1, BLOCK_D=1, BLOCK_R=4, IS_INVERSE=False, num_warps=4, num_stages=2
    )
    return out


def test_a_launch_that_is_taken_does_not_run() -> None:
    seen: list[KernelCall] = []

    def take(call: KernelCall) -> bool:
        seen.append(call)
        return True

    with intercepted_launches(take):
        assert (turned() == 9.0).all()
    (call,) = seen
    assert call.name == "_rotation_kernel" and call.grid == (2, 1, 1)
    assert list(call.values) == [
        "p_x", "p_cos", "p_sin", "p_out", "n_rows", "n_phases", "DIMS", "BLOCK_D", "BLOCK_R", "IS_INVERSE",
    ]  # fmt: skip
    assert call.values["n_rows"] == 5 and call.values["IS_INVERSE"] is False
    assert call.options == {"num_warps": 4, "num_stages": 2}


def test_who_came_last_is_asked_first() -> None:
    asked: list[str] = []
    end = intercept_launches(lambda call: asked.append("first") is not None)
    with intercepted_launches(lambda call: asked.append("second") is not None):
        turned()
    assert asked == ["second", "first"]
    end()
    turned()
    assert asked == ["second", "first"]


def test_a_source_is_all_that_a_kernel_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from rfa.model import kernel_launches

    fresh, real = source_hash.__wrapped__, kernel_launches.inspect.getsource
    before = fresh(slots_kernel), fresh(scan_kernel), fresh(_rotation_kernel)
    assert len({*before}) == 3

    def changed(function: object) -> str:
        # Step and scan call it by others, the rotation does not.
        return real(function) + "\n# changed" * (getattr(function, "__name__", "") == "log2_near_one")  # type: ignore[arg-type]

    monkeypatch.setattr(kernel_launches.inspect, "getsource", changed)
    after = fresh(slots_kernel), fresh(scan_kernel), fresh(_rotation_kernel)
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]
