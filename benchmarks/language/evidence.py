"""What a language model has at a step beside its logits, at every place of a window: evidence, residuals, states, and
what the variance of the last layer's latent makes of the prediction.

Signals, of every head of every layer unless said otherwise:

    place            log(1 + tokens before); no evidence, a clock
    precision        mean log precision of the last layer's heads; one number
    evidence         log precision of the read-out
    log_norm         log Σ of the weights of the read-out: how well the query meets what is remembered (its residuals)
    state            recurrent: log mean over the slots of 1/p, the trace of the state's covariance
    innovation       recurrent: log mean over the slots of r² / (1/p⁻ + R), how much the token surprises the state
    gain             recurrent: log mean over the slots of the gain
    latent_variance  log (1/p̂ + gamma²) of the last layer's heads
    logit_variance   log variance of the log probability of the most likely token, to first order in the latent

And of latent samples through the rest of the last layer, the paths, each of which costs a good part of a step:

    disagreement     log of the mutual information (entropy of the mixture minus mean entropy), and log standard
                     deviation of the log probability of the most likely token
    mixture          log probability of the mixture's most likely token, entropy of the mixture
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from rfa.model.attention.reference import relative_attention
from rfa.model.language import LanguageModel
from rfa.model.layers import Block, RobustMixer
from rfa.model.mixing import MixerOutput
from rfa.model.recurrence.slots_reference import SlotInputs, slot_step
from rfa.runtime.text.config import Mode

Following = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Evidence:
    """Of a window of N tokens.

    Attributes:
        logits: of the mean path, `[N, V]`.
        mixture: log probabilities of the mean over the sampled paths, `[N, V]`.
        signals: by name, `[N]` or `[N, k]`.
    """

    logits: Tensor
    mixture: Tensor
    signals: dict[str, Tensor]


def evidence_of(
    model: LanguageModel, tokens: Tensor, mode: Mode, *, paths: int, generator: torch.Generator
) -> Evidence:
    """What a mode has at every place of `tokens` `[N]`, from nothing, with `paths` latent samples at each."""
    x = model._embed(tokens[None])
    layers: list[dict[str, Tensor]] = []
    with torch.no_grad():
        for block in (cast(Block, entry) for entry in model.blocks):
            before, normed, mixer = x, block.mixer_norm(x, mode), cast(RobustMixer, block.mixer)
            mixed, found = _mixed(mixer, normed, mode)
            layers.append(found)
            x = block.finish(before, mixed.out, mode)
        logits = model._logits(x, mode)[0]

    def following(latent: Tensor) -> Tensor:
        """Logits `[N, V]` of latents `[1, N, H, 2D]` of the last layer."""
        out = mixer.project(latent, normed, mode)
        return model._logits(block.finish(before, out, mode), mode)[0]

    variance = 1 / mixed.log_precision.exp() + mixer.dynamics().gamma2.detach()  # [1, N, H]
    mixture, over_paths = _paths(following, mixed.latent, variance, logits, paths, generator)
    signals = {name: torch.cat([layer[name] for layer in layers], -1) for name in layers[0]}
    signals |= {
        "place": torch.log1p(torch.arange(len(tokens), dtype=torch.float64)),
        "precision": mixed.log_precision[0].mean(-1),
        "latent_variance": variance[0].log(),
        "logit_variance": _logit_variance(following, mixed.latent, variance),
        "disagreement": over_paths[:, :2],
        "mixture": over_paths[:, 2:],
    }
    return Evidence(logits, mixture, signals)


def _mixed(mixer: RobustMixer, x: Tensor, mode: Mode) -> tuple[MixerOutput, dict[str, Tensor]]:
    """The mixer of one layer over `[1, N, d]`, and its signals `[N, H]`."""
    dynamics, config = mixer.dynamics(), mixer.config
    phase = mixer.phase(torch.arange(x.shape[1]))
    q, k, v = mixer.rotated(x, phase, mode)
    found: dict[str, Tensor] = {}
    if mode == "attention":
        result = relative_attention(q, k, v, dynamics, kernel=config.kernel, with_precision=True, prior=config.prior)
        out, log_norm, precision = result.out, result.log_norm, result.precision
    else:
        tokens = mixer.slot_inputs(x, (q, k, v), dynamics)
        out, log_norm, precision, found = _scanned(mixer, tokens)
    mixed = mixer.finish(out, x, phase, precision, None, dynamics.gamma2, mode)
    return mixed, {"evidence": mixed.log_precision[0], "log_norm": log_norm[0], **found}


def _scanned(mixer: RobustMixer, tokens: SlotInputs) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """The slots token by token: read-out `[1, N, H, …]`, and what happened to the state `[N, H]`."""
    parameters, config = mixer.slot_parameters(mixer.dynamics()), mixer.config
    means, precisions = (part[None] for part in mixer.initial_state())
    readouts, states, innovations, gains = [], [], [], []
    for i in range(tokens.k.shape[1]):
        token = SlotInputs(*(part[:, i] for part in tokens))
        variance = parameters.decay.square() / precisions + token.process
        residual = token.k[:, :, None] - parameters.decay[..., None] * means.chunk(2, -1)[0]
        readout, means, precisions = slot_step(
            token, means, precisions, parameters, inner=config.inner, innovation=config.innovation
        )
        readouts.append(readout)
        states.append((1 / precisions).mean(-1))
        innovations.append((residual.square().sum(-1) / (variance + parameters.residual_noise[:, None])).mean(-1))
        gains.append((parameters.delta[:, None] * (1 - 1 / (variance * precisions))).mean(-1))
    out, log_norm, precision = (torch.stack(parts, 1) for parts in zip(*readouts, strict=True))
    rows = {"state": states, "innovation": innovations, "gain": gains}
    return out, log_norm, precision, {name: torch.cat(parts).clamp_min(1e-12).log() for name, parts in rows.items()}


def _logit_variance(following: Following, latent: Tensor, variance: Tensor) -> Tensor:
    """log Σ_h s_h² |∂ log p_top / ∂ latent_h|², `[N]`; each real part of a latent has the variance s² / 2."""
    latent = latent.detach().requires_grad_()
    with torch.enable_grad():
        top = torch.log_softmax(following(latent), -1).amax(-1)
        (slope,) = torch.autograd.grad(top.sum(), latent)
    return (slope.square().sum(-1) * variance / 2).sum(-1)[0].clamp_min(1e-30).log()


@torch.no_grad()
def _paths(
    following: Following, latent: Tensor, variance: Tensor, logits: Tensor, paths: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """log of the mean distribution `[N, V]`, and the signals of the paths `[N, 4]`."""
    spread = torch.sqrt(variance / 2)[..., None]
    top = logits.argmax(-1, keepdim=True)
    total, entropy, of_top = torch.zeros_like(logits), torch.zeros(len(logits)), []
    for _ in range(paths):
        logs = torch.log_softmax(following(latent + spread * torch.randn(latent.shape, generator=generator)), -1)
        weights = logs.exp()
        total += weights
        entropy -= (weights * logs).sum(-1)
        of_top.append(logs.gather(-1, top)[:, 0])
    mixture = (total / paths).log()
    whole = -(total / paths * mixture).sum(-1)
    signals = (
        (whole - entropy / paths).clamp_min(1e-12).log(),
        torch.stack(of_top).std(0).clamp_min(1e-12).log(),
        mixture.amax(-1),
        whole,
    )
    return mixture, torch.stack(signals, -1)
