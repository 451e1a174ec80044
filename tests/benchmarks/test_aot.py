"""The static table of the kernels: how machine code is read, and that the committed figures still hold.

Only a few of the shapes are compiled here (COMPILED_HERE), to keep the time of the tests; `rfa bench aot --check`
compiles all of them.
"""

import copy
import itertools
import json

import pytest
from typer.testing import CliRunner

from rfa.benchmarks.kernels import aot
from rfa.benchmarks.kernels.sass import main_loop
from rfa.cli.main import app

COMPILED_HERE = {
    80: ["forward 128 fp16 precision", "backward columns 64 bf16", "slot step 16×64", "slot scan 16×64"],
    90: ["forward 64 bf16", "backward rows 64 bf16", "slot scan gradient 16×64", "slot values 16×64"],
}

# In the words of nvdisasm -c for sm_90, shortened: a loop that waits for its copy (an inner loop), two products a turn;
# then the loop over the blocks of the diagonal, with more instructions; then one with half the products, fewest of all.
RECORDED_90 = """
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90"
	.section	.text.attention,"ax",@progbits
        .global         attention
attention:
.text.attention:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P1 BRA `(.L_x_4) ;
.L_x_0:
        /*0020*/                   ULEA UR8, UR5, UR4, 0xe ;
.L_x_1:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P2, [UR8], R4 ;
        /*0040*/              @!P2 BRA `(.L_x_1) ;
        /*0050*/                   WARPGROUP.ARRIVE ;
        /*0060*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT ;
        /*0070*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR16], R24, gsb0 ;
        /*0080*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0090*/              @!P3 FMUL R5, R5, 0.5 ;
        /*00a0*/                   MUFU.EX2 R5, R5 ;
        /*00b0*/              @!P3 FMUL R5, R5, R5 ;
        /*00c0*/              @!P0 BRA `(.L_x_0) ;
.L_x_2:
        /*00d0*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT ;
        /*00e0*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR16], R24, gsb0 ;
        /*00f0*/                   ISETP.GE.AND P4, PT, R9, R8, PT ;
        /*0100*/                   FSEL R5, R5, -INF , !P4 ;
        /*0110*/                   MUFU.LG2 R6, R6 ;
        /*0120*/                   MUFU.LG2 R7, R7 ;
        /*0130*/                   MUFU.EX2 R5, R5 ;
        /*0140*/                   BRA.U !UP0, `(.L_x_3) ;
        /*0150*/                   FADD R6, R6, R7 ;
.L_x_3:
        /*0160*/                   FADD R8, R6, R5 ;
        /*0170*/                   FADD R9, R6, R5 ;
        /*0180*/                   FADD R9, R9, R5 ;
        /*0190*/               @P5 BRA `(.L_x_2) ;
.L_x_4:
        /*01a0*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT ;
        /*01b0*/                   FMNMX R9, R9, R5, !PT ;
        /*01c0*/               @P6 BRA `(.L_x_4) ;
        /*01d0*/                   EXIT ;
.L_x_5:
        /*01e0*/                   BRA `(.L_x_5);
        /*01f0*/                   NOP;
.L_x_6:
"""
# One warp's share of two HGMMA.64x64x16.
TURN = 2 * 64 * 64 * 16 / 4

