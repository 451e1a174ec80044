"""The slots' kernels: against the eager scan in float64, and against themselves, bit for bit.

They run on a GPU where there is one, else in triton's interpreter.
"""

from __future__ import annotations

import math

import pytest
import torch

from rfa.model.recurrence.slots import slot_scan
from rfa.model.recurrence.slots_reference import SlotInputs, SlotLag, SlotOptions, SlotParameters, slot_scan_reference
from tests.kernels import IS_INTERPRETED, assert_variants_agree
from tests.model.test_slots import make, with_own_lags
from tests.rounding import allowed_errors, assert_within_rounding, relative_error

pytest.importorskip("triton")

import triton
import triton.language as tl

from rfa.model.recurrence import triton_forward
from rfa.model.recurrence.triton import slot_scan_triton
from rfa.model.recurrence.triton_token import negative_power

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Batch, tokens, heads, slots, complex dims: one token; tokens that no checkpoint interval divides; one slot; slots and
# dims that are not powers of two. Several heads: the scalar gradient of one head may cancel to a number that eager code
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
    """What rounding explains (`tests.rounding`). Arguments in float64."""
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


def transposed(x):
    """The same values, the last dim not contiguous."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_the_reference(shape):
    """Outputs, final state and every gradient."""
    assert_matches_reference(*on_device(*make(*shape)))


def with_lags(tokens, means, precisions, parameters):
    """The same slots, each token with a lag and so a decay of its own."""
    return tokens, means, precisions, with_own_lags(tokens, parameters)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_of_own_lags_match_the_reference(shape):
    assert_matches_reference(*on_device(*with_lags(*make(*shape))))


def test_own_lags_of_one_are_no_lags():
    """Bit for bit, but the decay's gradient, which is that of each token: their sum is that of all."""
    tokens, means, precisions, parameters = inputs(2, 6, 2, 4, 8)
    apart = parameters._replace(decay=parameters.decay.expand(2, 6, 2, 4).contiguous())
    found, expected = (differentiate(slot_scan_triton, tokens, means, precisions, each) for each in (apart, parameters))
    whole = expected.pop("grad decay")
    torch.testing.assert_close(found.pop("grad decay").sum((0, 1)), whole, rtol=1e-5, atol=1e-5)
    assert_same_bits(found, expected)


@pytest.mark.parametrize(("inner", "innovation"), [(2, "key"), (1, "value")])
def test_own_lags_with_every_rule_of_the_weight(inner, innovation):
    assert_passes_match_reference(*on_device(*with_lags(*make(2, 7, 3, 5, 12))), inner, innovation)


@pytest.mark.parametrize("scale", [pytest.param(0.1, marks=pytest.mark.slow), 30.0])
def test_matches_the_reference_far_away(scale):
    """Tokens 30 times as large, a heavy or a light tail: weights and logits over many orders of magnitude."""
    tokens, *state, parameters = make(1, 12, 4, 4, 8)
    tokens = tokens._replace(q=30 * tokens.q, k=30 * tokens.k, v=30 * tokens.v)
    arguments = tokens, *state, parameters._replace(kappa=scale * parameters.kappa, nu=scale * parameters.nu)
    assert_matches_reference(*on_device(*arguments))


@triton.jit
def power_kernel(p_u, p_exponent, p_power, p_log, N: tl.constexpr):
    o_n = tl.arange(0, N)
    power, log = negative_power(tl.load(p_u + o_n), tl.load(p_exponent + o_n))
    tl.store(p_power + o_n, power)
    tl.store(p_log + o_n, log)


