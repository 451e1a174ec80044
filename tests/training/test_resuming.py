"""Checkpoints on disk: whole or not there whenever a kill comes, finite, and refused where they are damaged."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rfa.training.resuming import CHECKPOINT, DIGESTS_FILE, atomic_checkpoint, has_checkpoint


def write(out, value):
    """A checkpoint of files that all tell this number."""
    with atomic_checkpoint(out) as folder:
        for name in CHECKPOINT:
            if name.endswith(".safetensors"):
                save_file({"w": torch.tensor([value])}, folder / name)
            else:
                (folder / name).write_text(str(value))


def contents(out):
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture
def run(tmp_path):
    write(tmp_path / "run", 1.0)
    return tmp_path / "run"


def test_digests_are_as_sha256sum_has_them(run):
    lines = [f"{hashlib.sha256((run / name).read_bytes()).hexdigest()}  {name}\n" for name in sorted(CHECKPOINT)]
    assert (run / DIGESTS_FILE).read_text() == "".join(lines)


@pytest.mark.parametrize("moves", range(len(CHECKPOINT) + 2))
def test_a_kill_leaves_one_checkpoint_whole(run, tmp_path, monkeypatch, moves):
    """Whichever file is the last to take its place: before the first move the old one is there, after it the new."""
    write(tmp_path / "next", 2.0)
    done, rename, replace = [], Path.rename, Path.replace

    def killed(move):
        def moved(self, target):
            if len(done) == moves:
                raise SystemExit
            done.append(self)
            return move(self, target)

        return moved

    monkeypatch.setattr(Path, "rename", killed(rename))
    monkeypatch.setattr(Path, "replace", killed(replace))
    before = contents(run)
    with pytest.raises(SystemExit):
        write(run, 2.0)
    monkeypatch.undo()
    assert has_checkpoint(run)
    assert contents(run) == (contents(tmp_path / "next") if moves else before)


def test_what_a_kill_left_unfinished_is_removed(run):
    before = contents(run)
    shutil.copytree(run, run / ".checkpoint-a1b2c3" / "files")
    assert has_checkpoint(run)
    assert contents(run) == before


DAMAGES = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "junk": lambda path: path.write_bytes(b"\xff{"),
    "list": lambda path: path.write_text("[]"),
    "null": lambda path: path.write_text("null"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", CHECKPOINT)
def test_a_damaged_file_is_named(run, name, damage):
    DAMAGES[damage](run / name)
    before = contents(run)
    with pytest.raises(ValueError, match=rf"run/{name} .*{DIGESTS_FILE}; restore .*, or choose another --out"):
        has_checkpoint(run)
    assert contents(run) == before


@pytest.mark.parametrize("damage", sorted(DAMAGES.keys() - {"cut"}))
def test_damaged_digests_are_not_gone_on_from(run, damage):
    DAMAGES[damage](run / DIGESTS_FILE)
    with pytest.raises(ValueError, match=rf"{DIGESTS_FILE}.*choose another --out"):
        has_checkpoint(run)


def test_a_folder_of_other_things_is_begun_in(tmp_path):
    assert not has_checkpoint(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("mine")
    assert not has_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"model.safetensors but no checkpoint.sha256"):
        has_checkpoint(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_saved(run, tmp_path, value):
    before = contents(run)
    with pytest.raises(FloatingPointError, match=r"w of .*safetensors is not finite; the last checkpoint is intact"):
        write(run, value)
    assert contents(run) == before
    with pytest.raises(FloatingPointError, match="nothing was saved"):
        write(tmp_path / "new", value)
    assert not has_checkpoint(tmp_path / "new") and not contents(tmp_path / "new")
