"""What a kernel may not do, planted in small kernels and seen; mended, the same kernels pass."""

from __future__ import annotations

import re

import pytest
import torch

from tests.ptx.emulator import machine
from tests.ptx.test_ptx_opcodes import group_kernel, swizzled, tile_pair
from tests.ptx.written import kernel, run, words

pytestmark = pytest.mark.skipif(machine.missing() is not None, reason=str(machine.missing()))

BARRIER = "bar.sync 0;"
# Two warps: each lane stores its number and reads that of the lane 32 further on.
EXCHANGE = f"""
mul.lo.s32 %r1, %r0, 4;  xor.b32 %r2, %r1, 128;
st.shared.b32 [%r1], %r0;
{BARRIER}
ld.shared.b32 %r3, [%r2];
{BARRIER}
add.s32 %r4, %r3, 1;  st.shared.b32 [%r1], %r4;
mad.wide.u32 %rd10, %r0, 4, %rd0;  st.global.b32 [%rd10], %r3;"""
# A copy of 16 bytes a lane from the argument, waited for, then behind a barrier read by the other warp.
WAIT = "cp.async.wait_group 0;"
COPY = f"""
mul.lo.s32 %r1, %r0, 16;  xor.b32 %r2, %r1, 512;  mad.wide.u32 %rd10, %r0, 16, %rd0;
cp.async.cg.shared.global [%r1], [%rd10], 16;
cp.async.commit_group;
{WAIT}
{BARRIER}
ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2];
st.global.v4.b32 [%rd10], {{%r4, %r5, %r6, %r7}};"""
LOAD = "mad.wide.u32 %rd10, %r0, 4, %rd0;  ld.global.b32 %r1, [%rd10+OFFSET];  st.global.b32 [%rd10], %r1;"


def exchange(body: str) -> torch.Tensor:
    out = words(64)
    run(kernel(body, parameters=1, warps=2), out, shared_bytes=256)
    return out


def copies(body: str) -> torch.Tensor:
    out = words(256)
    run(kernel(body, parameters=1, warps=2), out, shared_bytes=1024)
    return out


def without(text: str, part: str, which: int) -> str:
    """The text without one of the places where `part` stands."""
    start = [found.start() for found in re.finditer(re.escape(part), text)][which]
    return text[:start] + text[start + len(part) :]


@pytest.mark.parametrize(("which", "fault"), [
    (0, "race: (read of what another warp wrote|write of what another warp)|read of shared memory that nothing wrote"),
    (1, "race: write of what another warp read"),
])  # fmt: skip
def test_a_race_is_seen(which: int, fault: str) -> None:
    with pytest.raises(machine.FaultsError, match=fault):
        exchange(without(EXCHANGE, BARRIER, which))


def test_to_write_what_stands_there_is_no_race() -> None:
    """Lanes and warps that hold the same number may all store it."""
    body = "mov.b32 %r1, 7;  st.shared.b32 [global_smem], %r1;"
    run(kernel(body, warps=2), shared_bytes=16)
    with pytest.raises(machine.FaultsError, match="race: write of what another warp wrote"):
        run(kernel(body.replace("7;", "%r0;"), warps=2), shared_bytes=16)


@pytest.mark.parametrize(
    ("offset", "fault"), [(0, None), (4, "outside of the arguments"), (2, "misaligned global"), (-4, "outside")]
)
def test_global_memory_is_that_of_the_arguments(offset: int, fault: str | None) -> None:
    ptx, out = kernel(LOAD.replace("OFFSET", str(offset)), parameters=1), words(32)
    if fault is None:
        run(ptx, out)
    else:
        with pytest.raises(machine.FaultsError, match=fault):
            run(ptx, out)


@pytest.mark.parametrize(("body", "fault"), [
    ("mul.lo.s32 %r1, %r0, 4;  st.shared.b32 [%r1], %r0;  st.shared.b32 [%r1+4], %r0;", "shared access out of bounds"),
    ("mul.lo.s32 %r1, %r0, 2;  st.shared.b32 [%r1], %r0;", "misaligned shared"),
    ("ld.shared.b32 %r1, [global_smem];", "read of shared memory that nothing wrote"),
    ("mov.b64 %rd1, 16;  st.local.b32 [%rd1], %r0;", "local access out of bounds"),
])  # fmt: skip
def test_other_memory_has_bounds_too(body: str, fault: str) -> None:
    with pytest.raises(machine.FaultsError, match=fault):
        run(kernel(body, declarations=".local .align 4 .b8 depot[16];\n"), shared_bytes=128)


