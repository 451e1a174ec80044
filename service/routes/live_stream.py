"""A live stream of /filter/stream."""

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

# Number of observations with small replies for which a stream keeps memory reserved.
PIPELINED = 2


@dataclass
class LiveStream:
    """An open live stream. It parses observations, reserves memory for their replies, and ends when it is idle.

    Attributes:
        job: Job that filters the observations.
        exchange: Object that opens and saves the states of the request.
        model: Name of the model.
        passes: Number of reweighting passes.
        size: Number of components of an observation.
        has_capacity: Event that is set when memory for replies was released.
        lease: Reserved memory for replies.
        fields: Names of the fields of each reply. None selects all fields.
        notes: Warnings that are sent with each state and at the end.
        known: Names of the columns whose future values are known.
        received_at: Time of the event loop at which the last observation was received.
        timer: Timer that ends the stream when it is idle.
        leased_replies: Number of replies for which memory is reserved.
        sending: Number of replies that are being sent.
        frames: Interface for passing frames without waking a task, if the server supports it.
        small_bytes: Maximum size of frames that are passed in this way.
    """

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
    received_at: float = 0.0
    timer: asyncio.TimerHandle | None = None
    leased_replies: int = 1
    sending: int = 0
    frames: Frames | None = None
    small_bytes: int = 0

    @property
    def may_read(self) -> bool:
        """Whether another observation may be read. If there is not enough memory for its reply, this tries to reserve
        it. Memory for one reply is always reserved."""
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
        """Wait until `may_read` is True."""
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
        """Return the reply to the first frame of the client."""
        job = self.job
        return StreamReady(True, self.model, self.passes, job.seed, self.size, job.options.levels, job.count)

    def parse(self, document: Any) -> Observed | None:
        """Validate a frame, and return its observation. Return None if the frame closes the stream.

        Raises:
            InvalidRequest, InvalidInput: If a field is invalid.
        """
        if type(document) is dict and "close" in document:
            validated(StreamClose, document, FRAME)
            return None
        t, y, noise, control, bias, known = parse_observation(document)
        if t is None and (needs := self.job.options.alarm.needs_times):
            raise InvalidRequest(f"alarm.{needs} requires a time t in seconds.", param="t", code="no_times")
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
        """Return the values of the known columns at the time of a frame and at each horizon. Missing values are NaN."""
        leads = 1 + len(self.job.options.horizon)
        for name, column in known.items():
            if name not in self.known or len(column) > leads:
                expected = (
                    f"a list of at most {leads} values"
                    if name in self.known
                    else "one of the columns that `known` lists in the first frame"
                )
                raise InvalidRequest(f"known.{name} must be {expected}.", param=f"known.{name}", code="known_mismatch")
        found = np.full((leads, len(self.known)), np.nan)
        for k, name in enumerate(self.known):
            values = np.array(known.get(name, ()), np.float64)
            found[: len(values), k] = values
        return found.ravel().tolist()

    def parse_row(self, document: Any) -> Observed | RefusedRow | None:
        """Parse a frame with `parse`. If the frame is invalid, return a rejected row instead of raising an error.
        Return None if the frame closes the stream."""
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
                f'{error}; set "size": {len(y)} in the first frame', param="y", code="shape_mismatch"
            ) from None

    def use_direct_path(self, frames: Frames, small_bytes: int) -> None:
        """Process observations without waking a task, if this is possible without waiting and the frame is valid.

        Args:
            frames: Interface of the connection.
            small_bytes: Maximum size of frames that are processed in this way. With a quota, which may delay frames, it
                is 0.
        """
        self.frames, self.small_bytes = frames, small_bytes
        if small_bytes:
            frames.listen(self._on_frame)
        if self.job.runs_on_loop:
            self.job.listen(self._send_steps)

    def _on_frame(self, frame: bytes) -> bool:
        """Process a frame if it contains a valid observation and there is memory for the reply. Otherwise, return
        False, so that `_read` processes it."""
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
        """Send events if all of them are steps without a state. Otherwise, return False, so that `_reply` sends
        them."""
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
        """End the stream when it receives no observation for the given time. All frames share one timer, because a
        timer for each frame would be expensive."""
        self.received_at = get_running_loop().time()
        self._check_idle(seconds)

    def _check_idle(self, seconds: float) -> None:
        loop = get_running_loop()
        if not self.job.is_idle:  # the client waits for a reply
            self.received_at = loop.time()
        if loop.time() - self.received_at >= seconds:
            self.job.close(reason="idle")
        else:
            self.timer = loop.call_at(self.received_at + seconds, self._check_idle, seconds)

    def close(self) -> None:
        """Remove the callbacks and the timer of the stream."""
        if self.frames is not None:
            self.frames.listen(None)
            self.job.listen(None)
        if self.timer is not None:
            self.timer.cancel()


def refused_row(error: InvalidInput | InvalidRequest, document: Any = None) -> RefusedRow:
    """Return the rejected row for a frame, given the error and the document of the frame, if there is one."""
    t: Any = document.get("t") if isinstance(document, dict) else None
    is_valid = type(t) in (int, float) and -LARGEST_TIME <= t <= LARGEST_TIME
    return RefusedRow(InvalidInput(error.message, param=error.param, code=error.code), float(t) if is_valid else None)
