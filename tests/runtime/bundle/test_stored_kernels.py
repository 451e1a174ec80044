"""Compiled kernels in a bundle: what is read, what fits a launch, and what they compute, executed without a GPU."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

pytest.importorskip("triton")

from rfa.export import gpu_kernels, verify
from rfa.export.kernel_compile import parse_architectures
from rfa.model.loading import model_of
from rfa.runtime.bundle.bundle import Bundle, BundleError, StoredKernel, open_bundle
from rfa.runtime.bundle.documents import canonical_json
from rfa.runtime.bundle.manifest import MANIFEST_FILE, FileSpec, encode_manifest, sha256
from rfa.runtime.bundle.signing import SecretKey, sign_bundle
from rfa.runtime.bundle.stored_kernels import KERNELS_FILE, Parameter
from rfa.runtime.gpu.kernels import UNTRUSTED, StoredLaunches, kernels_of
from tests.ptx import kernel_check
from tests.ptx.emulator import machine
from tests.ptx.kernel_check import kernel_errors

ROOT = Path(__file__).resolve().parents[3]
ATTENTION = {"_columns_kernel", "table_kernel", "_forward_kernel"}
SLOTS = {"scan_kernel", "weights_kernel", "values_kernel", "slots_kernel", "logits_kernel"}
AROUND = {
    "draw_kernel", "extent_kernel", "narrow_kernel", "weigh_kernel", "begin_kernel", "normed_kernel", "product_kernel",
    "arrange_kernel", "leave_frame_kernel",
}  # fmt: skip
emulated = pytest.mark.skipif(machine.missing() is not None, reason=str(machine.missing()))


@pytest.fixture(autouse=True)
def the_text_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator takes seconds for a long one."""
    monkeypatch.setattr(kernel_check, "TEXT_TOKENS", 12)


def kernel(bundle: Bundle, name: str) -> StoredKernel:
    """One of this name."""
    return next(kernel for kernel in bundle.kernels if kernel.entry.name == name)


