"""What the tests of the kernels hand to them lies where the kernels run: shown on "meta", which holds no numbers."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch

pytest.importorskip("triton")

from tests.model import test_triton_backward as backward
from tests.model import test_triton_far as far
from tests.model import test_triton_forward as forward

if torch.cuda.is_available():
    pytest.skip("a GPU shows it itself", allow_module_level=True)


class Places(Exception):
    """Of the tensors of the first launch."""


def stop(kernel, *args, grid, warmup, **options):
    raise Places({x.device.type for x in args if isinstance(x, torch.Tensor)})


def gradients() -> None:
    inputs = backward.rfa_inputs(1, 20, 2, 8, dtype=torch.float32, irregular=True)
    backward.check(backward.with_mu(inputs, 0.0, 0.1))


def far_gradients() -> None:
    inputs = far.inputs_of(20, (0.1, 0.2))
    result = far.full_sum(inputs, torch.float64, 20, "student_t")
    far.run_backward(inputs, 1e-3, result, far.weights_of(inputs, 20))


@pytest.mark.parametrize("test", [
    lambda: forward.test_matches_the_eager_code((2, 20, 1, 8), True, "student_t", torch.float32),
    lambda: forward.test_packed_sequences((3, 0, 4, 0), True, torch.float32),
    forward.test_any_decay_of_distant_blocks,
    forward.test_the_table_of_distant_blocks_keeps_its_bound,
    gradients,
    lambda: backward.test_packed_sequences(True, "gaussian"),
    far_gradients,
    lambda: far.run_forward(far.inputs_of(20, (0.1, 0.2)), 1e-3),
])  # fmt: skip
def test_tensors_lie_where_the_kernels_run(test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.runtime.interpreter.InterpretedFunction.run", stop)
    monkeypatch.setattr("rfa.model.attention.reference.without_autocast", lambda _: nullcontext())
    with torch.device("meta"), pytest.raises(Places) as found:
        test()
    assert found.value.args == ({"meta"},)
