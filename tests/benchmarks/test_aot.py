"""The static table of the kernels: figures of a toy kernel, and that the committed figures still hold.

Only a few of the shapes are compiled here (COMPILED_HERE), to keep the time of the tests; `rfa bench aot --check`
compiles all of them.
"""

import json

import pytest

from rfa.benchmarks.kernels import aot

COMPILED_HERE = {
    80: ["forward 128 fp16 precision", "backward columns 64 bf16", "slot step 16×64", "slot scan 16×64"],
    90: ["forward 64 bf16", "backward rows 64 bf16", "slot scan gradient 16×64", "slot values 16×64"],
}


@pytest.fixture(scope="module")
def toys():
    names = {"toy": aot.ARCHITECTURES, "toy spilling": [90]}
    module = "tests.benchmarks.aot_toy"
    rows = [row for name, on in names.items() for row in aot.compile_rows([name], list(on), module=module, jobs=1)]
    return {(row["kernel"], row["architecture"]): row for row in rows}


@pytest.mark.parametrize("architecture", aot.ARCHITECTURES)
def test_a_kernel_compiled_here_has_the_figures_it_must_have(toys, architecture):
    row = toys["toy", architecture]
    # One exponential a score, whatever the machine; at least that, its sum, and what the products need.
    assert row["mufu_per_score"] == 1.0
    assert 2.5 < row["instructions_per_score"] < 6
    # q and at least one block of k.
    assert 128 * 64 * 2 <= row["shared_bytes"] <= 48 * 1024
    assert 0 < row["registers"] < 128
    assert row["spills"] == row["loop_spills"] == row["stack_bytes"] == 0
    assert (row["warps"], row["stages"], row["block"]) == (8, 2, [128, 64])


def test_spills_are_seen(toys):
    spilling = toys["toy spilling", 90]
    assert 100 < spilling["loop_spills"] <= spilling["spills"]
    assert spilling["stack_bytes"] > 100
    assert aot.refused([toys["toy", 90]]) == []
    outside = {**toys["toy", 90], "spills": 3, "stack_bytes": 8}
    assert aot.refused([outside]) == []
    assert aot.refused([{**outside, "loop_spills": 1}]) == ["toy, sm_90: 1 spills in the main loop"]
    large = {**outside, "architecture": 89, "shared_bytes": 102_400}
    assert aot.refused([large]) == ["toy, sm_89: 102400 bytes of shared memory, a program has 101376 at most"]


@pytest.fixture(scope="module")
def committed():
    return json.loads(aot.RESULT.read_text())


@pytest.mark.parametrize("architecture", [80, pytest.param(90, marks=pytest.mark.slow)])
def test_the_committed_figures_still_hold(architecture, committed):
    rows = aot.compile_rows(COMPILED_HERE[architecture], [architecture], jobs=1)
    assert aot.grown(rows, committed) == []
