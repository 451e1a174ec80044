"""Compute the sizes of requests: how many numbers the reply contains, and how many bytes of memory the request needs
until the reply is sent."""

from __future__ import annotations

import math
from dataclasses import replace

from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.late import held_bytes, packed_bytes
from rfa.runtime.text.context_format import output_bytes
from rfa.runtime.text.language import Language
from rfa.runtime.text.logit_adjustments import rules_bytes
from rfa.runtime.text.scores import score_bytes
from rfa.runtime.uncertainty.alarms import NEVER
from rfa.runtime.uncertainty.incidents import MOST_INCIDENTS
from rfa.runtime.uncertainty.interface import FilterOptions, MergeOptions, reply_rows
from rfa.runtime.uncertainty.rules import ENDS_AFTER
from rfa.service.engine.filter.stream import FilterStreamOptions
from rfa.service.engine.reply_size import (
    INCIDENT,
    LEAD,
    PART,
    STATE_COPIES,
    TEXT_COPIES,
    StepShape,
    ahead_bytes,
    filter_bytes,
    frame_bytes,
    generation_bytes,
    series_bytes,
    smoothing_bytes,
    whole_bytes,
)
from rfa.service.engine.text.options import GenerateOptions, PromptLimits
from rfa.service.errors import InvalidRequest
from rfa.service.memory import Lease

# Number of steps in addition to those in the buffer. One is being encoded, and a quantum adds others before it checks
# the buffer.
STEPS_BEYOND_BUFFER = 3
# Number of states in addition to those that are merged: the prior and the result.
STATES_OF_A_MERGE = 2


def step_shape(model: FilterRuntime, options: FilterOptions | FilterStreamOptions) -> StepShape:
    """Return the numbers that determine the size of one step of the reply."""
    experts = len(model.experts) if options.weights else 0
    return StepShape(model.observation_size, len(options.levels), len(options.horizon), options.samples, experts)


def reply_numbers(shape: StepShape, options: FilterOptions) -> int:
    """Return how many numbers the reply contains, including the forecasts of future rows."""
    reply_shape = replace(shape, horizon=shape.horizon - options.followed)
    return len(options.observations) * reply_shape.numbers + len(options.ahead) * shape.numbers_ahead


def filter_request_bytes(model: FilterRuntime, options: FilterOptions, stream_buffer: int) -> int:
    """Return the memory of a filter request, in bytes."""
    shape, count = step_shape(model, options), len(options.observations)
    size = _fixed_bytes(model, shape, options)
    if options.is_whole:
        size += whole_bytes(shape, count)
    if options.smooth:
        return size + smoothing_bytes(shape, count, model.state_size, is_streamed=options.is_streamed)
    ahead = stream_buffer // reply_rows(options) + STEPS_BEYOND_BUFFER
    return size + filter_bytes(shape, count, ahead, is_streamed=options.is_streamed)


def part_bytes(model: FilterRuntime, options: FilterOptions) -> tuple[int, int]:
    """Return the memory of one series in a request with several series, in bytes: until its completion, and from its
    completion until it is encoded."""
    shape, count = step_shape(model, options), len(options.observations)
    ended = _fixed_bytes(model, shape, options) + series_bytes(shape, count)
    if options.smooth:
        ended += smoothing_bytes(shape, count, model.state_size, is_streamed=True)
    waiting = PART + options.times.nbytes + options.observations.nbytes + options.noise.nbytes
    waiting += LEAD * (len(options.horizon) + len(options.ahead))
    waiting += 0 if options.inputs is None else options.inputs.nbytes
    return waiting + (0 if options.state is None else model.state_bytes), ended


