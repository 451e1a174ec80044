"""Check which changes of the configuration a reload can apply."""

from __future__ import annotations

import logging

from rfa.library.watch.config import Config, Sources

logger = logging.getLogger("rfa.watch")


def reloadable(old: Config, new: Config) -> Config:
    """Return the new configuration with the old storage of the states. Log the changes that take effect only after a
    restart.

    Raises:
        ValueError: If the new configuration has another kind of source.
    """
    if (before := _kind(old)) != (after := _kind(new)):
        raise ValueError(f"source: a change from {before} to {after} requires a restart")
    parts = {
        "source": (old.source, new.source) if before != "prometheus" else (None, None),
        "sink.metrics": (old.sink.metrics, new.sink.metrics),
        "state": (old.state, new.state),
    }
    if changed := [name for name, (one, other) in parts.items() if one != other]:
        logger.warning("changes of %s take effect after a restart", ", ".join(changed))
    return new.model_copy(update={"state": old.state})


def _kind(config: Config) -> str:
    return next(name for name in Sources.model_fields if getattr(config.source, name) is not None)
