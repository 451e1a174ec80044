"""The model of cost: clocks computed by hand on made-up machine code and a made-up part, and the laws it must obey."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from rfa.benchmarks.cost import calls as cost_calls
from rfa.benchmarks.cost import check as cost_check
from rfa.benchmarks.cost import report as cost
from rfa.benchmarks.cost.calls import Kernel, Shape, SourceLoop, kernel_of
from rfa.benchmarks.cost.estimate import estimate, turn_of
from rfa.benchmarks.cost.gpus import GPUS, Gpu
from rfa.benchmarks.cost.machine import Call, compile_calls, machine
from rfa.benchmarks.cost.model import KINDS, Estimate, Turn, pipes
from rfa.benchmarks.kernels.sass import matrix_loops

# Two loops with products, a loop around the second one, and one without products; the second waits with a copy ahead.
# Of a warp, a turn of the first: 2 · 16 · 8 · 16 multiply-accumulates; 8 instructions, 1 of them MUFU, 2 FFMA.
TEXT = """
.text.toy:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0010*/                   DEPBAR.LE SB0, 0x0 ;
        /*0020*/                   HMMA.16816.F32.BF16 R28, R36, R32, RZ ;
        /*0030*/                   HMMA.16816.F32.BF16 R28, R36, R32, RZ ;
        /*0040*/                   MUFU.EX2 R52, R52 ;
        /*0050*/                   FFMA R1, R1, R1, R1 ;
        /*0060*/                   FFMA R1, R1, R1, R1 ;
        /*0070*/                   LDGDEPBAR ;
        /*0080*/              @!P2 BRA `(.L_x_0) ;
.L_x_1:
        /*0090*/                   MUFU.RCP R52, R52 ;
.L_x_2:
        /*00a0*/                   DEPBAR.LE SB0, 0x2 ;
        /*00b0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00c0*/                   LDSM.16.M88.4 R36, [R49+UR4] ;
        /*00d0*/                   HMMA.16816.F32.BF16 R28, R36, R32, RZ ;
        /*00e0*/                   HMMA.16816.F32.BF16 R28, R36, R32, RZ ;
        /*00f0*/                   LDGDEPBAR ;
        /*0100*/                   LDGDEPBAR ;
        /*0110*/              @!P2 BRA `(.L_x_2) ;
        /*0120*/              @!P3 BRA `(.L_x_1) ;
.L_x_3:
        /*0130*/                   FADD R1, R1, R1 ;
        /*0140*/              @!P4 BRA `(.L_x_3) ;
        /*0150*/                   EXIT ;