def test_powers_are_as_exact_as_far_out():
    """Units of 2^-24: of log2 f 2.4 and the product's rounding, each times exponent / 2; of the rest's two sums; of the
    GPU's 2^x two units in the last place, and of the last product."""
    scale = torch.linspace(0, 40, 2048, dtype=torch.float64)
    u = torch.exp2(torch.cat([scale, 2**-20 * scale])).float().to(DEVICE)
    exponent = torch.tensor([0.3, 2.0, 2.9, 70.3], device=DEVICE).repeat(1024)
    power, log = torch.empty_like(u), torch.empty_like(u)
    power_kernel[(1,)](u, exponent, power, log, N=len(u))
    e, ln = exponent.double(), u.double().log()
    off = (power.double() * torch.exp(e * ln) - 1).abs() * 2**24
    is_tiny = e * ln > 120 * math.log(2)
    assert bool((is_tiny | (off <= math.log(2) * (e / 2 * (2.4 + 1) + 2 * (0.5 + e / 2)) + 4 + 1)).all())
    assert bool((power[is_tiny] < 2**-119).all())
    # A sum, which rounds, and its factors.
    assert bool(((log.double() - ln).abs() <= 5 * 2**-24 * ln).all())


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
    if dtype is torch.bfloat16 and IS_INTERPRETED:  # it truncates where a GPU rounds
        for name in [f"grad {field}" for field in SlotInputs._fields]:
            torch.testing.assert_close(narrow.pop(name), expected.pop(name), rtol=2**-7, atol=0)
    assert_same_bits(narrow, {name: expected.pop(name) for name in NAMES})

    def allowed():
        leaves = (SlotInputs(*(x.double() for x in tokens)), *(x.double() for x in rest[:2]))
        exact = differentiate(slot_scan_reference, *leaves, SlotParameters(*(x.double() for x in rest[2])))

        def errors():
            found = differentiate(slot_scan_reference, SlotInputs(*(x.float() for x in tokens)), *rest)
            return {name: relative_error(found[name].to(narrow[name].dtype), exact[name]) for name in expected}

        return allowed_errors(errors, dtype)

    assert_variants_agree(narrow, expected, allowed)


def test_the_checkpoint_interval_changes_no_bits():
    """But those of the sums over the segments."""
    tokens, means, precisions, parameters = inputs(1, 7, 1, 4, 8)
    expected = None
    for interval in (3, 1, 7, 20):

        def scan(tokens, means, precisions, parameters, interval=interval):
            out, log_norm, precision, m, p, *_ = torch.ops.rfa.slot_scan(
                *tokens, means, precisions, *parameters, None, 1, False, interval
            )
            return (out, log_norm, precision), m, p

        found = differentiate(scan, tokens, means, precisions, parameters)
        expected = expected or found
        for name, tensor in expected.items():
            if name.removeprefix("grad ") in SlotParameters._fields:
                torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(found[name], tensor), (name, interval)


def assert_passes_match_reference(tokens, means, precisions, parameters, inner, innovation="key"):
    """K passes, held to what rounding explains (`tests.rounding`). Arguments in float64."""
    rule = SlotOptions(inner, innovation)
    exact = slot_scan_reference(tokens, means, precisions, parameters, rule)
    single = (
        SlotInputs(*(x.float() for x in tokens)),
        means.float(),
        precisions.float(),
        SlotParameters(*(x.float() for x in parameters)),
    )

    def errors(found):
        pairs = zip(NAMES, (*found[0], *found[1:]), (*exact[0], *exact[1:]), strict=True)
        return {name: relative_error(x, expected) for name, x, expected in pairs}

    fused = errors(slot_scan(*single, inner=inner, innovation=innovation, impl="triton"))
    assert_within_rounding(fused, lambda: errors(slot_scan_reference(*single, rule)), torch.float32)


RULES = [(2, "key"), (3, "key"), (1, "value"), (3, "value")]


@pytest.mark.parametrize(("inner", "innovation"), RULES)
@pytest.mark.parametrize("shape", [*SHAPES[:2], *(pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES[2:])])
def test_every_rule_of_the_weight_matches_the_reference(shape, inner, innovation):
    assert_passes_match_reference(*on_device(*make(*shape)), inner, innovation)