# For sm_100: one thread asks for the products, others wait by a loop of their own; a turn's products are 2 and 1 deep.
# Then a loop over half a block, whose second product is half as deep as the least that the tensor cores take.
RECORDED_100 = """
.text.toy:
        /*0000*/              @!P0 BRA `(.L_x_3) ;
.L_x_0:
        /*0010*/                   LDS.128 R36, [R49+UR4] ;
        /*0020*/              @!P1 BRA `(.L_x_1) ;
        /*0030*/                   UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR17], tmem[UR40], idesc[UR41], !UPT ;
        /*0040*/                   UTCHMMA gdesc[UR12], gdesc[UR14], tmem[UR17], tmem[UR40], idesc[UR41], UPT ;
        /*0050*/                   UTCBAR [UR4], URZ ;
.L_x_1:
        /*0060*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P2, [UR8], R4 ;
        /*0070*/              @!P2 BRA `(.L_x_1) ;
        /*0080*/                   LDTM.x32 R4, tmem[UR17] ;
        /*0090*/                   MUFU.EX2 R52, R52 ;
        /*00a0*/                   UTCHMMA tmem[UR15], gdesc[UR8], tmem[UR26], tmem[UR34], idesc[UR35], UPT ;
        /*00b0*/               @P3 BRA `(.L_x_0) ;
.L_x_2:
        /*00c0*/                   UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR17], tmem[UR40], idesc[UR41], !UPT ;
        /*00d0*/                   UTCHMMA gdesc[UR12], gdesc[UR14], tmem[UR17], tmem[UR40], idesc[UR41], UPT ;
        /*00e0*/                   MUFU.EX2 R52, R52 ;
        /*00f0*/               @P3 BRA `(.L_x_2) ;
.L_x_3:
        /*0100*/                   EXIT ;
"""


def test_the_main_loop_is_the_full_one_that_issues_least():
    found = main_loop(RECORDED_90, TURN)
    assert found.turns == 1
    assert found.loop.issued == 11, "the wait inside belongs to a turn"
    assert found.loop.count("MUFU") == 1
    assert found.loop.matrix_work == TURN


def test_on_sm_100_the_depths_of_its_products_tell_the_main_loop():
    found = main_loop(RECORDED_100, TURN, 3 * 16)
    assert (found.turns, found.loop.issued, found.loop.count("LDTM")) == (1, 11, 1)
    assert main_loop(RECORDED_100, TURN, 2 * 16).loop.issued == 4
    with pytest.raises(ValueError, match="no loop does the 64 depths of a turn"):
        main_loop(RECORDED_100, TURN, 4 * 16)


def test_without_products_the_main_loop_is_the_innermost_that_issues_most():
    assert main_loop(RECORDED_90, 0).loop.issued == 13


@pytest.fixture(scope="module")
def toys():
    rows = aot.compile_rows(["toy", "toy spilling"], [80, 90], module="tests.benchmarks.aot_toy", jobs=1)
    return {(row["kernel"], row["architecture"]): row for row in rows}


@pytest.mark.parametrize("architecture", [80, 90])
def test_a_kernel_compiled_here_has_the_figures_it_must_have(toys, architecture):
    assert_figures(toys["toy", architecture])


def assert_figures(row):
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


def test_the_command_writes_and_checks_the_table(toys, tmp_path, monkeypatch):
    rows = [copy.deepcopy(toys["toy", 90])]
    monkeypatch.setattr(aot, "compile_rows", lambda names, triton: rows)
    out = tmp_path / "aot.json"
    command = ["bench", "aot", "--out", str(out)]

    def run(*options):
        result = CliRunner().invoke(app, [*command, *options], prog_name="rfa")
        return result.exit_code, result.stdout, result.stderr

    code, stdout, _ = run()
    assert code == 0 and "spills in the main loops" in stdout
    assert run("--check")[0] == 0
    written = out.read_text()
    rows[0]["registers"] += 1
    code, _, stderr = run("--check")
    assert code == 1
    assert "toy, sm_90: registers grew from" in stderr
    rows[0]["loop_spills"] = 4
    assert "toy, sm_90: 4 spills in the main loop" in run("--check")[2]
    assert out.read_text() == written


@pytest.fixture(scope="module")
def committed():
    return json.loads(aot.RESULT.read_text())


@pytest.mark.parametrize("architecture", [80, pytest.param(90, marks=pytest.mark.slow)])
def test_the_committed_figures_still_hold(architecture, committed):
    rows = aot.compile_rows(COMPILED_HERE[architecture], [architecture], jobs=1)
    assert aot.grown(rows, committed) == []


def test_the_committed_table_is_complete(committed):
    shapes = [(row["kernel"], row["architecture"]) for row in committed["rows"]]
    assert shapes == list(itertools.product(aot.shipped(), aot.ARCHITECTURES))
    assert committed["bars"] == aot.bars(committed["rows"])
