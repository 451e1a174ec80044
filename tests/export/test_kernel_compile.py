"""Kernels compiled by a process of its own: what is shown meanwhile, how many there may be, and what that takes."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("triton")

from rfa.export import kernel_compile
from rfa.export.kernel_compile import ARCHITECTURES, KernelCompilationError, kernel_files
from rfa.runtime.bundle.bundle import CONSTANTS_FILE, BundleError, open_bundle
from rfa.runtime.bundle.bundle_files import REQUIRED_FILES, REQUIRED_GRAPHS
from rfa.runtime.bundle.documents import canonical_json
from rfa.runtime.bundle.manifest import MAX_FILES, MAX_MANIFEST_BYTES, FileSpec
from rfa.runtime.bundle.stored_kernels import (
    KERNELS_FILE,
    MAX_KERNELS,
    MAX_KERNELS_BYTES,
    MAX_KERNELS_OF_A_GPU,
    KernelDocument,
)
from rfa.runtime.text.config import LanguageModelConfig
from tests.small_kernels import with_float32_kernels, with_kernels

CONFIG = LanguageModelConfig(vocab_size=16)


def worker(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Another program compiles."""
    monkeypatch.setattr(kernel_compile, "WORKER", (sys.executable, "-c", f"import json, sys, time\n{program}"))


def test_kernels_are_counted_before_the_first_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, f"print({MAX_KERNELS_OF_A_GPU + 1}, flush=True); time.sleep(60)")
    with pytest.raises(KernelCompilationError, match="81 kernels for sm_90, but a bundle can contain at most 80"):
        kernel_files(CONFIG, (90,))


def test_a_bar_tells_how_many_are_compiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        "number = json.loads(sys.argv[1])['architecture']\nprint(2)\nfor i in (1, 2): print(json.dumps([number, {}]))"
    )
    worker(monkeypatch, source)
    files = kernel_files(CONFIG, (80, 86, 90))
    assert json.loads(files[KERNELS_FILE]) == {"kernels": [80, 80, 86, 86, 90, 90]}
    shown = capsys.readouterr().err
    assert "compile:" in shown and "0/6" in shown, "an estimate for those that have not said it"


def test_a_compiler_that_ends_early_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, "sys.exit('no such GPU')")
    with pytest.raises(KernelCompilationError, match="compiling kernels for sm_80 failed: no such GPU"):
        kernel_files(CONFIG, (80,))


def test_a_bundle_holds_the_kernels_of_six_gpus(bundle_cache) -> None:
    """In number, in kernels.json and in the manifest."""
    assert MAX_KERNELS_OF_A_GPU * max(6, len(ARCHITECTURES)) <= MAX_KERNELS
    others = {*REQUIRED_FILES["lm"], *REQUIRED_GRAPHS["lm"], "step", "prefill", CONSTANTS_FILE, KERNELS_FILE}
    assert 2 * MAX_KERNELS + len(others) + 2 <= MAX_FILES, "the manifest and a signature"
    entries = [kernel.entry.model_dump() for kernel in with_kernels(bundle_cache).kernels]
    longest = max(entries, key=lambda entry: len(canonical_json(entry)))
    full = {"kernels": [{**longest, "file": f"kernel-{number}.sm_80"} for number in range(MAX_KERNELS)]}
    assert len(canonical_json(full)) <= MAX_KERNELS_BYTES, "if all were the longest"
    assert len(KernelDocument.model_validate(full).kernels) == MAX_KERNELS
    with pytest.raises(ValueError, match="at most 480"):
        KernelDocument.model_validate({"kernels": [*full["kernels"], longest]})
    listed = {f"{'k' * 40}-{number}.sm_100.cubin": vars(FileSpec(1 << 22, "0" * 64)) for number in range(MAX_FILES)}
    assert 4 * len(canonical_json(listed)) <= MAX_MANIFEST_BYTES


def test_all_kernels_together_have_a_limit_too(bundle_cache, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = with_float32_kernels(bundle_cache)
    monkeypatch.setattr("rfa.runtime.bundle.bundle_files.MAX_ALL_CODE_BYTES", 1 << 16)
    with pytest.raises(BundleError, match=r"kernels.json: the size of the kernels is \d+ bytes, but at most 65536"):
        open_bundle(bundle.path)
