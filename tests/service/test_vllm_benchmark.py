"""vLLM's serving benchmark, unmodified, against a live server: every request succeeds.

`VLLM_BENCH_PYTHON` names an interpreter that can import `vllm.benchmarks.serve`. It does not need an accelerator.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("VLLM_BENCH_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="VLLM_BENCH_PYTHON does not name an interpreter with vLLM's benchmark"),
]
# What `vllm bench serve` does after it has set up vLLM's platform, which the client does not use.
CLIENT = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main

parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
REQUESTS, NEW_TOKENS = 24, 16
COMPLETIONS = ["--backend", "openai", "--endpoint", "/v1/completions"]
RANDOM = ["--dataset-name", "random", "--random-input-len", "48", "--random-output-len", str(NEW_TOKENS)]
PREFIXES = [
    "--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "2",
    "--prefix-repetition-prefix-len", "64",
    "--prefix-repetition-suffix-len", "8", "--prefix-repetition-output-len", str(NEW_TOKENS), "--num-warmups", "2",
]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        [*COMPLETIONS, *RANDOM, "--max-concurrency", "8"],
        [*COMPLETIONS, *RANDOM, "--request-rate", "40", "--logprobs", "5", "--temperature", "0.7", "--top-p", "0.9"],
        [*COMPLETIONS, *PREFIXES],
        ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", *RANDOM],
    ],
    ids=["completions", "sampled", "prefixes", "chat"],
)
def test_every_request_succeeds(live: Any, books_bundle: Path, tmp_path: Path, options: list[str]) -> None:
    with live(bundles=(books_bundle,)) as address:
        server = ["--base-url", address, "--model", "books", "--tokenizer", str(books_bundle)]
        saved = ["--num-prompts", str(REQUESTS), "--save-result", "--save-detailed", "--result-dir", str(tmp_path)]
        command = [PYTHON, "-c", CLIENT, *server, *saved, "--result-filename", "found.json", *options]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["completed"], found["failed"]) == (REQUESTS, 0), found["errors"]
    assert not any(found["errors"]) and found["output_lens"] == [NEW_TOKENS] * REQUESTS