def rewritten(bundle: Bundle, out: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The bundle with other bytes, every hash right."""
    shutil.copytree(bundle.path, out)
    contents = {name: (out / name).read_bytes() for name in bundle.manifest.files}
    change(contents)
    for path in out.iterdir():
        path.unlink()
    files = {name: FileSpec(len(data), sha256(data)) for name, data in sorted(contents.items())}
    contents[MANIFEST_FILE] = encode_manifest(replace(bundle.manifest, files=files))
    for name, data in contents.items():
        (out / name).write_bytes(data)
    return out


def others(bundle: Bundle, *without: StoredKernel) -> tuple[StoredKernel, ...]:
    return tuple(kernel for kernel in bundle.kernels if all(kernel is not left_out for left_out in without))


# What is read.


def test_a_kernel_says_all_that_a_launch_of_it_needs(bundle: Bundle) -> None:
    entry = kernel(bundle, "slots_kernel").entry
    assert entry.architecture == entry.target == "sm_80"
    assert entry.options == {"num_warps": entry.warps}
    constants = {parameter.name: parameter.value for parameter in entry.parameters if parameter.type == "constexpr"}
    assert (constants["S"], constants["D"]) == (3, 6)
    assert 0 < entry.registers <= 255
    info = next(info for info in verify.bundle_info(bundle.path)["kernels"] if info["file"] == entry.file)
    assert (info["architecture"], info["registers"]) == ("sm_80", entry.registers)
    assert {file.name for file in bundle.path.iterdir()} == {MANIFEST_FILE, *bundle.manifest.files}
    assert f"{entry.file}.cubin" in bundle.manifest.files


@pytest.mark.slow
def test_kernels_of_a_step_do_not_spill(full_bundle: Bundle) -> None:
    of_a_step = [one.entry for one in full_bundle.kernels if one.entry.name in {"product_kernel", *SLOTS}]
    assert len(of_a_step) > 10 and not any(one.stack_bytes for one in of_a_step)


def set_entry(contents: dict[str, bytes], **values: Any) -> None:
    document = json.loads(contents[KERNELS_FILE])
    document["kernels"][0].update(values)
    contents[KERNELS_FILE] = canonical_json(document)


def first(contents: dict[str, bytes], ending: str) -> str:
    return str(json.loads(contents[KERNELS_FILE])["kernels"][0]["file"]) + ending


CHANGES: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "no list": (lambda c: c.pop(KERNELS_FILE), "a bundle with kernels must contain kernels.json"),
    "a file less": (lambda c: c.pop(first(c, ".ptx")), "the document lists a missing file"),
    "a file more": (lambda c: c.update({"scan_kernel-9.sm_80.cubin": b""}), "not listed in kernels.json"),
    "a library": (lambda c: c.update({"launch-1.sm_80.so": b"\x7fELF"}), "must not contain this file"),
    "code of this machine": (
        lambda c: c.update({first(c, ".cubin"): Path("/proc/self/exe").read_bytes()[:4096]}),
        "not machine code for an NVIDIA GPU",
    ),
    "an empty cubin": (lambda c: c.update({first(c, ".cubin"): b""}), "too short to be machine code"),
    "PTX for another GPU": (
        lambda c: c.update({first(c, ".ptx"): c[first(c, ".ptx")].replace(b".target sm_80", b".target sm_90")}),
        "not PTX for sm_80",
    ),
    "PTX with another parameter": (
        lambda c: c.update({first(c, ".ptx"): c[first(c, ".ptx")].replace(b"\t.param .u64", b"", 1)}),
        "do not match kernels.json",
    ),
    "PTX with warps beyond counting": (
        lambda c: c.update({first(c, ".ptx"): c[first(c, ".ptx")].replace(b".reqntid ", b".reqntid " + b"3" * 5000)}),
        r"\.ptx: the file must contain PTX for kernel",
    ),
    # Each begins what only the end of the text could end.
    "PTX of entries alone": (
        lambda c: c.update({first(c, ".ptx"): b".target sm_80\n" + b".visible .entry k(\n" * (3 << 16)}),
        r"\.ptx: the file must contain PTX for kernel",
    ),
    "a version beyond counting": (lambda c: set_entry(c, cuda="9" * 5000 + ".0"), r"kernels\.json: .*cuda: "),
    "another version beyond counting": (lambda c: set_entry(c, triton="3" + ".7" * 5000), r"kernels\.json: .*triton: "),
    "other warps": (lambda c: set_entry(c, warps=32), "with 32 warps"),
    "another name": (lambda c: set_entry(c, name="other_kernel"), "must contain PTX for kernel 'other_kernel'"),
    "a path": (lambda c: set_entry(c, file="../scan_kernel-1.sm_80"), "the document lists a missing file"),
    "another architecture": (lambda c: set_entry(c, architecture="sm_90"), "must contain sm_90"),
    "much shared memory": (lambda c: set_entry(c, shared_bytes=1 << 19), "shared_bytes"),
    "a field more": (lambda c: set_entry(c, host="x"), "Extra inputs are not permitted"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_other_files_are_refused(bundle: Bundle, what: str, tmp_path: Path) -> None:
    change, reason = CHANGES[what]
    with pytest.raises(BundleError, match=reason):
        open_bundle(rewritten(bundle, tmp_path / "changed", change))


def test_a_flipped_bit_of_machine_code_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    shutil.copytree(bundle.path, tmp_path / "flipped")
    path = tmp_path / "flipped" / f"{bundle.kernels[0].entry.file}.cubin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match="sha256 does not match"):
        open_bundle(path.parent)


# What fits a launch.


def test_what_a_parameter_takes() -> None:
    floats = torch.zeros(33)
    aligned, any_number = (Parameter(name="x", type="i32", is_aligned=flag) for flag in (True, False))
    assert aligned.takes(32) and not aligned.takes(33) and any_number.takes(33)
    assert not any_number.takes(2**31) and any_number.takes(-(2**31)) and not any_number.takes(True)
    pointer = Parameter(name="x", type="*fp32", is_aligned=True)
    assert pointer.takes(floats) and not pointer.takes(floats[1:]) and not pointer.takes(floats.half())
    assert Parameter(name="x", type="*fp32").takes(floats[1:])
    assert not pointer.takes(None) and Parameter(name="x", type="constexpr").takes(None)
    one = Parameter(name="x", type="constexpr", value=1)
    assert one.takes(1) and not one.takes(True) and not one.takes(1.0)


def launch_of(entry: Any) -> dict[str, Any]:
    """Values that a kernel takes, all different."""
    values: dict[str, Any] = {}
    for i, parameter in enumerate(entry.parameters):
        kind = parameter.type
        names = {"*fp32": torch.float32, "*bf16": torch.bfloat16, "*i64": torch.int64, "*i32": torch.int32}
        if kind == "constexpr":
            values[parameter.name] = parameter.value
        else:
            values[parameter.name] = torch.zeros(4, dtype=names[kind]) if kind in names else 16 * (i + 1)
    return values


def test_a_kernel_fits_launches_of_its_signature_alone(bundle: Bundle) -> None:
    stored = kernel(bundle, "slots_kernel")
    entry, values = stored.entry, launch_of(stored.entry)
    options = dict(entry.options)
    assert stored.fits("slots_kernel", values, options)
    assert not stored.fits("scan_kernel", values, options)
    assert not stored.fits("slots_kernel", values, {**options, "num_warps": 2 * entry.warps})
    assert not stored.fits("slots_kernel", values, {**options, "num_stages": 2})
    assert not stored.fits("slots_kernel", {**values, "S": 4}, options)
    assert not stored.fits("slots_kernel", {**values, "p_joint": values["p_joint"].double()}, options)
    assert not stored.fits("slots_kernel", dict(list(values.items())[:-1]), options)
    assert not stored.fits("slots_kernel", {**values, "new": 1}, options)


def test_arguments_are_packed_as_c_has_them(bundle: Bundle) -> None:
    stored = kernel(bundle, "slots_kernel")
    values = launch_of(stored.entry)
    packed = stored.arguments(values)
    given = [part for part in stored.entry.parameters if part.type != "constexpr"]
    assert len(packed) == len(given) + stored.entry.scratch
    for part, argument in zip(given, packed, strict=False):
        value = values[part.name]
        expected, size = (value.data_ptr(), 8) if part.type.startswith("*") else (value, 4)
        assert (argument.value, ctypes.sizeof(argument)) == (expected, size)
    assert [argument.value for argument in packed[len(given) :]] == [0] * stored.entry.scratch


@pytest.mark.parametrize(
    ("capability", "driver", "reason"),
    [
        ((8, 0), (12, 0), None),
        ((8, 9), (13, 0), None),
        ((9, 0), (13, 0), "it was compiled for sm_80, but the GPU is sm_90"),
        ((7, 5), (13, 0), "it was compiled for sm_80, but the GPU is sm_75"),
        ((8, 0), (11, 8), r"compiled with CUDA 12\.\d+, but the driver supports only CUDA 11\.8"),
    ],
)
def test_a_gpu_and_its_driver_must_fit(
    bundle: Bundle, capability: tuple[int, int], driver: tuple[int, int], reason: str | None
) -> None:
    found = bundle.kernels[0].refusal(capability, driver)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        with pytest.raises(ValueError, match=reason):
            raise ValueError(found)


def test_machine_code_for_one_very_gpu_runs_on_no_later_one(bundle: Bundle) -> None:
    stored = bundle.kernels[0]
    narrow = replace(stored, entry=stored.entry.model_copy(update={"architecture": "sm_90", "target": "sm_90a"}))
    assert narrow.refusal((9, 0), (12, 8)) is None
    assert narrow.refusal((9, 1), (12, 8)) is not None


@pytest.mark.parametrize(
    "text", ["", "sm_8", "sm_80,sm_80", "80", "sm_80;sm_90", "sm_90a", "sm_75", "sm_100", "sm_80,sm_120"]
)
def test_what_is_no_list_of_architectures_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--gpu must be a comma-separated list"):
        parse_architectures(text)


# What they compute.


def largest_excess(bundle: Bundle) -> float:
    """The largest error in units of what is allowed."""
    return max(error / limit for _, error, limit in kernel_errors(bundle, model_of(bundle)))


@emulated
def test_executed_they_give_the_golden_outputs(full_bundle: Bundle) -> None:
    found = list(kernel_errors(full_bundle, model_of(full_bundle)))
    # Five numbers each of the golden calls, and in either dtype of a prompt and of a step; three of draws;
    # and four of products.
    assert len(found) == 5 + 2 * (2 * 5 + 3) + 4 and all("kernels for sm_80, " in what for what, _, _ in found)
    assert len([what for what, _, _ in found if "golden calls" in what]) == 5
    assert all(error <= limit for _, error, limit in found)
    assert max(error for _, error, _ in found) > 0, "what ran is what it is compared with"


WRONG = {
    # exp2 and log2 of the weights of slots and tokens.
    "a function": ("ex2.approx.ftz.f32", "lg2.approx.ftz.f32"),
    "a sign": ("add.f32", "sub.f32"),
}


@emulated
@pytest.mark.parametrize("what", WRONG)
def test_a_kernel_that_computes_something_else_is_found(
    full_bundle: Bundle, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = WRONG[what]
    stored = kernel(full_bundle, "scan_kernel")
    assert right in stored.ptx
    changed = replace(stored, ptx=stored.ptx.replace(right, wrong, 1))
    monkeypatch.setattr(full_bundle, "_kernels", (changed, *others(full_bundle, stored)))
    try:
        assert not largest_excess(full_bundle) <= 1
    except BundleError as error:
        assert "golden.json by the kernels for sm_80: case 0, prefill" in str(error)


@emulated
def test_kernels_of_another_source_are_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_check, "DTYPES", (torch.float32,))
    stored = bundle.kernels[0]
    other = replace(stored, entry=stored.entry.model_copy(update={"source": "0" * 64}))
    monkeypatch.setattr(bundle, "_kernels", (other, *bundle.kernels[1:]))
    with pytest.raises(BundleError, match="of another version of rfa-server"):
        largest_excess(bundle)


def test_verify_says_whether_a_given_key_signed_them(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_in_fresh_process", lambda bundle: ())
    path = rewritten(bundle, tmp_path / "signed", lambda contents: None)
    key = SecretKey.generate()
    assert verify.verify_bundle(path).kernels == verify.UNTRUSTED_KERNELS
    with pytest.raises(BundleError, match="sign"):
        verify.verify_bundle(path, [key.public])
    sign_bundle(path, open_bundle(path).digest, key)
    assert verify.verify_bundle(path, [key.public]).kernels == verify.TRUSTED_KERNELS


def test_kernels_without_a_trusted_signature_are_not_loaded(bundle: Bundle) -> None:
    """The driver is not even asked for."""

    def no_driver() -> NoReturn:
        raise AssertionError("the driver was asked for")

    launches = StoredLaunches(no_driver, lambda: (8, 0), lambda device: 0)
    with kernels_of(bundle, is_trusted=False, launches=launches) as use:
        assert use.reason == UNTRUSTED and not use.stored
    with pytest.raises(AssertionError), kernels_of(bundle, is_trusted=True, launches=launches):
        pass


@emulated
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_all_kernels_of_the_shipped_bundle(books_bundle: Path, tmp_path: Path) -> None:
    """Attention too, for both architectures, in a process where kernels are compiled and not interpreted."""
    made = gpu_kernels.add_kernels(books_bundle, (80, 90), tmp_path / "books")
    names = {kernel.entry.name for kernel in made.kernels}
    assert names == ATTENTION | SLOTS | AROUND
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.ptx.kernel_check", str(made.path)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    comparisons = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(error <= limit for _, error, limit in comparisons)
    for architecture in ("sm_80", "sm_90"):
        # Golden calls; in either dtype a prompt and a step by slots, attention with the rows of its cache, and a draw;
        # and products.
        assert len([what for what, _, _ in comparisons if architecture in what]) == 7 + 2 * (2 * 5 + 5 + 3) + 4
