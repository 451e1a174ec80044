"""Stop a training with a signal."""

import signal


def stop_at(step, trainer, monkeypatch, number=signal.SIGTERM):
    """Raise a signal once, during the update of this step."""
    original = trainer.update

    def update(self, *args):
        losses = original(self, *args)
        if self.step == step:
            monkeypatch.setattr(trainer, "update", original)
            signal.raise_signal(number)
        return losses

    monkeypatch.setattr(trainer, "update", update)