@pytest.mark.parametrize("inner", [2, 3])
def test_more_passes_match_the_reference_far_away(inner):
    """Keys 30 times as large: it is there that a pass more moves the weight most."""
    tokens, *rest = make(1, 8, 4, 4, 8)
    assert_passes_match_reference(*on_device(tokens._replace(k=30 * tokens.k), *rest), inner)


def assert_rows_are_read_alone(tokens, means, precisions, parameters, lengths):
    """Every row of one launch is the scan of its own tokens, bit for bit; what is behind them is not looked at.

    But a row without tokens computes its first, whose numbers are dropped: NaN is one that the interpreter warns of.
    """
    is_behind = torch.arange(tokens.k.shape[1], device=DEVICE) >= lengths.clamp(min=1)[:, None]
    poisoned = SlotInputs(*(x.masked_fill(is_behind[..., None, None], torch.nan) for x in tokens))
    readout, m, p = slot_scan(poisoned, means, precisions, parameters, lengths=lengths, impl="triton")
    for b, length in enumerate(lengths.tolist()):
        row = slice(b, b + 1)
        expected = means[row], precisions[row]
        if length:
            own = SlotInputs(*(x[row, :length] for x in tokens))
            alone, *expected = slot_scan(own, *expected, parameters, impl="triton")
            for actual, part in zip(readout, alone, strict=True):
                assert torch.equal(actual[row, :length], part), length
        assert torch.equal(m[row], expected[0]) and torch.equal(p[row], expected[1]), length
        assert not any(part[row, length:].any() for part in readout), length


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(6, 7, 1, 1, 8), (6, 7, 3, 5, 12)], ids=str)
def test_rows_may_have_different_lengths(shape, dtype):
    lengths = torch.tensor([4, 7, 1, 0, 2, 6], dtype=dtype, device=DEVICE)
    assert_rows_are_read_alone(*inputs(*shape), lengths)
    assert_rows_are_read_alone(*inputs(*shape, dtype=torch.bfloat16), lengths)


def test_a_length_that_is_none_is_seen_after_it():
    """Its precisions are NaN: a server looks at them before it keeps a state. Its neighbours are as they were."""
    tokens, means, precisions, parameters = inputs(4, 3, 2, 5, 12)
    _, m, p = slot_scan_triton(
        tokens, means, precisions, parameters, SlotOptions(lengths=torch.tensor([3, -1, 4, 2**33], device=DEVICE))
    )
    assert p[1:].isnan().all() and p[0].isfinite().all() and m.isfinite().all()


def assert_shares_change_no_bits(of_a_warp, reals, *shape):
    """Of the slots to programs, and of the reals of values: a sum has one order, whatever a thread holds."""
    arguments = inputs(*shape)
    with pytest.MonkeyPatch.context() as patch:
        expected = slot_scan_triton(*arguments)
        patch.setattr(triton_forward, "OF_A_WARP", of_a_warp)
        patch.setattr(triton_forward, "REALS_OF_A_WARP", reals)
        found = slot_scan_triton(*arguments)
    for actual, target in zip((*found[0], *found[1:]), (*expected[0], *expected[1:]), strict=True):
        assert torch.equal(actual, target)


def test_how_slots_are_shared_out_changes_no_bits():
    assert_shares_change_no_bits(64, 8, 2, 4, 2, 5, 12)


def test_strides_do_not_matter():
    tokens, means, precisions, parameters = inputs(2, 3, 2, 4, 8)
    strided = SlotInputs(*(transposed(x) for x in tokens)), transposed(means), transposed(precisions), parameters
    plain = differentiate(slot_scan_triton, tokens, means, precisions, parameters)
    assert_same_bits(differentiate(slot_scan_triton, *strided), plain)


