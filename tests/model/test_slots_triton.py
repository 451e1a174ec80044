"""The slots' kernels: against the eager scan in float64, and against themselves, bit for bit.

They run on a GPU where there is one, else in triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch

from rfa.bench.rounding import assert_within_rounding, relative_error
from rfa.model.config import LanguageModelConfig
from rfa.model.language import LanguageModel
from rfa.model.recurrence.slots import slot_scan
from rfa.model.recurrence.slots_reference import SlotInputs, SlotLag, SlotParameters, slot_scan_reference
from tests.model.test_slots import make

pytest.importorskip("triton")

from rfa.model.recurrence import triton_backward, triton_forward
from rfa.model.recurrence.triton import slot_scan_triton, slot_step_pooled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Batch, tokens, heads, slots, complex dims: one token; tokens that no checkpoint interval divides; one slot; slots and
# dims that are no powers of two. Several heads: the scalar gradient of one head may cancel to a number that eager code
# meets by luck.
SHAPES = [(2, 1, 3, 4, 8), (2, 7, 3, 5, 12), (1, 17, 4, 16, 32), (1, 9, 3, 1, 8), (2, 5, 3, 3, 1)]
NAMES = ["out", "log_norm", "precision", "means", "precisions"]
LEAVES = [*SlotInputs._fields, "initial means", "initial precisions", *SlotParameters._fields]


def on_device(tokens, means, precisions, parameters):
    return (
        SlotInputs(*(x.to(DEVICE) for x in tokens)),
        means.to(DEVICE),
        precisions.to(DEVICE),
        SlotParameters(*(x.to(DEVICE) for x in parameters)),
    )


def inputs(*shape, dtype=torch.float32):
    """Tokens in `dtype`, all else in float32."""
    tokens, *rest = on_device(*make(*shape, dtype=torch.float32))
    return SlotInputs(*(x.to(dtype) for x in tokens)), *rest


def differentiate(scan, tokens, means, precisions, parameters):
    """All outputs, and the gradient of a random combination of all of them with respect to everything."""
    leaves = [leaf.detach().requires_grad_() for leaf in (*tokens, means, precisions, *parameters)]
    readout, m, p = scan(SlotInputs(*leaves[:5]), leaves[5], leaves[6], SlotParameters(*leaves[7:]))
    outputs = [*readout, m, p]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for x in outputs]
    loss = sum((x * weight).sum() for x, weight in zip(outputs, weights, strict=True))
    gradients = torch.autograd.grad(loss, leaves)
    return dict(zip([*NAMES, *(f"grad {name}" for name in LEAVES)], [*outputs, *gradients], strict=True))


def assert_same_bits(actual, expected):
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


def assert_matches_reference(tokens, means, precisions, parameters):
    """What rounding explains (`rfa.bench.rounding`). Arguments in float64."""
    single = (
        SlotInputs(*(x.float() for x in tokens)),
        means.float(),
        precisions.float(),
        SlotParameters(*(x.float() for x in parameters)),
    )
    exact = differentiate(slot_scan_reference, tokens, means, precisions, parameters)
    fused = differentiate(slot_scan_triton, *single)
    for name, expected in exact.items():
        assert fused[name].shape == expected.shape and fused[name].dtype == torch.float32, name
        if not expected.any():  # one slot: the softmax over slots has no gradient
            assert not fused[name].any(), name

    def errors(found):
        return {name: relative_error(found[name], expected) for name, expected in exact.items() if expected.any()}

    assert_within_rounding(errors(fused), lambda: errors(differentiate(slot_scan_reference, *single)), torch.float32)


def segment(tokens, start, stop):
    return SlotInputs(*(x[:, start:stop] for x in tokens))


def transposed(x):
    """The same values, the last dim not contiguous."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_the_reference(shape):
    """Outputs, final state and every gradient."""
    assert_matches_reference(*on_device(*make(*shape)))


