"""The models of one process and the threads that run them: what the routes talk to."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from rfa.runtime.filters import auto
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.outputs import FilterWarning
from rfa.runtime.text.language import Language
from rfa.runtime.uncertainty.interface import FilterOptions, MergeOptions, reply_rows
from rfa.service.engine.filter.jobs import FilterJob, SequenceJob
from rfa.service.engine.filter.many import EVENT_BYTES, ManyJob, ManyStage, Part
from rfa.service.engine.filter.merging import MergeJob
from rfa.service.engine.filter.stream import FilterStreamOptions, StreamJob
from rfa.service.engine.job import Job
from rfa.service.engine.models import Models
from rfa.service.engine.reply_size import (
    LEAD,
    PART,
    STATE_COPIES,
    TEXT_COPIES,
    StepShape,
    ahead_bytes,
    cache_bytes,
    filter_bytes,
    frame_bytes,
    generation_bytes,
    many_bytes,
    series_bytes,
    smoothing_bytes,
    whole_bytes,
)
from rfa.service.engine.scheduler import Scheduler
from rfa.service.engine.served import FilterPlace, Served, Staged, prompt_limits
from rfa.service.engine.system_cache import SystemPlace, Systems
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import LONG_PROMPT, GenerateOptions
from rfa.service.engine.text.prompt import attention_capacity
from rfa.service.engine.text.state import LanguageState, largest_state
from rfa.service.errors import InvalidRequest, NotFound, NotReady
from rfa.service.memory import Lease
from rfa.service.metrics import Metrics
from rfa.service.schemas.server_replies import Kind
from rfa.service.schemas.system import SystemRequest
from rfa.service.settings import Settings

SEED_BITS = 53  # a drawn seed survives a JSON reader that keeps numbers as doubles
NUMBERS_PER_TOKEN = 5
# The one that fills the buffer, the one that is encoded, and what a quantum adds before it looks.
STEPS_BEYOND_BUFFER = 3
# Beside those that are merged: their prior, and what they become.
STATES_OF_A_MERGE = 2
# What filters: the model of a name, that which is the server's own, or a system of a request.
ModelChoice = str | None | SystemPlace
AnyJob = TypeVar("AnyJob", bound=Job)


@dataclass(frozen=True)
class StateKind:
    """What a state belongs to, and the most bytes that one can have."""

    digest: str
    kind: Kind
    max_bytes: int


class Engine:
    """Checks what depends on a model or on the server's limits, and turns requests into jobs."""

    def __init__(self, models: Models, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._prompt_limits = prompt_limits(settings)
        self._metrics = metrics
        self._drift = DriftMeter(settings.drift_every, metrics)
        self._scheduler = Scheduler(
            workers=settings.workers,
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            stream_buffer=settings.stream_buffer,
            max_streams=settings.max_streams,
            queue_seconds=settings.queue_seconds,
            count_refusal=lambda reason: metrics.admission_rejections.labels(reason).inc(),
        )
        metrics.watch("num_requests_running", "Requests that hold model state.", lambda: self._scheduler.running)
        metrics.watch("num_requests_waiting", "Requests that wait for a place.", lambda: self._scheduler.waiting)
        metrics.watch("num_streams", "Live filter streams, idle ones included.", lambda: self._scheduler.streams)
        metrics.watch("engine_stalled_seconds", "Age of the last progress.", self._scheduler.stalled_for)
        self._many = ManyStage(settings.series_threads - 1, metrics)
        self._staged: Staged | None = None
        self._systems = Systems(partial(FilterPlace.of, settings=settings, metrics=metrics))
        metrics.watch(
            "systems", "Systems of requests, at work or kept for the next one.", lambda: self._systems.at_work
        )
        self._serve(self.build(models))

    @property
    def models(self) -> Models:
        """What new requests are answered with."""
        return self._served.models

    @property
    def seats_in_use(self) -> int:
        """Seats that have an owner, of all models that new requests are answered with, and of systems."""
        return sum(pool.in_use for pool in self._served.pools.values()) + self._systems.seats_in_use

    def build(self, models: Models) -> Served:
        """What it takes to answer with these models; nothing is answered with them yet. May run on any thread."""
        return Served.build(models, self._settings, self._metrics, self._drift)

    def stage(self, served: Served, is_due: Callable[[], bool]) -> None:
        """Keep other models ready: new requests are answered with them from the moment that `is_due` says so.

        On the event loop, as everything of this kind: no request sees half of each.
        """
        self._staged = Staged(served, is_due)

    def abandon(self) -> None:
        """Forget what was staged."""
        self._staged = None

    def settle(self) -> None:
        """Turn to the staged models if they are due; whoever begins a request calls this first.

        Requests and streams at work keep the models that they began with.
        """
        if self._staged is not None and self._staged.is_due():
            self._serve(self._staged.served)
            self._staged = None

    def _serve(self, served: Served) -> None:
        self._served = served
        self._metrics.bundle_version.clear()
        self._metrics.bundle_version.labels(served.models.version).set(1)
        self._metrics.state_slots.clear()
        self._metrics.state_slots_used.clear()
        for name, pool in served.pools.items():
            self._metrics.state_slots.labels(name).set(pool.capacity)
            self._metrics.state_slots_used.labels(name).set_function(partial(getattr, pool, "in_use"))

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for an answer of a live stream."""
        return self._scheduler.live_at_work

    def stalled_for(self) -> float:
        """Seconds since the last progress while there is work to do, else 0."""
        return self._scheduler.stalled_for()

    def check_ready(self) -> None:
        """Raises NotReady when there is work and no progress."""
        stalled = self._scheduler.stalled_for()
        if stalled > self._settings.stall_seconds:
            raise NotReady(f"The engine has work and made no progress for {stalled:.0f} s.")

    def generate(self, model_name: str | None, options: GenerateOptions, lease: Lease | None = None) -> GenerateJob:
        """Queue a generation.

        Args:
            lease: grows by what the request holds until its reply is sent.

        Raises:
            InvalidRequest, NotFound, Overloaded, NotReady
        """
        model = self._language(model_name)
        self._check_mode(model, options)
        self._limit(options.names.max_new_tokens, options.max_new_tokens, self._settings.max_new_tokens)
        self._prompt_limits.check_size(options, model.vocabulary.longest_token)
        size = len(model.vocabulary)
        tokens = () if isinstance(options.prompt, str) else options.prompt
        if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < size:
            name = options.names.prompt
            raise InvalidRequest(
                f"{name} must hold token ids below {size} for this model.", param=name, code="unknown_token"
            )
        per_token = self.numbers_per_token(model.name, options.top_n_tokens, with_latents=options.return_latents)
        self._limit_reply(options.names.whole, per_token * options.max_new_tokens * options.samples)
        mode, limits = options.mode or model.default_mode, self._prompt_limits
        reader, n_cached = attention_capacity(model.vocabulary, options, limits) if mode == "attention" else (None, 0)
        contexts = cache_bytes(model.cache_bytes, n_cached, options.samples)
        self._hold(lease, options.names.whole, self._generation_bytes(model, options) + contexts)
        short, long = self._served.prefill[model.name, mode]
        stage = long if len(options.prompt) > LONG_PROMPT else short
        return self._submit(GenerateJob(stage, model, options, reader, lease, n_cached))

    def numbers_per_token(self, model_name: str | None, top: int, *, with_latents: bool) -> int:
        """About how many numbers a reply tells of a token, by which its size is held to what this server sends.

        Args:
            top: alternatives at each token.

        Raises:
            NotFound
        """
        latent = math.prod(self._language(model_name).latent_shape) if with_latents else 0
        return NUMBERS_PER_TOKEN + 2 * top + latent

    def check_has_state(self, model_name: str | None, param: str) -> None:
        """Refuse a request's field that is about the state of a language model that has none.

        Raises:
            InvalidRequest, NotFound
        """
        model = self._language(model_name)
        if "recurrent" not in model.modes:
            raise InvalidRequest(
                f'{param}: a state is of decode "recurrent", and {model.name!r} decodes in "attention" only.',
                param=param,
                code="no_state",
            )

    def language_state(self, model_name: str | None) -> StateKind:
        """What a state of this language model is.

        Raises:
            NotFound
        """
        model = self._language(model_name)
        return StateKind(self._served.digests[model.name], "lm", largest_state(model.context_bytes))

    def read_language_state(self, model_name: str | None, payload: bytes) -> LanguageState:
        """A state that was opened.

        Raises:
            InvalidRequest: it does not fit the model (`state_invalid`).
        """
        return LanguageState.unpack(payload, len(self._language(model_name).vocabulary))

    async def choice(self, model_name: str | None, system: SystemRequest | None) -> ModelChoice:
        """What filters of a request: the model of this name, or a system.

        Raises:
            InvalidRequest, Overloaded: see `Systems.place`.
        """
        if system is not None:
            return await self._systems.place(system.document())
        return auto.RETIRED.get(str(model_name), model_name) if self._is_retired(model_name) else model_name

    def retirement(self, model_name: str | None) -> list[FilterWarning]:
        """The warning of a reply where the request names a retired model, else none."""
        if not self._is_retired(model_name):
            return []
        return [FilterWarning("retired_model", None, None, auto.retirement_note(str(model_name)))]

    def _is_retired(self, model_name: str | None) -> bool:
        return model_name in auto.RETIRED and model_name not in self.models.filters

    def filter_state(self, model_name: ModelChoice, size: int | None = None) -> StateKind:
        """What a state of this filter is, for observations of so many components.

        Raises:
            NotFound
        """
        model = self.filter_model(model_name, size)
        digest = model_name.digest if isinstance(model_name, SystemPlace) else self._served.digests[model.name]
        return StateKind(digest, "filter", model.state_bytes)

    def read_filter_state(self, model_name: ModelChoice, payload: bytes, size: int | None = None) -> Any:
        """A state that was opened; it has a `count`, a `time` and a `seed`.

        Raises:
            InvalidRequest: it does not fit the model (`state_invalid`).
        """
        return self.filter_model(model_name, size).unpack(payload)

    def filter(
        self, model_name: ModelChoice, options: FilterOptions, lease: Lease | None = None
    ) -> FilterJob | SequenceJob:
        """Queue a filter run.

        Args:
            lease: grows by what the request holds until its reply is sent.

        Raises:
            InvalidRequest, NotFound, Overloaded, NotReady
        """
        model = self.filter_model(model_name, options.observations.shape[1])
        options = replace(options, levels=options.levels or model.levels)
        shape = _step_shape(model, options)
        self._limit_reply("observations", _reply_numbers(shape, options))
        self._hold(lease, "observations", self._filter_bytes(model, shape, options))
        return self._submit(self._filter_job(model_name, model, options))

    def filter_part(self, model_name: ModelChoice, options: FilterOptions, place: int) -> Part:
        """A series of a request of many, which `filter_many` queues.

        Args:
            place: of the series in the request.

        Raises:
            InvalidRequest, NotFound
        """
        model = self.filter_model(model_name, options.observations.shape[1])
        options = replace(options, levels=options.levels or model.levels)
        count, shape = len(options.observations), _step_shape(model, options)
        numbers = _reply_numbers(shape, options)
        self._limit_reply("observations", numbers)
        held = series_bytes(shape, count)
        if options.smooth:
            held += smoothing_bytes(shape, count, model.state_size, is_streamed=True)
        has_state = options.wants_state or options.state is not None
        held += (
            ahead_bytes(shape, len(options.ahead))
            + model.own_bytes
            + (STATE_COPIES * model.state_bytes if has_state else 0)
        )
        kept = PART + options.times.nbytes + options.observations.nbytes + options.noise.nbytes
        kept += LEAD * (len(options.horizon) + len(options.ahead))
        kept += 0 if options.state is None else model.state_bytes
        return Part(place, model.name, self._filter_job(model_name, model, options), numbers, kept, held)

    def filter_many(self, parts: Sequence[Part], deadline_seconds: float | None, lease: Lease | None = None) -> ManyJob:
        """Queue a request of many series, one at least.

        Args:
            lease: grows by what the request holds until its reply is sent.

        Raises:
            InvalidRequest, Overloaded, NotReady
        """
        numbers, limit = sum(part.numbers for part in parts), self._settings.max_series_numbers
        if numbers > limit:
            message = f"series asks for a reply of about {numbers} numbers; this server sends at most {limit}."
            raise InvalidRequest(message, param="series", code="reply_too_large")
        lanes, ahead = self._settings.series_threads, self._settings.stream_buffer * EVENT_BYTES
        kept = sum(part.kept_bytes for part in parts)
        self._hold(lease, "series", kept + many_bytes([part.held_bytes for part in parts], ahead, lanes))
        return self._submit(ManyJob(self._many, parts, lanes, deadline_seconds=deadline_seconds))

    def filter_stream(
        self, model_name: ModelChoice, options: FilterStreamOptions, lease: Lease | None = None, size: int | None = None
    ) -> StreamJob:
        """Open a live stream.

        Args:
            size: components of an observation, where the model takes any number.
            lease: grows by what the stream holds with one observation under way; each more takes `answer_bytes`.

        Raises:
            InvalidRequest, NotFound, Overloaded, NotReady
        """
        model = self.filter_model(model_name, size)
        options = replace(options, levels=options.levels or model.levels)
        shape = _step_shape(model, options)
        self._limit_reply("samples", shape.numbers)
        answer_bytes = frame_bytes(shape) + (STATE_COPIES * model.state_bytes if options.state_every else 0)
        self._hold(lease, "horizon", shape.readout_bytes + answer_bytes + model.own_bytes)
        stage, limit = self._place(model_name, model).filtering, self._settings.stream_buffer
        return self._submit(StreamJob(stage, options, limit=limit, answer_bytes=answer_bytes))

    def merge(self, model_name: ModelChoice, options: MergeOptions, lease: Lease | None = None) -> MergeJob:
        """Queue a merge of beliefs.

        Args:
            lease: grows by what the request holds until its reply is sent.

        Raises:
            InvalidRequest, NotFound, Overloaded, NotReady
        """
        model = self.filter_model(model_name)
        model.check_merges()
        options = replace(options, levels=options.levels or model.levels)
        shape = StepShape(model.observation_size, len(options.levels), len(options.horizon), 0)
        self._limit_reply("horizon", shape.numbers)
        states = (len(options.states) + STATES_OF_A_MERGE) * STATE_COPIES * model.state_bytes
        self._hold(lease, "states", states + shape.readout_bytes + frame_bytes(shape) + model.own_bytes)
        return self._submit(MergeJob(self._place(model_name, model).merging, options))

    def filter_model(self, model_name: ModelChoice, size: int | None = None) -> FilterRuntime:
        """The filter that answers, for observations of so many components.

        Raises:
            InvalidRequest, NotFound
        """
        if isinstance(model_name, SystemPlace):
            return model_name.model
        model: FilterRuntime = self._model(self.models.filters, model_name, "filter")
        return model if size is None else model.sized(size)

    def merging_name(self, model_name: ModelChoice) -> ModelChoice:
        """The filter whose beliefs are merged: where none is named the first bundle's."""
        bundles = (name for name, model in self.models.filters.items() if not model.suits_any)
        return next(bundles, None) if model_name is None else model_name

    def drain(self, seconds: float) -> None:
        """Take nothing new, end live streams, and give requests `seconds` to end before they are interrupted.

        Blocks; interrupted jobs hand back where to go on.
        """
        self._scheduler.drain(seconds)

    def close(self) -> None:
        """Stop the workers; unfinished requests end with NotReady."""
        self._scheduler.close()
        self._many.close()
        self._drift.close()

    def _place(self, choice: ModelChoice, model: FilterRuntime) -> FilterPlace:
        return choice.filters if isinstance(choice, SystemPlace) else self._served.place(model)

    def _language(self, name: str | None) -> Language:
        model: Language = self._model(self.models.languages, name, "language model")
        return model

    def _filter_job(self, choice: ModelChoice, model: FilterRuntime, options: FilterOptions) -> FilterJob | SequenceJob:
        place = self._place(choice, model)
        return SequenceJob(place.sequences, options) if options.needs_whole else FilterJob(place.filtering, options)

    def _submit(self, job: AnyJob) -> AnyJob:
        self._scheduler.submit(job)
        return job

    def _model(self, models: Mapping[str, Any], name: str | None, kind: str) -> Any:
        if not models:
            raise NotFound(f"This server has no {kind}.", param="model", code="model_not_found")
        if name is None:
            return next(iter(models.values()))
        if name not in models:
            choices = ", ".join(repr(choices) for choices in models)
            raise NotFound(f"model must be a {kind} of this server: {choices}.", param="model", code="model_not_found")
        return models[name]

    def _check_mode(self, model: Language, options: GenerateOptions) -> None:
        """Refuse a mode that a model does not have, or a state of it."""
        if options.mode is not None and options.mode not in model.modes:
            choices = " and ".join(f'"{mode}"' for mode in model.modes)
            raise InvalidRequest(
                f"{options.names.decode}: {model.name!r} decodes in {choices} only.",
                param=options.names.decode,
                code="no_such_mode",
            )
        for name, is_requested in (("state", options.resumed is not None), ("return_state", options.returns_state)):
            if is_requested:
                self.check_has_state(model.name, name)

    def _limit(self, param: str, value: int, limit: int) -> None:
        if value > limit:
            raise InvalidRequest(f"{param} must be at most {limit} on this server.", param=param, code="too_large")

    def _filter_bytes(self, model: FilterRuntime, shape: StepShape, options: FilterOptions) -> int:
        count = len(options.observations)
        has_state = options.wants_state or options.state is not None
        states = (
            model.own_bytes
            + (STATE_COPIES * model.state_bytes if has_state else 0)
            + ahead_bytes(shape, len(options.ahead))
        )
        if options.is_whole:
            states += whole_bytes(shape, count)
        if options.smooth:
            return states + smoothing_bytes(shape, count, model.state_size, is_streamed=options.is_streamed)
        ahead = self._settings.stream_buffer // reply_rows(options) + STEPS_BEYOND_BUFFER
        return states + filter_bytes(shape, count, ahead, is_streamed=options.is_streamed)

    def _generation_bytes(self, model: Language, options: GenerateOptions) -> int:
        tokens, latent = options.max_new_tokens * options.samples, math.prod(model.latent_shape)
        ahead = self._settings.stream_buffer + options.samples if options.is_streamed else None
        size = generation_bytes(tokens, options.top_n_tokens, latent if options.return_latents else 0, ahead)
        mode = options.mode or model.default_mode
        if mode == "recurrent":
            size += (options.samples + 1) * model.pool.host_bytes_per_slot
        length = len(options.prompt)
        if options.return_full_text:
            size += TEXT_COPIES * options.samples * length
        if options.returns_state or options.resumed is not None:
            size += STATE_COPIES * model.context_bytes
        return size

    def _hold(self, lease: Lease | None, param: str, size: int) -> None:
        if lease is None:
            return
        if size > lease.largest:
            raise InvalidRequest(
                f"{param} asks for about {size} bytes of memory; a request may have {lease.largest} on this server.",
                param=param,
                code="reply_too_large",
            )
        lease.grow(size)

    def _limit_reply(self, param: str, numbers: int) -> None:
        limit = self._settings.max_reply_numbers
        if numbers > limit:
            raise InvalidRequest(
                f"{param} asks for a reply of about {numbers} numbers; this server sends at most {limit}.",
                param=param,
                code="reply_too_large",
            )


def draw_seed() -> int:
    """A seed for a request that names none."""
    return secrets.randbits(SEED_BITS)


def _reply_numbers(shape: StepShape, options: FilterOptions) -> int:
    """What a reply tells of all observations, and of the rows that come next."""
    reply_shape = replace(shape, horizon=shape.horizon - options.followed)
    return len(options.observations) * reply_shape.numbers + len(options.ahead) * shape.numbers_ahead


def _step_shape(model: FilterRuntime, options: FilterOptions | FilterStreamOptions) -> StepShape:
    return StepShape(model.observation_size, len(options.levels), len(options.horizon), options.samples)
