"""Programs that are not trusted: what an instruction names is checked when it is read, what it computes when it runs.

Each of these would read or write memory of the process that plays them, or take all that it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from tests.ptx.emulator import machine
from tests.ptx.emulator.operands import Opcode, UnknownPtxError
from tests.ptx.written import REGISTERS, kernel, run, words

pytestmark = pytest.mark.skipif(machine.missing() is not None, reason=str(machine.missing()))

# What stands for a part of a kind, by the registers of `written`; and what does not (a predicate has no narrower one).
RIGHT = {
    "wp": "%p1", "w2": "%rs1", "w4": "%r1", "w8": "%rd1", "W1": "%rs1", "W2": "%rs1", "W4": "%r1", "W8": "%rd1",
    "rp": "%p1", "r2": "%rs1", "r4": "%r1", "r8": "%rd1",
    "R2": "%rs1", "R4": "%r1", "R8": "%rd1", "o2": "%rs1", "o4": "%r1", "n": "0", "a": "[%rd1]",
    "c": "[p0]", "l": "$L_end",
}  # fmt: skip
UNDECLARED = {"p": "%p16", "1": "%rs32", "2": "%rs32", "4": "%r1024", "8": "%rd64"}
NARROWER = {"p": "%rs1", "1": "%p1", "2": "%p1", "4": "%rs1", "8": "%r1"}
# An instruction may read a number; an address, a parameter and a label must be one.
NEVER = {"w": "5", "W": "5", "o": "5", "n": "%r1", "#": "%r1", "a": "%rd1", "c": "[p1]", "l": "$nowhere"}


def right(kind: str) -> str:
    return kind[1:] if kind[0] == "#" else RIGHT[kind]


def wrong(kind: str) -> list[str]:
    """What is no part of a kind."""
    of_width = [UNDECLARED[kind[1:]], NARROWER[kind[1:]], "%r1000000000", "7e9"] if kind[0] in "wWorR" else ["[%r1024]"]
    return [*of_width, *([NEVER[kind[0]]] if kind[0] in NEVER else []), *(["%laneid"] if kind[0] in "wWo" else [])]


def load(instruction: str) -> None:
    machine.load(kernel(f"{instruction};\n$L_end:", parameters=1))


def instruction(name: str, parts: list[list[str]]) -> str:
    return f"{name} {', '.join(group[0] if len(group) == 1 else f'{{{chr(44).join(group)}}}' for group in parts)}"


def spoiled(parts: list[list[str]], kinds: list[list[str]]) -> Iterator[list[list[str]]]:
    """The operands with one of them wrong, missing or too many."""
    for i, group in enumerate(kinds):
        for j in {0, len(group) - 1}:
            for other in wrong(group[j]):
                yield [*parts[:i], [*parts[i][:j], other, *parts[i][j + 1 :]], *parts[i + 1 :]]
    yield [*parts, ["%r1"], ["%r1"]]
    if parts:
        yield parts[:-1]
        yield [*parts[:-1], parts[-1] * 600]


def spoils(name: str, opcode: Opcode) -> Iterator[tuple[str, str]]:
    """Instructions that are right, each with one of its spoiled forms."""
    for form in opcode.forms:
        kinds = [[kind] * count for count, kind in form]
        parts = [[right(kind) for kind in group] for group in kinds]
        for bad in spoiled(parts, kinds):
            yield instruction(name, parts), instruction(name, bad)


def test_every_operand_of_every_instruction_is_checked() -> None:
    """Warp groups' products by their smallest and largest, which differ in a number alone."""
    left_out = {f"m64n{n}k16" for n in range(16, 256, 8)}
    for name, opcode in machine.opcodes().items():
        if left_out & set(name.split(".")):
            continue
        rights = {good for good, _ in spoils(name, opcode)}
        for good in rights:
            load(good)
        for bad in {bad for _, bad in spoils(name, opcode)} - rights:
            with pytest.raises(UnknownPtxError):
                load(bad)
                pytest.fail(f"taken: {bad[:200]}")