@pytest.mark.parametrize("scale", [pytest.param(0.1, marks=pytest.mark.slow), 30.0])
def test_matches_the_reference_far_away(scale):
    """Tokens 30 times as large, a heavy or a light tail: weights and logits over many orders of magnitude."""
    tokens, *state, parameters = make(1, 12, 4, 4, 8)
    tokens = tokens._replace(q=30 * tokens.q, k=30 * tokens.k, v=30 * tokens.v)
    arguments = tokens, *state, parameters._replace(kappa=scale * parameters.kappa, nu=scale * parameters.nu)
    assert_matches_reference(*on_device(*arguments))


@pytest.mark.usefixtures("functions_off")
def test_any_processor():
    assert_matches_reference(*on_device(*make(1, 5, 3, 3, 4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tokens_of_16_bits_are_computed_in_float32(dtype):
    tokens, *rest = inputs(2, 5, 1, 4, 8, dtype=dtype)
    widened = differentiate(slot_scan_triton, SlotInputs(*(x.float() for x in tokens)), *rest)
    narrow = differentiate(slot_scan_triton, tokens, *rest)
    for name, tensor in narrow.items():
        is_token = name.removeprefix("grad ") in SlotInputs._fields
        assert tensor.dtype == (dtype if is_token else torch.float32), name
    expected = {name: x.to(narrow[name].dtype) for name, x in widened.items()}
    if dtype is torch.bfloat16:  # the interpreter truncates where a GPU rounds
        for name in [f"grad {field}" for field in SlotInputs._fields]:
            torch.testing.assert_close(narrow.pop(name), expected.pop(name), rtol=2**-7, atol=0)
    assert_same_bits(narrow, expected)


def test_the_checkpoint_interval_changes_no_bits():
    """But those of the sums over the segments."""
    tokens, means, precisions, parameters = inputs(1, 7, 1, 4, 8)
    expected = None
    for interval in (3, 1, 7, 20):

        def scan(tokens, means, precisions, parameters, interval=interval):
            out, log_norm, precision, m, p, *_ = torch.ops.rfa.slot_scan(
                *tokens, means, precisions, *parameters, interval
            )
            return (out, log_norm, precision), m, p

        found = differentiate(scan, tokens, means, precisions, parameters)
        expected = expected or found
        for name, tensor in expected.items():
            if name.removeprefix("grad ") in SlotParameters._fields:
                torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(found[name], tensor), (name, interval)


def test_segments_continue_the_scan():
    tokens, means, precisions, parameters = inputs(2, 12, 1, 4, 8)
    whole, m, p = slot_scan(tokens, means, precisions, parameters, impl="triton")
    parts, state = [], (means, precisions)
    for start, stop in ((0, 1), (1, 5), (5, 12)):
        readout, *state = slot_scan(segment(tokens, start, stop), *state, parameters, impl="triton")
        parts.append(readout)
    for i, expected in enumerate(whole):
        assert torch.equal(torch.cat([part[i] for part in parts], 1), expected)
    assert torch.equal(state[0], m) and torch.equal(state[1], p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 2, 5, 12), (1, 3, 1, 16, 32)], ids=str)
def test_steps_are_the_scan(shape, dtype):
    """A batch at once equals the stream token by token, whatever rows of the pool its streams lie in."""
    tokens, means, precisions, parameters = inputs(*shape, dtype=dtype)
    whole, m, p = slot_scan_triton(tokens, means, precisions, parameters)
    rows = torch.tensor([4, 1][: shape[0]], device=DEVICE)
    pool_m, pool_p = means.new_zeros(6, *means.shape[1:]), precisions.new_ones(6, *precisions.shape[1:])
    pool_m[rows], pool_p[rows] = means, precisions
    for i in range(shape[1]):
        readout = slot_step_pooled(SlotInputs(*(x[:, i] for x in tokens)), pool_m, pool_p, rows, parameters)
        for actual, expected in zip(readout, whole, strict=True):
            assert torch.equal(actual, expected[:, i])
    assert torch.equal(pool_m[rows], m) and torch.equal(pool_p[rows], p)


def pool(rows, shape=(6, 2, 5, 12)):
    """A pool of states, and one token for every one of `rows`."""
    n_rows, heads, slots, complex_dims = shape
    tokens, means, precisions, parameters = inputs(n_rows, 1, heads, slots, complex_dims)
    token = SlotInputs(*(x[: len(rows), 0] for x in tokens))
    return token, means, precisions, torch.tensor(rows, device=DEVICE), parameters


def test_a_step_writes_its_rows_only():
    token, means, precisions, rows, parameters = pool([3, -1, 0, 6])
    after_m, after_p = means.clone(), precisions.clone()
    readout = slot_step_pooled(token, after_m, after_p, rows, parameters)
    for row in range(6):
        is_same = torch.equal(after_m[row], means[row]), torch.equal(after_p[row], precisions[row])
        assert is_same == ((False, False) if row in (3, 0) else (True, True))
    for part in readout:
        assert not part[1].any()  # padding
        assert part[3].isnan().all()  # beyond the pool
        assert part[[0, 2]].isfinite().all() and part[[0, 2]].all()


def test_padding_is_not_read():
    token, means, precisions, rows, parameters = pool([-1, 2])
    poisoned = SlotInputs(*(torch.where(rows[:, None, None] < 0, float("nan"), x) for x in token))
    means[:2], precisions[:2] = float("nan"), float("nan")
    readout = slot_step_pooled(poisoned, means, precisions, rows, parameters)
    for part in readout:
        assert not part[0].any() and part[1].isfinite().all()


def test_neighbours_do_not_matter():
    tokens, means, precisions, parameters = inputs(4, 4, 1, 4, 8)
    readout, m, p = slot_scan_triton(tokens, means, precisions, parameters)
    whole = dict(zip(NAMES, (*readout, m, p), strict=True))
    for rows in ([2], [3, 0]):
        part = SlotInputs(*(x[rows] for x in tokens))
        readout, m, p = slot_scan_triton(part, means[rows], precisions[rows], parameters)
        for name, actual in zip(NAMES, (*readout, m, p), strict=True):
            assert torch.equal(actual, whole[name][rows]), name

    token, pool_m, pool_p, rows, parameters = pool([3, -1, 0, 5])
    together = pool_m.clone(), pool_p.clone()
    readout = slot_step_pooled(token, *together, rows, parameters)
    for i in (0, 2, 3):
        alone = pool_m.clone(), pool_p.clone()
        single = slot_step_pooled(SlotInputs(*(x[i : i + 1] for x in token)), *alone, rows[i : i + 1], parameters)
        for actual, expected in zip(single, readout, strict=True):
            assert torch.equal(actual[0], expected[i])
        assert torch.equal(alone[0][rows[i]], together[0][rows[i]])


def test_runs_are_identical():
    arguments = inputs(1, 6, 2, 5, 12)
    assert_same_bits(differentiate(slot_scan_triton, *arguments), differentiate(slot_scan_triton, *arguments))


def test_strides_do_not_matter():
    tokens, means, precisions, parameters = inputs(2, 3, 2, 4, 8)
    strided = SlotInputs(*(transposed(x) for x in tokens)), transposed(means), transposed(precisions), parameters
    plain = differentiate(slot_scan_triton, tokens, means, precisions, parameters)
    assert_same_bits(differentiate(slot_scan_triton, *strided), plain)


def test_a_step_takes_a_layer_of_a_larger_pool():
    token, means, precisions, rows, parameters = pool([1, 4])
    layers_m, layers_p = torch.stack([means, means + 1], 1), torch.stack([precisions, precisions + 1], 1)
    strided = SlotInputs(*(transposed(x) for x in token))
    actual = slot_step_pooled(strided, layers_m[:, 0], layers_p[:, 0], rows, parameters)
    expected = slot_step_pooled(token, after_m := means.clone(), after_p := precisions.clone(), rows, parameters)
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a, e)
    assert torch.equal(layers_m[:, 0], after_m) and torch.equal(layers_p[:, 0], after_p)
    assert torch.equal(layers_m[:, 1], means + 1) and torch.equal(layers_p[:, 1], precisions + 1)


