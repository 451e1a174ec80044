"""Deliver the events of jobs from worker threads to the event loops of their readers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from rfa.service.engine.job import Job

logger = logging.getLogger("rfa.engine")
Delivery = tuple[Job, list[Any]]


def send_events(jobs: Sequence[Job], own: asyncio.AbstractEventLoop | None = None) -> list[Delivery]:
    """Send the new events of jobs to the event loops of their readers. Each event loop is woken only once. The caller
    must hold the lock of the scheduler.

    Args:
        own: Event loop of the caller, if it runs on one.

    Returns:
        The events for `own`. The caller must pass them to `deliver_all`.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[Delivery]] = {}
    for job in jobs:
        if job._outbox:
            job._backlog += job._emitted
            job._emitted = 0
            by_loop.setdefault(job._loop, []).append((job, job._outbox))
            job._outbox = []
    own_deliveries = [] if own is None else by_loop.pop(own, [])
    for loop, deliveries in by_loop.items():
        try:
            loop.call_soon_threadsafe(deliver_all, deliveries)
        except RuntimeError:
            logger.debug("events for %d requests were discarded, because their event loop has closed", len(deliveries))
    return own_deliveries


def deliver_all(deliveries: list[Delivery]) -> None:
    """Deliver events to their jobs. Call this on the event loop of the jobs."""
    for job, events in deliveries:
        job.deliver(events)