"""
RESOURCES = {"registers": 64, "shared_bytes": 15 * 1024, "warps": 8, "stages": 2, "constants": {}}
TOY = machine(TEXT, kernel="toy", architecture=80, **RESOURCES)
# 8 warps do 32,768 multiply-accumulates a turn: 32 scores of 1,024 each.
LOOPS = (SourceLoop("first", 32, 1024, 1000.0), SourceLoop("second", 32, 1024, 0.0))
PART = Gpu("toy", 80, 2, 1.0, "made up", 1024.0, 64, 64, 64, 64 * 1024, 300.0, 500.0, 10.0, 1e12, gap=0.0)


def test_loops_are_those_with_products_in_the_order_of_the_source():
    assert [loop.issued for loop in matrix_loops(TEXT)] == [8, 8]
    assert [loop.count("LDSM") for loop in matrix_loops(TEXT)] == [0, 1]


def test_pipes_by_hand():
    found = pipes(TOY.loops[0].opcodes, 8, PART)
    # 256 threads: 8 instructions over 128 lanes, 2 FFMA over 64, 1 MUFU over 16.
    assert found == {"issue": 16.0, "fma": 8.0, "alu": 0.0, "mufu": 16.0, "shared": 0.0}
    assert pipes(TOY.loops[1].opcodes, 8, PART)["shared"] == 256 * 4 / 32, "LDSM of four matrices moves four words"


def test_a_turn_by_hand():
    first, second = (turn_of(TOY, *pair, PART) for pair in zip(TOY.loops, LOOPS, strict=True))
    assert (first.tensor, first.vector, first.l2, first.latency, first.ahead) == (64.0, 16.0, 100.0, 300.0, 0.0)
    assert first.fixed == 66.0, "two products, no barrier"
    assert second.fixed == 96.0, "and a barrier"
    assert (first.in_line, second.in_line) == (16 + 16, 0 + 32)
    assert (first.bound_by, second.bound_by) == ("l2", "tensor")
    # Alone: 64 + 16, then 300 + 66 of waiting; two CTAs hide 80 of it and share the rest; of the second loop a turn of
    # 96 hides as much. In line, 16 more.
    assert first.clocks(1) == Estimate(100, 446, 462)
    assert first.clocks(2) == Estimate(100, 80 + (366 - 80) / 2, 96 + (366 - 96) / 2)
    assert second.clocks(1) == Estimate(64, 64 + 32 + (300 - 96) + 96, 64 + 32 + (300 - 96) + 96)
    assert second.clocks(9) == Estimate(64, 96, 96), "others hide all of it"


def test_a_kernel_by_hand():
    turn = turn_of(TOY, TOY.loops[0], LOOPS[0], PART)
    source = Kernel(LOOPS, [(3, 0)] * 5, trips=1)
    found, turns = estimate(TOY, source, PART)
    assert turns[0] == turn
    # 4 CTAs of 15 + 1 KB an SM. Beside the loops: 22 - 16 instructions of a warp, 2 of them MUFU-free and one MUFU.RCP.
    assert PART.resident(64, 15 * 1024, 8) == 4
    assert found.bound == pytest.approx(5 * (16 + 3 * 100) / 2 / 1e9)
    # All five run at once, each for 4 shares of an SM; it waits for memory, then for the first keys.
    alone = 4 * 16 + 500 + 300 + 4 * 3 * turn.clocks(4).predicted
    assert found.predicted == pytest.approx(alone / 1e9)
    assert found.bound < found.predicted < found.serial


TURNS = [
    Turn(tensor, vector, vector + more, fixed=fixed, latency=latency)
    for tensor, vector, more, fixed, latency in itertools.product(
        (50, 200, 400), (100, 300), (0, 200), (0, 150), (0, 300, 2000)
    )
]


@pytest.mark.parametrize("resident", [1, 2, 4])
def test_the_prediction_lies_between_the_ends(resident):
    for turn, ahead in itertools.product(TURNS, (0, 1, 3)):
        found = replace(turn, ahead=ahead).clocks(resident)
        assert found.bound <= found.predicted <= found.serial, turn


def test_more_stages_and_more_company_are_never_slower():
    for turn in TURNS:
        for kind in KINDS:
            by_ahead = [getattr(replace(turn, ahead=ahead).clocks(1), kind) for ahead in range(4)]
            by_company = [getattr(turn.clocks(resident), kind) for resident in range(1, 5)]
            for values in (by_ahead, by_company):
                assert all(after <= before for before, after in itertools.pairwise(values)), (turn, kind)


@pytest.mark.parametrize("length", cost_calls.LENGTHS)
@pytest.mark.parametrize(
    ("pass_name", "name", "constants"),
    [
        ("forward", "_forward_kernel", {"BM": 128, "BN": 64}),
        ("backward", "_rows_kernel", {"BM": 128, "BN": 32, "BD": 16}),
        ("backward", "_columns_kernel", {"BM": 32, "BN": 128}),
    ],
)
def test_the_turns_cover_every_pair_once(pass_name, name, constants, length):
    shape = Shape(64, length)
    kernel = kernel_of(name, constants, shape, pass_name)
    scores = sum(n * loop.scores for own in kernel.turns for n, loop in zip(own, kernel.loops, strict=True))
    block = 128
    # All pairs of whole blocks below the diagonal, and the blocks on it in full.
    below = length * (length + block) / 2
    assert scores == shape.batch * shape.heads * below
    assert len(kernel.turns) == shape.batch * shape.heads * length // block


def test_a_kernel_compiled_here_has_the_loops_of_its_source():
    (existing,) = (one for one in cost_check.PUBLISHED if (one.gpu, one.width) == ("A100", 64))
    blocks = (128, 64, 4, 3)
    entry = cost_check.entry_of(existing, blocks)
    (plain,) = compile_calls([entry])[entry].kernels
    assert (plain.warps, plain.stages, plain.constants["BM"], plain.constants["BN"]) == (4, 3, *blocks[:2])
    # Two products a score, a copy asked for a turn before: the main loop and that of the diagonal.
    assert [(loop.matrix_work * 4, loop.ahead) for loop in plain.loops] == [(2 * 64 * 128 * 64, 1.0)] * 2
    main, diagonal = (sum(loop.opcodes.values()) for loop in plain.loops)
    assert main < diagonal, "the mask"
    source = cost_check.source_of(plain.constants, Shape(64, 512), True)
    found, _ = estimate(plain, source, GPUS["A100"])
    assert 0 < found.bound < found.predicted < found.serial
    assert cost_check.checked({entry: Call([plain])}) == [], "not all of its blocks are here"


@pytest.mark.slow
def test_other_launches_can_be_ranked():
    """The third stage asks for the keys a turn before: nothing waits for them. And two programs hide more than one."""
    entries = ["forward 64 128-64-8-2@90", "forward 64@90"]
    calls = compile_calls(entries)
    flatter, shipped = (cost.row("forward", Shape(64, 16_384), calls[entry], GPUS["H100"]) for entry in entries)
    assert (flatter["launch"], shipped["launch"]) == ([[128, 64, 8, 2]], [[64, 32, 4, 3]])
    assert (flatter["turn"]["ahead"], shipped["turn"]["ahead"]) == (0, 1)
    assert shipped["microseconds"]["predicted"] < flatter["microseconds"]["predicted"]
    assert shipped["refused"] == []
