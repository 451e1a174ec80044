"""The deep filter: both modes, training path = stepped path, states that carry over, invariances."""

import pytest
import torch

from rfa.model.deep_blocks import DeepFilterConfig
from rfa.model.deep_filter import DeepFilter, mean_per_component


def build(seed: int = 0, **changes) -> DeepFilter:
    torch.manual_seed(seed)
    model = DeepFilter(DeepFilterConfig.from_dict({"observation_size": 2, "n_modes": 2, "time_unit": 0.1, **changes}))
    model.readout[1].weight.data.normal_(std=0.3)
    return model.eval()


def make_data(batch: int = 3, n: int = 14, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(batch, n, 2, generator=generator).cumsum(1)
    present = (torch.rand(batch, n, 2, generator=generator) > 0.2).float()
    times = 50 + (0.2 * torch.rand(batch, n, generator=generator, dtype=torch.float64)).cumsum(1)
    return y, present, times


@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_training_path_gives_the_numbers_of_the_steps(mode):
    model, (y, present, times) = build(), make_data()
    scale = torch.linspace(0.5, 2.0, 14).expand(3, -1)
    model.mode = mode
    with torch.no_grad():
        output, _ = model(y, present, times, scale)
        lags = torch.diff(times, dim=1, prepend=times[:, :1]).float()
        tokens, _ = model.nominal_scan(y, present, lags, scale)
        expected = model.head_scan(y, present, lags, scale, model.context(tokens, times, mode))
    assert float((output.log_likelihood - expected).abs().max()) < 1e-4
    assert float(output.log_likelihood.std()) > 0.1


@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_a_stream_does_not_depend_on_its_batch_or_on_missing_values(mode):
    model, (y, present, times) = build(), make_data()
    model.mode = mode
    with torch.no_grad():
        together, _ = model(y * present, present, times)
        alone, _ = model((y + 9 * (1 - present))[1:2], present[1:2], times[1:2])
    assert float((alone.mean[0] - together.mean[1]).abs().max()) < 1e-5


def test_segments_continue_and_attention_hands_over_to_the_recurrence():
    model, (y, present, times) = build(), make_data()
    with torch.no_grad():
        whole, _ = model(y, present, times)
        _, state = model(y[:, :6], present[:, :6], times[:, :6])
        rest, _ = model(y[:, 6:], present[:, 6:], times[:, 6:], state=state)
        assert float((rest.mean - whole.mean[:, 6:]).abs().max()) < 1e-5
        model.mode = "attention"
        _, state = model(y[:, :6], present[:, :6], times[:, :6])
        model.mode = "recurrent"
        handed, _ = model(y[:, 6:], present[:, 6:], times[:, 6:], state=state)
    assert bool(torch.isfinite(handed.mean).all())
    assert float((handed.mean - whole.mean[:, 6:]).abs().max()) < 1.0


def test_the_future_does_not_change_the_past():
    model, (y, present, times) = build(), make_data()
    other = y.clone()
    other[:, 9:] += 100
    for mode in ("attention", "recurrent"):
        model.mode = mode
        with torch.no_grad():
            a, _ = model(y, present, times)
            b, _ = model(other, present, times)
        assert torch.equal(a.mean[:, :9], b.mean[:, :9])
        assert not torch.allclose(a.mean[:, 9:], b.mean[:, 9:])


def test_dynamics_are_stable_and_covariances_positive():
    model, (y, present, times) = build(), make_data()
    with torch.no_grad():
        assert float(model.drift().rate_re.max()) < 0
        output, state = model(y, present, times)
        mean, covariance = model.forecast(state, torch.tensor([0.0, 0.5, 100.0]))
    assert float(torch.linalg.eigvalsh(output.state_covariance).min()) > 0
    assert float(torch.linalg.eigvalsh(covariance).min()) > 0
    assert mean.shape == (3, 3, 2)


def test_every_parameter_learns():
    model, (y, present, times) = build(), make_data()
    lags = torch.diff(times, dim=1, prepend=times[:, :1]).float()
    ones = torch.ones_like(lags)
    tokens, nominal = model.nominal_scan(y, present, lags, ones)
    loss = -mean_per_component(nominal, present)
    for mode in ("attention", "recurrent"):
        loss = loss - mean_per_component(
            model.head_scan(y, present, lags, ones, model.context(tokens, times, mode)), present
        )
    loss.backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not bool((p.grad != 0).any())]
    assert silent == []


def test_unknown_keys_and_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="colour"):
        DeepFilterConfig.from_dict({"observation_size": 2, "colour": 1})
    with pytest.raises(ValueError, match="n_modes"):
        DeepFilterConfig(observation_size=2, n_modes=0)
