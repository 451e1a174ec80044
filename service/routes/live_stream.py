"""State of a live stream of /filter/stream."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfa.runtime.errors import InvalidInput, RefusedRow
from rfa.runtime.outputs import FilterWarning
from rfa.runtime.uncertainty.input import LARGEST_TIME, bias_out_of_range, check_size
from rfa.runtime.uncertainty.steps import select_fields
from rfa.service.body import decode_json
from rfa.service.encoding import dumps
from rfa.service.engine.filter.stream import Observed, StreamJob, StreamStep
from rfa.service.errors import InvalidRequest, Overloaded
from rfa.service.frames import Frames
from rfa.service.memory import SMALL_BYTES, Lease
from rfa.service.routes.state import StateExchange
from rfa.service.routes.stream_frames import FRAME, is_observation, parse_observation
from rfa.service.schemas.filter_replies import StreamReady
from rfa.service.schemas.stream_requests import StreamClose
from rfa.service.validation import validated

# Number of small observations that a stream may have pending without reserving memory.
PIPELINED = 2


@dataclass
class LiveStream:
    """An open live stream. It parses observations, reserves memory for their replies, and ends when it is idle."""

    job: StreamJob
    exchange: StateExchange
    model: str
    passes: int
    size: int
    has_capacity: asyncio.Event
    lease: Lease
    fields: Sequence[str] | None
    notes: list[FilterWarning]
    known: Sequence[str] = ()
    received_at: float = 0.0  # loop time of the last observation
    timer: asyncio.TimerHandle | None = None
    leased_replies: int = 1
    sending: int = 0
    frames: Frames | None = None
    small_bytes: int = 0

    @property
    def may_read(self) -> bool:
        """Whether there is memory for the reply to one more observation. It is always true if no observation is
        pending."""
        outstanding = self.job.unanswered + self.sending + 1
        if self.job.is_full:
            return False
        if outstanding > self.leased_replies:
            try:
                self.lease.grow((outstanding - self.leased_replies) * self.job.answer_bytes)
            except Overloaded:
                return False
            self.leased_replies = outstanding
        return True

    async def wait_for_capacity(self) -> None:
        """Wait until `may_read` is true."""
        while not self.may_read:
            self.has_capacity.clear()
            await self.has_capacity.wait()

    def on_replies_sent(self) -> None:
        """Release the memory of the replies that were sent, and continue to read."""
        self.sending = 0
        needed = max(self.job.unanswered, PIPELINED if self.job.answer_bytes < SMALL_BYTES else 1)
        if needed < self.leased_replies:
            self.lease.shrink((self.leased_replies - needed) * self.job.answer_bytes)
            self.leased_replies = needed
        self.has_capacity.set()

    def ready(self) -> StreamReady:
        """Return the reply to the first frame."""
        job = self.job
        return StreamReady(True, self.model, self.passes, job.seed, self.size, job.options.levels, job.count)

    def parse(self, document: Any) -> Observed | None:
        """Return the observation of a frame, or None if the frame closes the stream.

        Raises:
            InvalidRequest: If a field is invalid. The message names it.
        """
        if type(document) is dict and "close" in document:
            validated(StreamClose, document, FRAME)
            return None
        t, y, noise, control, bias, known = parse_observation(document)
        if t is None and (needs := self.job.options.alarm.needs_times):
            raise InvalidRequest(f"t is required by alarm.{needs}, with times in seconds.", param="t", code="no_times")
        if y is not None:
            self._check_columns(y)
        if control is not None:
            model = self.job.filtering.model
            model.check_input(self.job.options.alarm, None, is_given=True)
            check_size("input", control, model.state_size, self.model)
        if bias is not None:
            check_size("bias", bias, self.size, self.model)
            if y is not None:
                y = [None if value is None else value - offset for value, offset in zip(y, bias, strict=True)]
                if not is_observation(y):
                    raise bias_out_of_range("bias")
        if known is not None:
            control = self._covariates(known)
        return Observed(t, y, 1.0 if noise is None else noise, control)

    def _covariates(self, known: Mapping[str, list[float | None]]) -> list[float]:
        """Return the known covariates at this time and at each horizon."""
        leads = 1 + len(self.job.options.horizon)
        for name, column in known.items():
            if name not in self.known or len(column) > leads:
                expected = (
                    f"a list of at most {leads} values"
                    if name in self.known
                    else "the name of a column listed in `known` of the first frame"
                )
                raise InvalidRequest(f"known.{name} must be {expected}.", param=f"known.{name}", code="known_mismatch")
        found = np.full((leads, len(self.known)), np.nan)
        for k, name in enumerate(self.known):
            values = np.array(known.get(name, ()), np.float64)
            found[: len(values), k] = values
        return found.ravel().tolist()

    def parse_row(self, document: Any) -> Observed | RefusedRow | None:
        """Parse a frame like `parse`, but return an invalid observation as a rejected row."""
        try:
            return self.parse(document)
        except (InvalidInput, InvalidRequest) as error:
            return refused_row(error, document)

    def _check_columns(self, y: list[float | None]) -> None:
        try:
            check_size("y", y, self.size, self.model)
        except InvalidInput as error:
            if not self.job.filtering.model.suits_any:
                raise
            raise InvalidRequest(
                f'{error}: set "size": {len(y)} in the first frame', param="y", code="shape_mismatch"
            ) from None

    def use_direct_path(self, frames: Frames, small_bytes: int) -> None:
        """Process observations without waking a task, as long as no call must wait and every frame is valid.

        Args:
            small_bytes: size of the largest frame that is processed in this way. It is 0 if there is a quota, which
                delays frames.
        """
        self.frames, self.small_bytes = frames, small_bytes
        if small_bytes:
            frames.listen(self._on_frame)
        if self.job.runs_on_loop:
            self.job.listen(self._send_steps)

    def _on_frame(self, frame: bytes) -> bool:
        """Process an observation if there is memory for its reply. Return False to leave the frame to `_read`."""
        if len(frame) > self.small_bytes or not self.may_read:
            return False
        try:
            observed = self.parse(decode_json(frame, "A frame"))
        except Exception:  # `_read` reports it
            return False
        if observed is None:
            return False
        self.job.push(observed)
        self.received_at = get_running_loop().time()
        return True

    def _send_steps(self, events: Sequence[Any]) -> bool:
        """Send steps without a state. Return False to leave the events to `_reply`."""
        assert self.frames is not None
        for event in events:
            if not isinstance(event, StreamStep) or event.state is not None:
                return False
        try:
            frames = [dumps(select_fields(event.step, self.fields)) for event in events]
        except Exception:  # `_reply` reports it
            return False
        if not self.frames.send_now(frames):
            return False
        self.job.consumed(len(events))
        self.on_replies_sent()
        return True

    def end_when_idle(self, seconds: float) -> None:
        """End the stream after this time without an observation. One timer is used for all frames, because one timer
        for each frame would be expensive."""
        self.received_at = get_running_loop().time()
        self._check_idle(seconds)

    def _check_idle(self, seconds: float) -> None:
        loop = get_running_loop()
        if not self.job.is_idle:  # otherwise the client waits for a reply
            self.received_at = loop.time()
        if loop.time() - self.received_at >= seconds:
            self.job.close(reason="idle")
        else:
            self.timer = loop.call_at(self.received_at + seconds, self._check_idle, seconds)

    def close(self) -> None:
        """Remove callbacks and the timer."""
        if self.frames is not None:
            self.frames.listen(None)
            self.job.listen(None)
        if self.timer is not None:
            self.timer.cancel()


def refused_row(error: InvalidInput | InvalidRequest, document: Any = None) -> RefusedRow:
    """Return the error for a rejected frame."""
    t: Any = document.get("t") if isinstance(document, dict) else None
    is_valid = type(t) in (int, float) and -LARGEST_TIME <= t <= LARGEST_TIME
    return RefusedRow(InvalidInput(error.message, param=error.param, code=error.code), float(t) if is_valid else None)
