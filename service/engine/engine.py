"""Engine of a server process: it runs the models on threads. The routes call this module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rfa.runtime.filters import auto
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.late import packed_bytes, split_state
from rfa.runtime.outputs import FilterWarning
from rfa.runtime.text.context_format import output_bytes
from rfa.runtime.text.language import Language
from rfa.runtime.uncertainty.interface import FilterOptions, MergeOptions
from rfa.service.engine import request_size
from rfa.service.engine.choices import ModelChoice, ResolvedChoice, StateKind, WithCovariates
from rfa.service.engine.filter.filter_job import FilterJob
from rfa.service.engine.filter.many import EVENT_BYTES, ManyJob, ManyStage, Part
from rfa.service.engine.filter.merging import MergeJob
from rfa.service.engine.filter.sequence_job import SequenceJob
from rfa.service.engine.filter.stream import FilterStreamOptions, StreamJob
from rfa.service.engine.job import Job
from rfa.service.engine.models import Models, find_model
from rfa.service.engine.reply_size import StepShape, cache_bytes, many_bytes
from rfa.service.engine.scheduler import Scheduler
from rfa.service.engine.served import FilterStages, Served, prompt_limits
from rfa.service.engine.system_cache import ServedSystem, SystemCache
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import LONG_PROMPT, GenerateOptions, checked_passes
from rfa.service.engine.text.prompt import attention_capacity
from rfa.service.engine.text.state import LanguageState, largest_state
from rfa.service.errors import InvalidRequest, NotReady
from rfa.service.memory import Lease
from rfa.service.metrics import Metrics
from rfa.service.schemas.system import SystemRequest
from rfa.service.settings import Settings

NUMBERS_PER_TOKEN = 5
AnyJob = TypeVar("AnyJob", bound=Job)


class Engine:
    """Checks requests against the model and the limits of the server, and queues them as jobs.

    Methods that queue a job have an argument `lease`, which grows by the memory that the request needs until its reply
    is sent. These methods raise InvalidRequest, NotFound, Overloaded and NotReady.
    """

    def __init__(self, models: Models, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._limits = limits = settings.limits
        self._prompt_limits = prompt_limits(limits)
        self._metrics = metrics
        self._drift = DriftMeter(settings.models.drift_every, metrics)
        self._scheduler = Scheduler(
            workers=settings.models.workers,
            max_running=limits.max_running,
            max_waiting=limits.max_waiting,
            stream_buffer=limits.stream_buffer,
            max_streams=limits.max_streams,
            queue_seconds=limits.queue_seconds,
            count_refusal=lambda reason: metrics.admission_rejections.labels(reason).inc(),
        )
        metrics.watch(
            "num_requests_running",
            "Number of requests that are being processed and use the state of a model.",
            lambda: self._scheduler.running,
        )
        metrics.watch("num_requests_waiting", "Number of requests in the queue.", lambda: self._scheduler.waiting)
        metrics.watch(
            "num_streams", "Number of live filter streams, including idle ones.", lambda: self._scheduler.streams
        )
        metrics.watch(
            "engine_stalled_seconds",
            "Seconds since the engine last made progress, or 0 if it has no work.",
            self._scheduler.stalled_for,
        )
        self._many = ManyStage(settings.models.series_threads - 1, metrics)
        self._staged: tuple[Served, Callable[[], bool]] | None = None
        self._systems = SystemCache(partial(FilterStages.build, settings=settings, metrics=metrics))
        metrics.watch(
            "systems",
            "Number of linear systems from requests that are in use or cached.",
            lambda: self._systems.count,
        )
        self._serve(self.build(models))

    @property
    def models(self) -> Models:
        """Models that process new requests."""
        return self._served.models

    @property
    def pool_slots_in_use(self) -> int:
        """Number of pool slots in use by the models that process new requests, and by systems of requests."""
        return sum(pool.in_use for pool in self._served.pools.values()) + self._systems.pool_slots_in_use

    def build(self, models: Models) -> Served:
        """Build and return the stages for some models. New requests do not use them yet. This method is thread-safe."""
        return Served.build(models, self._settings, self._metrics, self._drift)

    def stage(self, served: Served, is_due: Callable[[], bool]) -> None:
        """Store models to use later. `switch_when_due` starts to use them when `is_due` returns True. Call this on the
        event loop."""
        self._staged = served, is_due

    def abandon(self) -> None:
        """Discard the models that were passed to `stage`."""
        self._staged = None

    def switch_when_due(self) -> None:
        """Use the models that were passed to `stage` for new requests, if they are due. Call this before a new request.

        Running requests and streams continue with their own models.
        """
        if self._staged is not None and self._staged[1]():
            self._serve(self._staged[0])
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
    def has_live_work(self) -> bool:
        """Whether a live stream waits for a reply."""
        return self._scheduler.has_live_work

    def stalled_for(self) -> float:
        """Return the seconds since the last progress, or 0 if there is no work to do."""
        return self._scheduler.stalled_for()

    def check_ready(self) -> None:
        """Raise NotReady if there is work to do, but no progress."""
        stalled = self._scheduler.stalled_for()
        if stalled > self._settings.server.stall_seconds:
            raise NotReady(f"The engine has work to do but has made no progress for {stalled:.0f} s.")

    def generate(self, model_name: str | None, options: GenerateOptions, lease: Lease | None = None) -> GenerateJob:
        """Queue the generation of a text, and return its job."""
        model, names = self.language(model_name), options.names
        self._check_mode(model, options)
        options = replace(options, passes=checked_passes(model, options))
        if options.max_new_tokens > (most := self._limits.max_new_tokens):
            message = f"{names.max_new_tokens} must be at most {most} on this server, got {options.max_new_tokens}."
            raise InvalidRequest(message, param=names.max_new_tokens, code="too_large")
        self._prompt_limits.check_size(options, model.vocabulary.longest_token)
        vocabulary_size = len(model.vocabulary)
        for name, tokens in options.token_ids.items():
            if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < vocabulary_size:
                message = f"{name} must contain token ids below {vocabulary_size} for this model."
                raise InvalidRequest(message, param=name, code="unknown_token")
        per_token = self.numbers_per_token(model.name, options.top_n_tokens, with_latents=options.return_latents)
        self._check_reply(names.whole, per_token * options.max_new_tokens * options.samples)
        mode, limits = options.mode or model.default_mode, self._prompt_limits
        reader, capacity = attention_capacity(model.vocabulary, options, limits) if mode == "attention" else (None, 0)
        contexts = cache_bytes(model.cache_bytes, capacity, options.samples)
        size = request_size.generation_request_bytes(model, options, self._limits.stream_buffer)
        size += request_size.scores_bytes(options, limits)
        request_size.grow(lease, names.whole, size + contexts)
        short, long = self._served.prefill[model.name, mode]
        stage = long if len(options.prompt) > LONG_PROMPT else short
        return self._submit(GenerateJob(stage, model, options, reader, lease, capacity))

    def numbers_per_token(self, model_name: str | None, top: int, *, with_latents: bool) -> int:
        """Return an estimate of how many numbers a reply contains for each token.

        Args:
            top: Number of alternatives for each token.

        Raises:
            NotFound: If there is no such model.
        """
        latent = math.prod(self.language(model_name).latent_shape) if with_latents else 0
        return NUMBERS_PER_TOKEN + 2 * top + latent

    def check_has_state(self, model_name: str | None, param: str) -> None:
        """Check that a language model can return states, which requires a recurrent mode.

        Args:
            param: Name of the field that requires a state, for errors.

        Raises:
            InvalidRequest, NotFound: If the model does not support states, or there is no such model.
        """
        model = self.language(model_name)
        if "recurrent" not in model.modes:
            raise InvalidRequest(
                f'{param}: states require decode "recurrent", but {model.name!r} supports only "attention".',
                param=param,
                code="no_state",
            )

    def language_state(self, model_name: str | None) -> StateKind:
        """Return the identity of a language model for its states, and the maximum size of its states.

        Raises:
            NotFound: If there is no such model.
        """
        model = self.language(model_name)
        return StateKind(
            self._served.digests[model.name],
            "lm",
            largest_state(model.context_bytes, output_bytes(len(model.vocabulary), model.latent_shape)),
        )

    def read_language_state(self, model_name: str | None, payload: bytes) -> LanguageState:
        """Unpack a state of a language model, and return it.

        Raises:
            InvalidInput: If the state does not belong to the model (`state_invalid`).
        """
        return LanguageState.unpack(payload, len(self.language(model_name).vocabulary))

    async def resolve_filter(self, model_name: str | None, system: SystemRequest | None) -> ResolvedChoice:
        """Return the choice of the filter for a request: its system, or the name of a model. The name of a removed
        model is replaced by that of its successor.

        Raises:
            InvalidRequest: If the system is invalid.
            Overloaded: If too many systems are in use.
        """
        if system is not None:
            return await self._systems.get(system.document())
        return auto.RETIRED.get(str(model_name), model_name) if self._is_retired(model_name) else model_name

    def retirement_warnings(self, model_name: str | None) -> list[FilterWarning]:
        """Return a warning if the name is that of a removed model. Otherwise, return an empty list."""
        if not self._is_retired(model_name):
            return []
        return [FilterWarning("retired_model", None, None, auto.retirement_note(str(model_name)))]

    def _is_retired(self, model_name: str | None) -> bool:
        return model_name in auto.RETIRED and model_name not in self.models.filters

    def filter_state(self, model_name: ModelChoice, size: int | None = None) -> StateKind:
        """Return the identity of a filter for its states, and the maximum size of its states, for observations with
        `size` components.

        Raises:
            NotFound: If there is no such model.
        """
        model = self.filter_model(model_name, size)
        digest = model_name.digest if isinstance(model_name, ServedSystem) else self._served.digests[model.name]
        return StateKind(digest, "filter", model.state_bytes + packed_bytes(model))

    def read_filter_state(self, model_name: ModelChoice, payload: bytes, size: int | None = None) -> Any:
        """Unpack a state of a filter, and return it. It has the attributes `count`, `time` and `seed`.

        Raises:
            InvalidInput: If the state does not belong to the model (`state_invalid`).
        """
        model = self.filter_model(model_name, size)
        return model.unpack(split_state(payload, model)[0])

    def filter(
        self, model_name: ModelChoice, options: FilterOptions, lease: Lease | None = None
    ) -> FilterJob | SequenceJob:
        """Queue a request that filters a series, and return its job."""
        model, options, _ = self._prepare(model_name, options)
        request_size.grow(
            lease, "observations", request_size.filter_request_bytes(model, options, self._limits.stream_buffer)
        )
        return self._submit(self._filter_job(model_name, model, options))

    def filter_part(self, model_name: ModelChoice, options: FilterOptions, index: int) -> Part:
        """Return the series at position `index` of a request in the form that `filter_many` expects.

        Raises:
            InvalidRequest, NotFound: If an option is invalid, the reply is too large, or there is no such model.
        """
        model, options, numbers = self._prepare(model_name, options)
        job = self._filter_job(model_name, model, options)
        return Part(index, model.name, job, numbers, *request_size.part_bytes(model, options))

    def _prepare(self, choice: ModelChoice, options: FilterOptions) -> tuple[FilterRuntime, FilterOptions, int]:
        """Check a request. Return the model, the options with default levels, and the number of numbers in the
        reply."""
        model = self.filter_model(choice, options.observations.shape[1])
        options = replace(options, levels=options.levels or model.levels)
        numbers = request_size.reply_numbers(request_size.step_shape(model, options), options)
        self._check_reply("observations", numbers)
        return model, options, numbers

    def filter_many(self, parts: Sequence[Part], deadline_seconds: float | None, lease: Lease | None = None) -> ManyJob:
        """Queue a request that filters several series, and return its job."""
        numbers, limit = sum(part.numbers for part in parts), self._limits.max_series_numbers
        if numbers > limit:
            message = (
                f"series: the reply would contain about {numbers} numbers, but this server sends at most {limit}; send "
                "fewer series or select fewer fields."
            )
            raise InvalidRequest(message, param="series", code="reply_too_large")
        threads, ahead = self._settings.models.series_threads, self._limits.stream_buffer * EVENT_BYTES
        waiting = sum(part.waiting_bytes for part in parts)
        request_size.grow(lease, "series", waiting + many_bytes([part.ended_bytes for part in parts], ahead, threads))
        return self._submit(ManyJob(self._many, parts, threads, deadline_seconds=deadline_seconds))

    def filter_stream(
        self, model_name: ModelChoice, options: FilterStreamOptions, lease: Lease | None = None, size: int | None = None
    ) -> StreamJob:
        """Open a live stream, and return its job. The lease grows by the memory of a stream with one observation in
        progress. Each further observation in progress needs `StreamJob.answer_bytes` more bytes.

        Args:
            size: Number of components of an observation, for models that accept any number.
        """
        model = self.filter_model(model_name, size)
        options = replace(options, levels=options.levels or model.levels)
        self._check_reply("samples", request_size.step_shape(model, options).numbers)
        request_size.grow(lease, "horizon", request_size.stream_bytes(model, options))
        stage, limit = self._stages(model_name, model).filtering, self._limits.stream_buffer
        answer_bytes = request_size.answer_bytes(model, options)
        return self._submit(StreamJob(stage, options, limit=limit, answer_bytes=answer_bytes))

    def merge(self, model_name: ModelChoice, options: MergeOptions, lease: Lease | None = None) -> MergeJob:
        """Queue a request that merges states, and return its job."""
        model = self.filter_model(model_name)
        model.check_merges()
        options = replace(options, levels=options.levels or model.levels)
        shape = StepShape(model.observation_size, len(options.levels), len(options.horizon), 0)
        self._check_reply("horizon", shape.numbers)
        request_size.grow(lease, "states", request_size.merge_bytes(model, shape, options))
        return self._submit(MergeJob(self._stages(model_name, model).merging, options))

    def filter_model(self, model_name: ModelChoice, size: int | None = None) -> FilterRuntime:
        """Return a filter for observations with `size` components.

        Raises:
            InvalidRequest, NotFound: If the model does not support this size, or there is no such model.
        """
        if isinstance(model_name, WithCovariates):
            return self.filter_model(model_name.choice, size).with_covariates(model_name.covariates)
        if isinstance(model_name, ServedSystem):
            return model_name.model
        model: FilterRuntime = find_model(self.models.filters, model_name, "filter")
        return model if size is None else model.sized(size)

    def merge_model(self, model_name: ModelChoice) -> ModelChoice:
        """Return the choice of the filter for a merge. The default is the first filter that is not built in."""
        bundles = (name for name, model in self.models.filters.items() if not model.suits_any)
        return next(bundles, None) if model_name is None else model_name

    def drain(self, seconds: float) -> None:
        """Reject new work, end live streams, and interrupt requests that take longer than `seconds`. This call blocks.

        Interrupted jobs return a state from which they can be continued.
        """
        self._scheduler.drain(seconds)

    def close(self) -> None:
        """Stop the workers. Requests that are not complete end with NotReady."""
        self._scheduler.close()
        self._many.close()
        self._drift.close()

    def _stages(self, choice: ModelChoice, model: FilterRuntime) -> FilterStages:
        return choice.stages if isinstance(choice, ServedSystem) else self._served.get_stages(model)

    def language(self, name: str | None) -> Language:
        """Return a language model.

        Raises:
            NotFound: If there is no such model.
        """
        model: Language = find_model(self.models.languages, name, "language model")
        return model

    def _filter_job(self, choice: ModelChoice, model: FilterRuntime, options: FilterOptions) -> FilterJob | SequenceJob:
        stages = self._stages(choice, model)
        return SequenceJob(stages.sequences, options) if options.needs_whole else FilterJob(stages.filtering, options)

    def _check_reply(self, param: str, numbers: int) -> None:
        request_size.check_reply_numbers(param, numbers, self._limits.max_reply_numbers)

    def _submit(self, job: AnyJob) -> AnyJob:
        self._scheduler.submit(job)
        return job

    def _check_mode(self, model: Language, options: GenerateOptions) -> None:
        if options.mode is not None and options.mode not in model.modes:
            choices = " and ".join(f'"{mode}"' for mode in model.modes)
            raise InvalidRequest(
                f"{options.names.decode}: {model.name!r} supports only {choices}.",
                param=options.names.decode,
                code="no_such_mode",
            )
        for name, is_requested in (("state", options.resumed is not None), ("return_state", options.returns_state)):
            if is_requested:
                self.check_has_state(model.name, name)
