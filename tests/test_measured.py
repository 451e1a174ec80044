"""Results have an origin and are written atomically."""

import json

import pytest

from rfa.measured import origin, write_result


def test_a_result_says_where_it_comes_from() -> None:
    found = origin("rfa bench decode")
    assert list(found) == ["commit", "hardware", "command"] and found["command"] == "rfa bench decode"
    assert {"cpu", "cores", "date"} <= set(found["hardware"])


def test_a_result_is_written_as_a_whole_or_not_at_all(tmp_path) -> None:
    path = tmp_path / "new" / "result.json"
    write_result(path, {"value": 1.0})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_result(path, {"value": float("nan")})
    assert json.loads(path.read_text()) == {"value": 1.0}
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]
