"""The fused attention and the rotation as operators of torch, and the layer that uses them."""

import pytest
import torch
from torch import nn

from rfa import Dynamics
from rfa.model.attention import triton as fused_operators
from rfa.model.attention.triton import (
    attention_backward_op,
    attention_op,
    fused_attention,
    rotate_op,
    stack_heads,
)
from rfa.model.layers import RobustMixer
from rfa.runtime.text.config import LanguageModelConfig
from tests.model.triton_inputs import DEVICE, fused, needs_gpu, small, starts_of, transposed_copy
from tests.rounding import relative_error

# The operators.


def operator_arguments(transposed, packed, stamped, with_precision, length=5):
    """Arguments of `rfa::attention` that want gradients."""
    inputs = small(length=length)
    q, k, v = inputs[:3]
    if transposed:
        q, k, v = (transposed_copy(x) for x in (q, k, v))
    stamps = torch.arange(length, device=DEVICE).float()[None, :, None] * torch.tensor([1.0, 0.0], device=DEVICE)
    starts = starts_of((length - 2, 2)) if packed else None
    places = (stamps, stamps) if stamped else (None, None)
    leaves = [x.detach().requires_grad_() for x in (q, k, v, stack_heads(inputs.dynamics))]
    longest = length - 2 if packed else length
    return (*leaves, *places, starts, starts, longest, longest, False, with_precision)


@pytest.mark.parametrize(
    ("transposed", "packed", "stamped", "with_precision"),
    [pytest.param(False, False, True, True, marks=pytest.mark.slow), (True, True, False, False)],
)
def test_the_operators_keep_their_promises(transposed, packed, stamped, with_precision):
    """Schema, autograd, shapes and strides of the fake kernels, and tracing."""
    arguments = operator_arguments(transposed, packed, stamped, with_precision)
    torch.library.opcheck(attention_op, arguments)
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    out, log_norm, precision = attention_op(*detached)
    gradients = (torch.randn_like(out), torch.randn_like(log_norm), torch.randn_like(precision))
    target = gradients if with_precision else (*gradients[:2], None)
    torch.library.opcheck(attention_backward_op, (*target, out, log_norm, True, *detached))


def test_gradients_of_the_heads_are_computed_only_on_request(monkeypatch):
    """What the kernels leave out then: test_triton_backward.py."""
    asked = []

    def noted(*arguments, needs_heads):
        asked.append(needs_heads)
        return honest(*arguments, needs_heads=needs_heads)

    honest = fused_operators.backward
    monkeypatch.setattr(fused_operators, "backward", noted)
    for is_frozen in (False, True):
        q, k, v, heads, *rest = operator_arguments(False, False, False, True)
        heads.requires_grad_(not is_frozen)
        out, log_norm, _ = attention_op(q, k, v, heads, *rest)
        (out.square().sum() + log_norm.sum()).backward()
        assert (heads.grad is None) == is_frozen and all(x.grad.any() for x in (q, k, v))
    assert asked == [True, False]