@pytest.mark.parametrize("layout", [lambda x: x, transposed], ids=["contiguous", "transposed"])
def test_operators_are_registered_rightly(layout):
    tokens, means, precisions, parameters = inputs(1, 3, 1, 2, 2)
    leaves = [layout(x).requires_grad_() for x in (*tokens, means, precisions)] + [
        x.requires_grad_() for x in parameters
    ]
    torch.library.opcheck(torch.ops.rfa.slot_scan, (*leaves, 2))

    detached = [x.detach() for x in leaves]
    out, log_norm, precision, m, p, *kept = torch.ops.rfa.slot_scan(*detached, 2)
    upstream = [layout(torch.randn_like(x)) for x in (out, log_norm, precision, m, p)]
    torch.library.opcheck(torch.ops.rfa.slot_scan_backward, (*upstream, *detached[:5], *detached[7:], *kept, 2))

    token, pool_m, pool_p, rows, parameters = pool([1, -1], (3, 2, 2, 2))
    torch.library.opcheck(
        torch.ops.rfa.slot_step_pooled, (*(layout(x) for x in token), pool_m, pool_p, rows, *parameters)
    )


def test_exports_with_any_number_of_tokens():
    class Scan(torch.nn.Module):
        def __init__(self, parameters):
            super().__init__()
            self.parameters_of_slots = parameters

        def forward(self, *leaves):
            readout, m, p = slot_scan(SlotInputs(*leaves[:5]), *leaves[5:], self.parameters_of_slots, impl="triton")
            return *readout, m, p

    tokens, *state, parameters = inputs(2, 3, 1, 4, 2)
    n_tokens = torch.export.Dim("n_tokens", min=2, max=64)
    scan = Scan(parameters)
    shapes = ({1: n_tokens},) * 5 + ({}, {})
    exported = torch.export.export(scan, (*tokens, *state), dynamic_shapes=(shapes,)).module()
    tokens, *state, _ = inputs(2, 5, 1, 4, 2)
    for actual, expected in zip(exported(*tokens, *state), scan(*tokens, *state), strict=True):
        assert torch.equal(actual, expected)