@pytest.mark.parametrize(("body", "reason"), [
    ("mov.b32 %r4000000, 1;", "a register that is not declared: '%r4000000' in 'mov.b32"),
    ("@%p16 mov.b32 %r1, 1;", "a register that is not declared: '%p16'"),
    ("mov.b32 %f1, 1;", "operand|no register to write: '%f1'"),
    ("mov.b32 %tid.x, 1;", "no register to write: '%tid.x'"),
    ("add.s32 5, %r1, %r2;", "no register to write: '5'"),
    ("add.s32 %r1, [%r1], 1;", "operand"),
    ("ld.global.b32 %r1, %rd1;", "no address: '%rd1'"),
    ("ld.global.b32 %r1, [%rs1];", "a register of another width"),
    ("ld.param.b64 %rd1, [p0+900000000];", "no parameter"),
    ("mov.b64 %rd1, p0;", "operand 'p0'"),
    ("ld.global.v8.b32 {%r1, %r1, %r1, %r1, %r1, %r1, %r1, %r1}, [%rd0];", "ld.global.v8.b32"),
    ("ld.global.v4.b64 {%rd1, %rd1, %rd1, %rd1}, [%rd0];", "other operands than it takes"),
    ("cp.async.cg.shared.global [%r1], [%rd0], 4096;", "a number that it does not take: '4096'"),
    ("cp.async.cg.shared.global [%r1], [%rd0], %r1;", "a number|operand '%r1'"),
    ("wgmma.wait_group.sync.aligned -1;", "a number that it does not take: '-1'"),
    ("mov.b64 %rd1, 18446744073709551616;", "operand '18446744073709551616'"),
    (f"mov.b64 %rd1, {'9' * 5000};", "operand '999"),
    ("bra $nowhere;", "a branch to nowhere, '\\$nowhere'"),
    ("bra ;", "other operands than it takes in 'bra'"),
])  # fmt: skip
def test_what_no_instruction_may_name_is_refused(body: str, reason: str) -> None:
    with pytest.raises(UnknownPtxError, match=reason):
        machine.load(kernel(body, parameters=1))


def ending(body: str, last: str) -> str:
    return kernel(body).replace("\nret;", last)


@pytest.mark.parametrize("last", ["", "\n@%p1 ret;", "\nret", "\n@%p1 bra $L_again;"])
def test_a_program_that_can_run_off_its_end_is_refused(last: str) -> None:
    with pytest.raises(UnknownPtxError, match=r"no end|no semicolon"):
        machine.load(ending("$L_again:\nmov.b32 %r1, 1;", last))


@pytest.mark.parametrize("behind", ["", "cvta.local.u64 %SP, 0;"])
def test_a_branch_goes_to_an_instruction(behind: str) -> None:
    """Not to the end of the text, nor to what is left out there."""
    text = ending("@%p1 bra $L_there;\n$L_there: ret;", f"\n$L_behind:\n{behind}")
    machine.load(text)
    with pytest.raises(UnknownPtxError, match=r"a branch to nowhere, '\$L_behind'"):
        machine.load(text.replace("bra $L_there", "bra $L_behind"))


@pytest.mark.parametrize(("old", "new", "reason"), [
    (".reg .b32 %r<1024>;", ".reg .f32 %f<4>;", "registers that are unknown: %f"),
    (".reg .b32 %r<1024>;", ".reg .b32 %r<1024>;\n.reg .b32 %r<8>;", "registers that are declared twice: %r"),
    ("%r<1024>", "%r<99999999999>", "a number of 11 digits"),
    ("%r<1024>", "%r<8000000>", "registers and local memory of a CTA beyond"),
    (REGISTERS, f".local .align 16 .b8 l[100000000];\n{REGISTERS}", "registers and local memory of a CTA beyond"),
    (REGISTERS, f".local .align 16 .b8 l[{'9' * 5000}];\n{REGISTERS}", "a number of 5000 digits"),
    (".reqntid 32", ".reqntid 2048", "a CTA of 2048 threads"),
    (".reqntid 32", ".reqntid 0", "a CTA of 0 threads"),
    (".reqntid 32", "", "a CTA of 0 threads"),
    (".reqntid 32", f".reqntid {'3' * 5000}", "a number of 5000 digits"),
    (".visible .entry", ".global .align 4 .b8 t[1] = {256};\n.visible .entry", "constant 't', not of bytes"),
    (".visible .entry", f".global .align 4 .b8 t[1] = {{{'9' * 5000}}};\n.visible .entry", "constant 't'"),
    ("}\n", "", "no entry point"),
])  # fmt: skip
def test_what_no_kernel_declares_is_refused(old: str, new: str, reason: str) -> None:
    text = kernel("")
    assert old in text
    with pytest.raises(UnknownPtxError, match=reason):
        machine.load(text.replace(old, new))


def test_what_a_gpu_has_at_most_is_taken() -> None:
    """32 warps, and as many registers as they may have."""
    machine.load(kernel("", warps=32))
    machine.load(kernel("").replace("%r<1024>", "%r<400000>"))


