"""A few hundred mutated files; the rest by `python -m tests.soak.file_mutations`."""

from __future__ import annotations

import pytest

from tests.soak.file_mutations import run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_file_is_read_or_refused(seed: int) -> None:
    counts, failed = run(seed, range(100), checks_time=False)
    assert not failed
    assert min(counts["read"], counts["refused"]) > 10