def test_a_missing_wait_is_seen() -> None:
    with pytest.raises(machine.FaultsError, match=r"read of a copy that was not waited for.*cp.async.cg"):
        copies(without(COPY, WAIT, 0))
    with pytest.raises(machine.FaultsError, match="not waited for"):
        copies(COPY.replace(WAIT, "cp.async.wait_group 1;"))


def test_a_wait_without_a_barrier_is_seen() -> None:
    with pytest.raises(
        machine.FaultsError, match=r"read of shared memory that nothing wrote|race: read of what another warp wrote"
    ):
        copies(without(COPY, BARRIER, 0))


# Products of a warp group.


def group(ptx: str) -> None:
    factors = torch.cat([swizzled(tile_pair("f16", 64, 64, seed)) for seed in (1, 2)])
    run(ptx, factors, torch.zeros(64, 64), shared_bytes=16384)


GROUP = group_kernel("f16", 64, is_left_in_registers=False, is_right_turned=False)
FENCE = "fence.proxy.async.shared::cta;"
GROUP_WAIT = "wgmma.wait_group.sync.aligned 0;"


def test_a_missing_proxy_fence_is_seen() -> None:
    group(GROUP)
    behind = without(GROUP, FENCE, 0).replace(BARRIER, f"{BARRIER}\n{FENCE}")
    group(behind)
    with pytest.raises(machine.FaultsError, match=r"product of what was stored without a proxy fence.*st.shared"):
        group(without(GROUP, FENCE, 0))


def test_a_product_that_is_not_waited_for_is_nan() -> None:
    factors = torch.cat([swizzled(tile_pair("f16", 64, 64, seed)) for seed in (1, 2)])
    out = torch.zeros(64, 64)
    run(without(GROUP, GROUP_WAIT, 0), factors, out, shared_bytes=16384)
    assert out.isnan().all()


def test_a_store_where_a_product_still_reads_is_seen() -> None:
    store = "mul.lo.s32 %r11, %r0, 4;  st.shared.b32 [%r11+8192], %r0;"
    options = {"is_left_in_registers": False, "is_right_turned": False}
    with pytest.raises(machine.FaultsError, match="write of what a product still reads"):
        group(group_kernel("f16", 64, between=store, **options))
    group(group_kernel("f16", 64, between=f"{GROUP_WAIT}\n{BARRIER}\n{store}", **options))


# Warps.


def test_lanes_that_miss_a_barrier_are_seen() -> None:
    with pytest.raises(machine.FaultsError, match=r"not all lanes take part: 'bar.sync 0'"):
        run(kernel(f"setp.lt.u32 %p1, %r0, 7;\n@%p1 bra $L_past;\n{BARRIER}\n$L_past:\nadd.s32 %r1, %r0, 1;"))


def test_a_warp_that_misses_a_barrier_is_seen() -> None:
    with pytest.raises(machine.FaultsError, match="a barrier that some warps never reach"):
        run(kernel(f"setp.lt.u32 %p1, %r0, 32;\n@%p1 ret;\n{BARRIER}", warps=2))


def test_a_kernel_that_never_ends_is_seen() -> None:
    with pytest.raises(machine.FaultsError, match="no end in sight"):
        run(kernel("$L_for_ever:\nadd.s32 %r1, %r1, 1;\nbra.uni $L_for_ever;"), budget=1000)


@pytest.mark.parametrize("seed", [0, 7])
def test_what_a_launch_takes_is_bounded_and_reported(seed: int) -> None:
    """All CTAs and warps together: a grid of many, each short of its end by itself, holds up nobody."""
    two = kernel(f"add.s32 %r1, %r0, 1;\n{BARRIER}", warps=2)
    program, play = machine.load(two), machine.Play(seed)
    taken = machine.run(program, (1,), (), play=play)
    assert taken == 2 * 4  # the thread's number, the sum, the barrier, the end
    assert machine.run(program, (3, 5), (), play=play, budget=15 * taken) == 15 * taken
    with pytest.raises(machine.FaultsError, match="no end in sight"):
        machine.run(program, (3, 5), (), play=play, budget=15 * taken - 1)


def test_a_seed_takes_the_warps_in_another_order() -> None:
    """Who comes last at the same place of global memory: not always the same warp, nor the same CTA."""
    body = "shr.u32 %r1, %r0, 5;  mov.u32 %r2, %ctaid.x;  mad.lo.s32 %r1, %r2, 4, %r1;  st.global.b32 [%rd0], %r1;"
    ptx, last = kernel(body, parameters=1, warps=4), set()
    for seed in range(20):
        out = words(1)
        run(ptx, out, grid=3, play=machine.Play(seed=seed))
        last.add(int(out))
    assert len(last) > 4