# Anything that looks for an end from each of these, up to that of the text, takes hours.
REPEATED = {
    "entries": ".visible .entry k(\n", "entries without a body": ".visible .entry k()\n", "comments": "/* ",
    "lines": "\n", "directives": "\n.", "constants": ".global .align 1 .b8 t[1] = {1", "names": "a", "braces": "{",
    "brackets": "mov.b32 [", "labels": "$a:", "registers": ".reg .b32 %r<", "spaces": "bra  ",
}  # fmt: skip


@pytest.mark.parametrize("what", REPEATED)
def test_texts_of_any_content_are_read_once(what: str) -> None:
    """Of a megabyte, a quarter of what a bundle may have."""
    many = REPEATED[what] * ((1 << 20) // len(REPEATED[what]))
    with suppress(UnknownPtxError):
        machine.load(many if what.startswith("entries") else kernel(many))


# What it computes.


@pytest.mark.parametrize("address", [-4, -1, 2**63, 2**64 - 64])
@pytest.mark.parametrize(("access", "reason"), [
    ("st.global.b32 [%rd1], %r1;", "outside of the arguments"), ("ld.global.b32 %r1, [%rd1];", "outside"),
    ("st.shared.b32 [%rd1], %r1;", "shared access out of bounds"),
    ("ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];", "shared access out of bounds"),
    ("st.local.b32 [%rd1], %r1;", "local access out of bounds"),
    ("ld.local.b32 %r1, [%rd1];", "local access out of bounds"),
    ("cp.async.cg.shared.global [%rd1], [%rd0], 16;", "shared access out of bounds"),
    ("cp.async.cg.shared.global [0], [%rd1], 16;", "outside of the arguments"),
    ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%rd1];", "shared access out of bounds"),
    ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%rd1], {%r1};", "shared access out of bounds"),
])  # fmt: skip
def test_no_address_wraps(address: int, access: str, reason: str) -> None:
    ptx = kernel(
        f"mov.b64 %rd1, {address};  mov.b32 %r1, 7;\n{access}",
        parameters=1,
        declarations=".local .align 4 .b8 depot[16];\n",
    )
    with pytest.raises(machine.FaultsError, match=reason):
        run(ptx, words(32), shared_bytes=128)


@pytest.mark.parametrize("taken", [17, 4096, 2**31, 2**32 - 1])
def test_a_copy_takes_no_more_than_its_size(taken: int) -> None:
    body = f"mov.b32 %r1, {taken};  cp.async.ca.shared.global [0], [%rd0], 16, %r1;"
    with pytest.raises(machine.FaultsError, match="a copy of more than its size"):
        run(kernel(body, parameters=1), torch.zeros(1 << 20), shared_bytes=128)


PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2, %r3, %r4}, %rd1, %rd1, 0, 1, 1, 0, 0;"


@pytest.mark.parametrize(("body", "reason"), [
    ("cp.async.commit_group;", "copies that nothing waits for"),
    ("wgmma.commit_group.sync.aligned;", "products that nothing waits for"),
    (PRODUCT, "products that nothing waits for"),
])  # fmt: skip
def test_what_is_never_waited_for_is_not_kept_for_ever(body: str, reason: str) -> None:
    """Round and round; each round that is kept takes memory of the process."""
    store = "mul.lo.s32 %r5, %r0, 4;  mov.b32 %r6, 0;\nst.shared.b32 [%r5], %r6;\nfence.proxy.async.shared::cta;"
    loop = f"{store}\nmov.b64 %rd1, 0;\n$L_round:\n{body}\nbra $L_round;"
    with pytest.raises(machine.FaultsError, match=reason):
        run(kernel(loop, parameters=1), words(4), shared_bytes=128, budget=9000)


def test_a_copy_onto_one_that_is_on_its_way_is_not_kept() -> None:
    """So they are no more than shared memory holds; and a read behind the first has nothing to say of the second."""
    copy = "cp.async.ca.shared.global [%r1], [%rd0], 4;\ncp.async.commit_group;\n"
    body = f"mul.lo.s32 %r1, %r0, 4;\n{copy}{copy}cp.async.wait_group 1;\nld.shared.b32 %r2, [%r1];"
    with pytest.raises(machine.FaultsError, match="write where a copy is on its way") as reported:
        run(kernel(body, parameters=1), words(4), shared_bytes=128)
    assert "not waited for" not in str(reported.value)