@pytest.mark.parametrize("layout", [lambda x: x, transposed], ids=["contiguous", "transposed"])
def test_operators_are_registered_rightly(layout):
    tokens, means, precisions, parameters = inputs(1, 3, 1, 2, 2)
    leaves = [layout(x).requires_grad_() for x in (*tokens, means, precisions)] + [
        x.requires_grad_() for x in parameters
    ]
    torch.library.opcheck(torch.ops.rfa.slot_scan, (*leaves, None, 1, False, 2))

    apart = [*leaves[:7], layout(leaves[7].detach().expand(1, 3, 1, 2)).requires_grad_(), *leaves[8:]]
    torch.library.opcheck(torch.ops.rfa.slot_scan, (*apart, None, 1, False, 2))

    detached = [x.detach() for x in leaves]
    torch.library.opcheck(torch.ops.rfa.slot_scan, (*detached, torch.tensor([2], device=DEVICE), 2, True, 0))
    out, log_norm, precision, m, p, *kept = torch.ops.rfa.slot_scan(*detached, None, 1, False, 2)
    upstream = [layout(torch.randn_like(x)) for x in (out, log_norm, precision, m, p)]
    torch.library.opcheck(torch.ops.rfa.slot_scan_backward, (*upstream, *detached[:5], *detached[7:], *kept, 2))


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


def test_auto_takes_the_kernel_on_a_gpu_only():
    """Tokens of 16 bits: what is not the kernel here is the eager loop."""
    arguments = inputs(1, 6, 2, 4, 8, dtype=torch.bfloat16)
    by_impl = {impl: slot_scan(*arguments, impl=impl)[0].out for impl in ("auto", "reference", "triton")}
    assert not torch.equal(by_impl["reference"], by_impl["triton"])
    assert torch.equal(by_impl["auto"], by_impl["triton" if DEVICE == "cuda" else "reference"])


def test_refusals_name_the_reason(monkeypatch):
    tokens, means, precisions, parameters = inputs(1, 2, 1, 2, 2)

    def refuses(match, *arguments, **options):
        with pytest.raises(ValueError, match=match):
            slot_scan(*arguments, impl="triton", **options)

    refuses(
        "impl='triton' cannot be used here: it supports inner=1 to 3, got inner=4",
        tokens,
        means,
        precisions,
        parameters,
        inner=4,
    )
    lag = SlotLag(parameters.decay, 1 - parameters.decay)
    refuses("it requires lag 0 and no window", tokens, means, precisions, parameters, lag=lag)
    refuses("it requires float32 states, got torch.float64", tokens, means.double(), precisions, parameters)
    refuses(
        "it supports float32, bfloat16 and float16, got .*float64",
        tokens._replace(process=tokens.process.double()), means, precisions, parameters,
    )  # fmt: skip
    learned = parameters._replace(nu=parameters.nu.clone().requires_grad_())
    lengths = torch.tensor([1], device=DEVICE)
    refuses("it does not support gradients if lengths are set", tokens, means, precisions, learned, lengths=lengths)
    refuses("it supports gradients only for inner=1, got inner=2", tokens, means, precisions, learned, inner=2)
    refuses(
        "supports gradients only for innovation 'key', got 'value'",
        tokens,
        means,
        precisions,
        learned,
        innovation="value",
    )
    for options in ({"lengths": lengths}, {"inner": 2}, {"innovation": "value"}):
        with pytest.raises(ValueError, match=r"slot_scan_triton cannot be used here: .* gradients"):
            slot_scan_triton(tokens, means, precisions, learned, SlotOptions(**options))
    refuses("up to 32 slots, got 33", *inputs(1, 2, 1, 33, 2))
    refuses("up to 128 real dimensions, got 130", *inputs(1, 2, 1, 2, 65))
    monkeypatch.setattr("rfa.model.recurrence.triton.IS_INTERPRETED", False)
    on_cpu = [type(x)(*(y.cpu() for y in x)) if isinstance(x, tuple) else x.cpu() for x in inputs(1, 2, 1, 2, 2)]
    refuses("it requires tensors on a CUDA device, got cpu", *on_cpu)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuses("triton is not installed", tokens, means, precisions, parameters)