@pytest.mark.parametrize("is_transposed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_rotation_keeps_its_promises(is_transposed):
    x = torch.randn(2, 5, 3, 8, device=DEVICE)
    x = (transposed_copy(x) if is_transposed else x).requires_grad_()
    cos, sin = torch.randn(2, 1, 5, 3, 4, device=DEVICE)
    torch.library.opcheck(rotate_op, (x, cos, sin, True))


class Attending(nn.Module):
    """A module around the fused kernels, its dynamics as parameters."""

    def __init__(self, dynamics):
        super().__init__()
        self.omega = nn.Buffer(dynamics.omega)
        self.scalars = nn.Parameter(stack_heads(dynamics))

    def forward(self, q, k, v):
        mu, sigma2, eta2, gamma2, nu, tau = self.scalars.unbind(-1)
        return tuple(fused_attention(q, k, v, Dynamics(mu, self.omega, sigma2, eta2, gamma2, nu, tau)))


def exported(inputs):
    """`Attending` as a graph of any batch and length, traced with transposed inputs."""
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    shapes = ({0: batch, 1: length},) * 3
    arguments = tuple(transposed_copy(x) for x in inputs[:3])
    return torch.export.export(Attending(inputs.dynamics), arguments, dynamic_shapes=shapes)


def test_the_exported_graph_has_no_fixed_sizes():
    inputs = small(2, 7)
    graph = exported(inputs).module()
    for batch, length in ((2, 7), (1, 12), (3, 1)):
        q, k, v = (transposed_copy(x) for x in small(batch, length, seed=1)[:3])
        for a, b in zip(graph(q, k, v), Attending(inputs.dynamics)(q, k, v), strict=True):
            assert torch.equal(a, b)


@pytest.mark.slow  # torch's compiler; the exported graph has the same operators
def test_it_compiles_into_one_graph_with_its_gradient():
    inputs = small(2, 11)
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    grads = []
    for run in (compiled, fused):
        leaves = [x.clone().requires_grad_() for x in inputs[:3]]
        result = run(*leaves, inputs.dynamics)
        grads.append((*result, *torch.autograd.grad(sum(part.sum() for part in result), leaves)))
    for a, b in zip(*grads, strict=True):
        assert relative_error(a, b) <= 1e-6


@needs_gpu
def test_the_packaged_graph_equals_eager_code(tmp_path):
    inputs = small(2, 70, complex_dims=16, dtype=torch.bfloat16)
    path = torch._inductor.aoti_compile_and_package(exported(inputs), package_path=str(tmp_path / "rfa.pt2"))
    graph = torch._inductor.aoti_load_package(path)
    q, k, v = (transposed_copy(x) for x in small(3, 131, complex_dims=16, dtype=torch.bfloat16, seed=1)[:3])
    for a, b in zip(graph(q, k, v), Attending(inputs.dynamics)(q, k, v), strict=True):
        assert torch.equal(a, b)


def test_there_is_no_second_derivative():
    q, k, v, dynamics, _ = small()
    q.requires_grad_()
    (gradient,) = torch.autograd.grad(fused(q, k, v, dynamics).out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()


# The layer of the language model.


def mixed(mixer, x, impl, with_precision):
    """Output, evidence and latent, then the gradients of the input and of every parameter that has one."""
    leaf = x.clone().requires_grad_()
    result = mixer.attention(leaf, with_precision=with_precision, impl=impl)
    loss = result.out.float().square().sum() + result.log_precision.sum()
    gradients = torch.autograd.grad(loss, [leaf, *mixer.parameters()], allow_unused=True)
    return *result, *(gradient for gradient in gradients if gradient is not None)


@pytest.mark.parametrize("with_precision", [False, True])
@pytest.mark.parametrize(
    ("is_lowered", "tolerance"),
    [(False, 1e-4), pytest.param(True, 5e-2, marks=pytest.mark.slow)],
    ids=["float32", "autocast"],
)
def test_the_layer_agrees_with_its_reference(is_lowered, tolerance, with_precision):
    """That it is wired alike; how exact the parts are is the matter of the tests above."""
    config = LanguageModelConfig(vocab_size=16, d_model=32, n_layers=1, n_heads=2, head_dim=8, n_slots=2)
    mixer = RobustMixer(config).to(DEVICE)
    x = torch.randn(2, 21, 32, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=is_lowered):
        expected = mixed(mixer, x, "reference", with_precision)
        actual = mixed(mixer, x, "triton", with_precision)
    for a, b in zip(actual, expected, strict=True):
        # In 16 bits the gradient of a single scalar, a sum that cancels, may be all rounding.
        if b.any() and (b.numel() > 2 or not is_lowered):
            assert relative_error(a, b) <= tolerance
    assert actual[1].any() == with_precision
