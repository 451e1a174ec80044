"""Base class of the linear and the deep filter, with a dense linear-Gaussian head, its states, and the public
interface.

Filters process observations with missing components at irregular times. After each observation, they return the state
in observation units with its covariance. Mode "recurrent" has a state of fixed size; mode "attention" uses every
earlier observation of the request. Forecasts and the recurrence can continue from the state of either mode.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.recurrence.dense import DenseUpdate, Robustness, Sensor, propagate
from rfa.model.recurrence.modes import Drift, transition
from rfa.model.two_modes import TwoModeNetwork

State = dict[str, Tensor]


class Token(NamedTuple):
    """One observation of each of B streams.

    Args:
        value: Observation, `[B, P]`.
        present: 1 for observed components and 0 for missing ones, `[B, P]`.
        dt: Time since the last observation, `[B]`. It is 0 for the first observation, whose prior is the initial state.
        noise_scale: Factor of the standard deviation of the measurement noise, `[B]`.
    """

    value: Tensor
    present: Tensor
    dt: Tensor
    noise_scale: Tensor


class Sequences(NamedTuple):
    """Observations of B streams.

    Args:
        observation, present: Observations and their presence, `[B, N, P]`.
        times: Times, `[B, N]` float64.
        noise_scale: Factor of the standard deviation of the measurement noise, `[B, N]`. The default is 1.
    """

    observation: Tensor
    present: Tensor
    times: Tensor
    noise_scale: Tensor | None = None


class Past(NamedTuple):
    """Earlier observations that attention uses.

    Args:
        rows: Mapping from names to rows that earlier calls returned, `[B, C, …]`.
        lag: Time since each observation, `[B, C]`.
        valid: 1 if a row is valid and 0 otherwise, `[B, C]`.
    """

    rows: State
    lag: Tensor
    valid: Tensor


class FilterOutput(NamedTuple):
    """Result of one step `[B, …]` or of a sequence `[B, N, …]`, in observation units unless stated otherwise.

    Args:
        mean, covariance: State after the observation, `[P]` and `[P, P]`.
        precision: P / trace(covariance).
        weight: Robust weight of the observation.
        innovation, innovation_covariance: Innovation `[P]` (0 if missing) and its covariance `[P, P]`.
        nis: Normalised innovation squared.
        log_likelihood: Log-likelihood of the observation.
        transition: Transition matrix in state coordinates, `[n, n]`, for smoothing.
        predicted_mean, predicted_covariance: State before the observation in state coordinates, `[n]` and `[n, n]`.
        state_mean, state_covariance: State after the observation in state coordinates, `[n]` and `[n, n]`.
    """

    mean: Tensor
    covariance: Tensor
    precision: Tensor
    weight: Tensor
    innovation: Tensor
    innovation_covariance: Tensor
    nis: Tensor
    log_likelihood: Tensor
    transition: Tensor
    predicted_mean: Tensor
    predicted_covariance: Tensor
    state_mean: Tensor
    state_covariance: Tensor


class StateFilter(TwoModeNetwork):
    """Base class of filters. `step` and `attend` process one observation of every stream, and `forward` processes
    sequences."""

    observation_size: int
    inner: int

    def __init__(self) -> None:
        super().__init__("recurrent")

    @abstractmethod
    def drift(self) -> Drift:
        """Return the eigenpairs of the drift matrix. If the matrix is not diagonalisable, return its blocks."""

    @abstractmethod
    def sensor(self) -> Sensor:
        """Return the observation matrix, the offset and the nominal noise covariance."""

    @abstractmethod
    def robustness(self) -> Robustness:
        """Return the parameters of the weight rule and of the predictive density."""

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """Return the state of `batch` streams before their first observation."""

    @abstractmethod
    def step(self, token: Token, state: State) -> tuple[FilterOutput, State]:
        """Process one observation with the recurrence. Return the output and the next state."""

    @abstractmethod
    def attend(self, token: Token, state: State, past: Past) -> tuple[FilterOutput, State, State]:
        """Process one observation with exact attention over the earlier ones.

        Returns:
            The output, the next state, from which `step` can continue, and the cache row of this observation, `[B, …]`.
        """

    def takes_passes(self) -> bool:
        """Return whether `step` and `attend` have the argument `passes` `[B]`, the number of passes for each
        observation, from 1 to `inner`."""
        return False

    @abstractmethod
    def cache_rows(self) -> dict[str, tuple[int, ...]]:
        """Return a mapping from names to the shapes of the parts of a cache row."""

    def predict(self, mean: Tensor, covariance: Tensor, dt: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return F(dt), Q(dt), and the mean and covariance before the observation."""
        f, q = transition(self.drift(), dt)
        return f, q, *propagate(mean, covariance, f, q)

    def output(self, update: DenseUpdate, sensor: Sensor, f: Tensor, prior: tuple[Tensor, Tensor]) -> FilterOutput:
        covariance = sensor.matrix @ update.covariance @ sensor.matrix.mT
        variance = torch.diagonal(covariance, dim1=-2, dim2=-1)
        return FilterOutput(
            mean=(sensor.matrix @ update.mean[..., None])[..., 0] + sensor.offset,
            covariance=covariance,
            precision=self.observation_size / variance.sum(-1),
            weight=update.weight, innovation=update.innovation, innovation_covariance=update.innovation_covariance,
            nis=update.nis, log_likelihood=update.log_likelihood, transition=f,
            predicted_mean=prior[0], predicted_covariance=prior[1],
            state_mean=update.mean, state_covariance=update.covariance,
        )  # fmt: skip

    def noise_scales(self, state: State) -> tuple[Tensor, Tensor]:
        """Return the factors of the process and the measurement covariance after `state`, `[B]` each."""
        one = torch.ones_like(state["mean"][..., 0])
        return one, one

    def forecast(self, state: State, horizon: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the covariance of future observations.

        Args:
            state: State from which to forecast.
            horizon: Times after the state, `[F]` or `[B, F]`.

        Returns:
            The mean `[B, F, P]` and the covariance `[B, F, P, P]`.
        """
        process, measurement = self.noise_scales(state)
        f, q = transition(self.drift(), horizon)
        sensor = self.sensor()
        mean, covariance = propagate(
            state["mean"][:, None], state["covariance"][:, None], f, q * process[:, None, None, None]
        )
        future = sensor.matrix @ covariance @ sensor.matrix.mT + sensor.noise * measurement[:, None, None, None]
        return (sensor.matrix @ mean[..., None])[..., 0] + sensor.offset, future

    def walk(self, sequences: Sequences, state: State | None = None) -> Iterator[tuple[FilterOutput, State]]:
        """Filter sequences in the current mode, and yield each output and state.

        Args:
            sequences: Observations.
            state: Initial state. `state["time"]`, `[B]` float64, must contain the time of its last observation.
        """
        observation, present, times, noise_scale = sequences
        batch, length = observation.shape[:2]
        scale = torch.ones_like(observation[..., 0]) if noise_scale is None else noise_scale
        carried = self.init_state(batch) if state is None else {k: v for k, v in state.items() if k != "time"}
        origin = times[:, :1] if state is None else state["time"][:, None]
        lags = torch.diff(times, dim=1, prepend=origin).to(observation.dtype)
        rows: dict[str, list[Tensor]] = {name: [] for name in self.cache_rows()}
        for i in range(length):
            token = Token(observation[:, i], present[:, i], lags[:, i], scale[:, i])
            if self.mode == "recurrent":
                output, carried = self.step(token, carried)
            else:
                cache = {
                    name: torch.stack(rows[name], 1) if i else observation.new_zeros(batch, 0, *shape)
                    for name, shape in self.cache_rows().items()
                }
                lag = (times[:, i : i + 1] - times[:, :i]).to(observation.dtype)
                output, carried, row = self.attend(token, carried, Past(cache, lag, torch.ones_like(lag)))
                for name, value in row.items():
                    rows[name].append(value)
            yield output, carried

    def forward(
        self, observation: Tensor, present: Tensor, times: Tensor,
        noise_scale: Tensor | None = None, state: State | None = None,
    ) -> tuple[FilterOutput, State]:  # fmt: skip
        """Filter complete sequences. Return the outputs `[B, N, …]` and the final state, from which filtering can
        continue.

        The arguments are those of `Sequences` and `walk`.
        """
        sequences = Sequences(observation, present, times, noise_scale)
        outputs, states = zip(*self.walk(sequences, state), strict=True)
        stacked = FilterOutput(*(torch.stack(field, dim=1) for field in zip(*outputs, strict=True)))
        return stacked, {**states[-1], "time": times[:, -1]}