def test_no_checkpoints_without_gradients():
    tokens, means, precisions, parameters = inputs(1, 4, 1, 2, 2)
    readout, _, _ = slot_scan_triton(tokens, means, precisions, parameters)
    assert not readout.out.requires_grad
    assert triton_forward.scan_outputs(tokens.k, means, precisions, 0)[5].numel() == 0
    assert [triton_backward.checkpoint_interval(n) for n in (1, 4, 5, 512, 65536)] == [1, 2, 3, 23, 256]


@pytest.mark.parametrize("output", range(5), ids=NAMES)
def test_every_output_carries_gradients_alone(output):
    arguments = inputs(1, 4, 2, 3, 4)

    def one(scan):
        leaves = [leaf.detach().requires_grad_() for leaf in (*arguments[0], *arguments[1:3])]
        readout, m, p = scan(SlotInputs(*leaves[:5]), *leaves[5:], arguments[3])
        return torch.autograd.grad((*readout, m, p)[output].square().sum(), leaves, materialize_grads=True)

    for actual, expected in zip(one(slot_scan_triton), one(slot_scan_reference), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_model_prefills_with_it():
    config = LanguageModelConfig(vocab_size=32, d_model=16, n_layers=2, n_heads=2, head_dim=4, n_slots=3)
    network = LanguageModel(config).to(DEVICE)
    tokens = torch.arange(10, device=DEVICE).reshape(2, 5)
    with torch.no_grad():
        eager, eager_state = network.prefill(tokens, network.init_state(2), impl="reference")
        fused, fused_state = network.prefill(tokens, network.init_state(2), impl="triton")
    for actual, expected in zip((*fused, *fused_state), (*eager, *eager_state), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_auto_takes_the_kernel_on_a_gpu_only():
    """Tokens of 16 bits: what is not the kernel here is the eager loop."""
    arguments = inputs(1, 6, 2, 4, 8, dtype=torch.bfloat16)
    by_impl = {impl: slot_scan(*arguments, impl=impl)[0].out for impl in ("auto", "reference", "triton")}
    assert not torch.equal(by_impl["reference"], by_impl["triton"])
    assert torch.equal(by_impl["auto"], by_impl["triton" if DEVICE == "cuda" else "reference"])


def test_without_the_robust_weight_it_is_the_reference():
    *arguments, parameters = inputs(1, 6, 2, 3, 2)
    plain = parameters._replace(weight_exponent=torch.zeros_like(parameters.weight_exponent))
    fused, *fused_state = slot_scan(*arguments, plain, impl="triton")
    eager, *eager_state = slot_scan(*arguments, plain, impl="reference")
    for actual, expected in zip((*fused, *fused_state), (*eager, *eager_state), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_refusals_name_the_reason(monkeypatch):
    tokens, means, precisions, parameters = inputs(1, 2, 1, 2, 2)

    def refuses(match, *arguments, **options):
        with pytest.raises(ValueError, match=match):
            slot_scan(*arguments, impl="triton", **options)

    refuses(
        "impl='triton' cannot run this: it runs inner=1, got inner=2", tokens, means, precisions, parameters, inner=2
    )
    lag = SlotLag(parameters.decay, 1 - parameters.decay)
    refuses("by the innovation of the key, got 'value'", tokens, means, precisions, parameters, innovation="value")
    refuses("at lag 0, not behind a window", tokens, means, precisions, parameters, lag=lag)
    refuses("it keeps its state in float32, got torch.float64", tokens, means.double(), precisions, parameters)
    refuses(
        "it takes float32, bfloat16 and float16, got .*float64",
        tokens._replace(process=tokens.process.double()), means, precisions, parameters,
    )  # fmt: skip
    refuses("up to 32 slots, got 33", *inputs(1, 2, 1, 33, 2))
    refuses("up to 128 reals, got 130", *inputs(1, 2, 1, 2, 65))
    monkeypatch.setattr("rfa.model.recurrence.triton.IS_INTERPRETED", False)
    on_cpu = [type(x)(*(y.cpu() for y in x)) if isinstance(x, tuple) else x.cpu() for x in inputs(1, 2, 1, 2, 2)]
    refuses("it runs on cuda, got cpu", *on_cpu)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuses("triton is not installed", tokens, means, precisions, parameters)


def test_refusals_of_a_step():
    token, means, precisions, rows, parameters = pool([1, 2])
    with pytest.raises(ValueError, match=r"rows must have shape \[2\], got \[1\]"):
        slot_step_pooled(token, means, precisions, rows[:1], parameters)
    with pytest.raises(ValueError, match=r"rows must be int64, got torch.int32"):
        slot_step_pooled(token, means, precisions, rows.int(), parameters)
    with pytest.raises(ValueError, match=r"pool_means must have shape \[6, 2, 5, 48\], got \[6, 2, 5, 47\]"):
        slot_step_pooled(token, means[..., 1:], precisions, rows, parameters)
    with pytest.raises(ValueError, match="must be contiguous"):
        slot_step_pooled(token, transposed(means), precisions, rows, parameters)
    with pytest.raises(ValueError, match="slot_step_pooled cannot run this: it keeps its state in float32"):
        slot_step_pooled(token, means.double(), precisions, rows, parameters)