def _fixed_bytes(model: FilterRuntime, shape: StepShape, options: FilterOptions) -> int:
    has_state = options.wants_state or options.state is not None
    states = STATE_COPIES * model.state_bytes if has_state else 0
    inputs = 0 if options.inputs is None else options.inputs.nbytes
    incidents = 0 if options.alarm == NEVER else min(len(options.observations) // ENDS_AFTER + 1, MOST_INCIDENTS)
    fixed = model.own_bytes + states + inputs + ahead_bytes(shape, len(options.ahead))
    return fixed + INCIDENT * incidents + _late_bytes(model, options)


def _late_bytes(model: FilterRuntime, options: FilterOptions | FilterStreamOptions) -> int:
    """Return the memory of the window for late rows and of its copies in a state, in bytes."""
    return 0 if options.late is None else held_bytes(model) + STATE_COPIES * packed_bytes(model)


def answer_bytes(model: FilterRuntime, options: FilterStreamOptions) -> int:
    """Return the number of bytes that an observation of a live stream occupies until its reply is sent."""
    return frame_bytes(step_shape(model, options)) + (STATE_COPIES * model.state_bytes if options.state_every else 0)


def stream_bytes(model: FilterRuntime, options: FilterStreamOptions) -> int:
    """Return the memory of a live stream with one observation in progress, in bytes."""
    shape = step_shape(model, options)
    return shape.readout_bytes + answer_bytes(model, options) + model.own_bytes + _late_bytes(model, options)


def merge_bytes(model: FilterRuntime, shape: StepShape, options: MergeOptions) -> int:
    """Return the memory of a request that merges states, in bytes."""
    states = (len(options.states) + STATES_OF_A_MERGE) * STATE_COPIES * model.state_bytes
    return states + shape.readout_bytes + frame_bytes(shape) + model.own_bytes


def generation_request_bytes(model: Language, options: GenerateOptions, stream_buffer: int) -> int:
    """Return the memory of a request that generates text, without contexts in attention mode, in bytes."""
    tokens, latent = options.max_new_tokens * options.samples, math.prod(model.latent_shape)
    ahead = stream_buffer + options.samples if options.is_streamed else None
    size = generation_bytes(tokens, options.top_n_tokens, latent if options.return_latents else 0, ahead)
    if (options.mode or model.default_mode) == "recurrent":
        size += (options.samples + 1) * model.pool.host_bytes_per_slot
    if not options.rules.are_neutral:
        size += options.samples * rules_bytes(len(model.vocabulary))
    if options.return_full_text:
        size += TEXT_COPIES * options.samples * len(options.prompt)
    if options.returns_state or options.resumed is not None:
        size += STATE_COPIES * (model.context_bytes + output_bytes(len(model.vocabulary), model.latent_shape))
    return size


def scores_bytes(options: GenerateOptions, limits: PromptLimits) -> int:
    """Return the memory of the scores of a prompt and of the prompt in the reply, in bytes."""
    if options.scored_top is None:
        return 0
    most = len(options.prompt.encode()) if isinstance(options.prompt, str) else len(options.prompt)
    tokens = min(most, limits.max_prompt_tokens(options)) + 1
    return tokens * score_bytes(options.scored_top) + TEXT_COPIES * options.samples * most


def grow(lease: Lease | None, param: str, size: int) -> None:
    """Add the memory of a request in bytes to its lease, if it has one.

    Raises:
        InvalidRequest: If a request may not use that much memory. The message names `param`.
        Overloaded: If there is currently not enough free memory.
    """
    if lease is None:
        return
    if size > lease.largest:
        raise InvalidRequest(
            f"{param} needs about {size} bytes of memory, but a request may use at most {lease.largest} bytes on "
            "this server.",
            param=param,
            code="reply_too_large",
        )
    lease.grow(size)


def check_reply_numbers(param: str, numbers: int, limit: int) -> None:
    """Check that a reply does not contain more numbers than `limit`.

    Raises:
        InvalidRequest: If the reply would be too large. The message names `param`.
    """
    if numbers > limit:
        raise InvalidRequest(
            f"{param}: the reply would contain about {numbers} numbers, but this server sends at most {limit}; "
            "select fewer fields or observations.",
            param=param,
            code="reply_too_large",
        )
