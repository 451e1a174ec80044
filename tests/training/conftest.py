"""Fixtures of the tests of training."""

import pytest


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    text = "the cat sat on the mat and the dog sat on the log. " * 400
    (folder / "train.txt").write_text(text)
    (folder / "valid.txt").write_text(text[: len(text) // 4])
    return folder
