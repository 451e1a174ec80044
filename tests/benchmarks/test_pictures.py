"""The documents' pictures are drawn from what `rfa` answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site import pictures


@pytest.mark.slow
def test_the_committed_pictures_come_from_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FIGURES", tmp_path)
    pictures.main()
    assert {path.name for path in tmp_path.iterdir()} == {"stream.png", "tokens.png", "samples.png"}
