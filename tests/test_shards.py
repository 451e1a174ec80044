"""`make test-all` in shards: each file is in one, and passed files are not repeated."""

from types import SimpleNamespace

import pytest

from tests.shards import Journal, is_in_shard, shard


def test_each_file_is_in_one_shard() -> None:
    for file in (f"tests/test_{k}.py" for k in range(50)):
        assert sum(is_in_shard(file, index, 4) for index in range(1, 5)) == 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b"])
def test_a_shard_is_one_of_n(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        shard(text)


def test_only_files_whose_tests_all_passed_are_written(tmp_path) -> None:
    journal = Journal(tmp_path / "passed")
    journal.expect(["a.py::one", "a.py::two", "b.py::one", "c.py::one", "c.py::two"])
    ends = {"a.py::one": False, "b.py::one": True, "c.py::one": False, "a.py::two": False}
    for nodeid, fails in ends.items():
        for when in ("setup", "call", "teardown"):
            report = SimpleNamespace(nodeid=nodeid, when=when, failed=fails and when == "call")
            journal.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    assert (tmp_path / "passed").read_text().split() == ["a.py"]
