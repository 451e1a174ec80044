"""Kernels of a bundle, launched through the driver of a GPU that is not there: no number differs from those that Triton
compiles, and what does not fit goes to Triton."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from rfa.runtime.bundle.bundle import Bundle, StoredKernel, open_bundle
from tests.ptx.emulator import machine

if machine.missing() is not None:
    pytest.skip(str(machine.missing()), allow_module_level=True)

from rfa.export.served_passes import DTYPES, ServedPasses, initial_slots
from rfa.model.kernel_launches import KernelCall, intercepted_launches
from rfa.model.language import LanguageModel
from rfa.model.loading import model_of
from rfa.model.placement import simulated_gpu
from rfa.runtime.bundle.signing import write_keys
from rfa.runtime.bundle.stored_kernels import KernelEntry, Parameter
from rfa.runtime.gpu import golden as torch_golden
from rfa.runtime.gpu import kernels as torch_kernels
from rfa.runtime.gpu import language as torch_language
from rfa.runtime.gpu.kernels import kernels_of
from rfa.runtime.gpu.language import TorchLanguageRuntime
from rfa.runtime.passes import PassesRange
from rfa.runtime.text.config import LanguageModelConfig
from rfa.runtime.text.sampling import Choice, Draws
from rfa.service.encoding import dumps
from rfa.service.engine import device
from rfa.service.engine.models import model_info
from rfa.service.settings import Settings
from tests.kernels import interpreted
from tests.ptx.launches import Compiler, Emulator, emulated
from tests.runtime.gpu.fake_cuda import FakeGpu, compiled
from tests.small_kernels import ARCHITECTURE

# What prompts and steps of the small model launch.
ALL = (
    "arrange_kernel", "begin_kernel", "draw_kernel", "extent_kernel", "leave_frame_kernel", "logits_kernel",
    "product_kernel", "scan_kernel", "slots_kernel", "values_kernel", "weigh_kernel", "weights_kernel",
)  # fmt: skip


HOME = Path(__file__).resolve().parents[3]


def run_without_interpreter(program: str, *arguments: str) -> str:
    """What a program in Python prints, whose kernels are those that Triton would compile."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=HOME,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def gpu(library: ctypes.CDLL, bundle: Bundle) -> FakeGpu:
    """Its launches are recorded, and compute nothing."""
    return FakeGpu(library, bundle.kernels, is_emulated=False)


@pytest.fixture
def emulated_gpu(library: ctypes.CDLL, full_bundle: Bundle) -> FakeGpu:
    return FakeGpu(library, full_bundle.kernels)


@pytest.fixture(autouse=True)
def on_a_gpu() -> Iterator[None]:
    """Tensors of the CPU take the way of those of a GPU."""
    with simulated_gpu(divmod(ARCHITECTURE, 10)):
        yield


def runtime_of(bundle: Bundle, dtype: torch.dtype = torch.float32, rows: int = 3) -> TorchLanguageRuntime:
    return TorchLanguageRuntime(bundle, device="cpu", streams=rows + 1, max_rows=rows, dtype=dtype)


def answers(runtime: TorchLanguageRuntime) -> list[np.ndarray]:
    """Of two streams, through a prompt and steps of both."""
    contexts: list[Any] = [runtime.start("recurrent") for _ in range(2)]
    found: list[np.ndarray] = []
    for i, context in enumerate(contexts):
        output, (advance,) = runtime.read_prompts([context], [list(range(5 + i))])
        advance.commit()
        found += output
    for token in (7, 8):
        output, advances = runtime.step(contexts, [token, token + 3], np.zeros((2, *runtime.latent_shape), np.float32))
        for after in advances:
            after.commit()
        found += output
    for context in contexts:
        context.release()
    return found


def test_all_that_serving_launches_is_taken(bundle: Bundle, gpu: FakeGpu) -> None:
    with intercepted_launches(gpu.take), kernels_of(bundle, is_trusted=True, launches=gpu.launches) as use:
        runtime = runtime_of(bundle)
        answers(runtime)
    assert use.report() == torch_kernels.GpuKernels(ALL, (), None)
    assert {name for name, _ in gpu.launched} == use.stored
    heads, layers = runtime.latent_shape[0], len(runtime.initial["means"])
    # One program per head of a stream, and one stream at a time reads its prompt.
    grids = [grid for name, grid in gpu.launched if name == "scan_kernel"]
    assert set(grids) == {(heads, 1, 1, 32)} and len(grids) % layers == 0


@interpreted
def test_numbers_are_those_of_what_triton_compiles_for_each_launch(full_bundle: Bundle, emulated_gpu: FakeGpu) -> None:
    bundle, launches = full_bundle, emulated_gpu.launches
    compiler = Compiler()
    try:
        with emulated(Emulator(compiler, ARCHITECTURE)):
            expected = answers(runtime_of(bundle, torch.bfloat16))
    finally:
        compiler.close()
    with intercepted_launches(emulated_gpu.take), kernels_of(bundle, is_trusted=True, launches=launches) as use:
        found = answers(runtime_of(bundle, torch.bfloat16))
    assert use.stored == set(ALL) and not use.compiled
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


def test_a_kernel_is_loaded_once(bundle: Bundle, gpu: FakeGpu, library: ctypes.CDLL) -> None:
    for _ in range(2):
        with kernels_of(bundle, is_trusted=True, launches=gpu.launches) as use:
            assert use.reason is None
    assert library.fake_loaded() == len(bundle.kernels)


def kernels_used(bundle: Bundle, gpu: FakeGpu, *, is_trusted: bool = True) -> torch_kernels.GpuKernels:
    """Return which kernels a prompt and a step use. None of them runs, neither the stored ones nor Triton's."""
    model = model_of(bundle)
    passes = ServedPasses(model, torch.float32)
    with (
        torch.no_grad(),
        intercepted_launches(lambda call: gpu.take(call) or True),
        kernels_of(bundle, is_trusted=is_trusted, launches=gpu.launches) as use,
    ):
        _, slots = passes.prefill([[1, 2]], [0], initial_slots(model, 1))
        passes.draw(passes.step([3], [2], passes.silence(1), slots)[0], is_filtered=False)
    assert {name for name, _ in gpu.launched} == use.stored
    return use.report()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"capability": (9, 0)}, "it was compiled for sm_80, but the GPU is sm_90"),
        ({"version": 11080}, "the driver supports only CUDA 11.8"),
    ],
)
def test_what_does_not_fit_the_gpu_is_compiled(
    bundle: Bundle, library: ctypes.CDLL, given: dict[str, Any], reason: str
) -> None:
    found = kernels_used(bundle, FakeGpu(library, bundle.kernels, is_emulated=False, **given))
    assert (found.stored, found.compiled) == ((), ALL)
    assert found.reason is not None and reason in found.reason


def test_what_the_driver_refuses_is_compiled(bundle: Bundle, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [replace(kernel, cubin=kernel.cubin.replace(b".text.", b".tixt.")) for kernel in bundle.kernels]
    monkeypatch.setattr(bundle, "_kernels", tuple(broken))
    found = kernels_used(bundle, gpu)
    assert found.compiled == ALL and found.reason == "cuModuleGetFunction: named symbol not found"


def test_kernels_of_another_source_are_not_taken(bundle: Bundle, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [
        replace(kernel, entry=kernel.entry.model_copy(update={"source": "0" * 64}))
        if kernel.entry.name == "slots_kernel"
        else kernel
        for kernel in bundle.kernels
    ]
    monkeypatch.setattr(bundle, "_kernels", tuple(changed))
    found = kernels_used(bundle, gpu)
    assert found.stored == tuple(name for name in ALL if name != "slots_kernel") and found.compiled == ("slots_kernel",)
    assert found.reason == "slots_kernel of the bundle was compiled by another version of rfa-server"


SERVE = """
import os, sys
from pathlib import Path
from triton.runtime.driver import driver
def stop(self):
    raise AssertionError("Triton's driver was asked for")
type(driver).active = type(driver).default = property(stop)
import numpy, torch
from rfa.runtime.bundle.bundle import open_bundle
from rfa.model.kernel_launches import intercepted_launches
from rfa.model.placement import simulated_gpu
from rfa.runtime.gpu.kernels import kernels_of
from tests.runtime.gpu.fake_cuda import FakeGpu
from tests.runtime.gpu.test_torch_kernels import answers, ctypes, runtime_of
assert "TRITON_INTERPRET" not in os.environ
bundle = open_bundle(sys.argv[1])
gpu = FakeGpu(ctypes.CDLL(sys.argv[2]), bundle.kernels, is_emulated=False)
kernels = kernels_of(bundle, is_trusted=True, launches=gpu.launches)
with simulated_gpu((8, 0)), intercepted_launches(gpu.take), kernels as use:
    answers(runtime_of(bundle, torch.bfloat16))
assert not use.compiled and use.reason is None, use
print(*sorted(use.stored))
"""


def test_serving_never_makes_tritons_driver(full_bundle: Bundle, library: ctypes.CDLL) -> None:
    """It compiles C, for which the image of stored kernels has no compiler. Here are the functions that Triton would
    compile, not those of its interpreter, which needs no driver; their numbers do not matter."""
    assert run_without_interpreter(SERVE, str(full_bundle.path), library._name).split() == list(ALL)


def test_info_says_which_kernels_run(
    bundle: Bundle, gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server loads a bundle, but for the device: without keys nobody has signed it, whom one could trust."""
    monkeypatch.setattr(device, "check_gpu", lambda _: None)
    monkeypatch.setattr(torch_kernels, "_launches", lambda: gpu.launches)
    monkeypatch.setattr(torch_language, "TorchLanguageRuntime", lambda bundle, **_: runtime_of(bundle))
    monkeypatch.setattr(torch_golden, "check_golden_on", lambda runtime, bundle: 0)
    keys = write_keys(tmp_path / "author").pub
    with intercepted_launches(gpu.take):
        signed = device.language_loader(Settings(bundles=(), device="cuda", trusted_keys_file=keys))(bundle).kernels
    assert signed == torch_kernels.GpuKernels(ALL, (), None)
    model: Any = SimpleNamespace(runtime="torch", modes=("recurrent",), passes=PassesRange(1, 1))
    info = json.loads(dumps(model_info(bundle, 0, model, signed)))
    assert info["kernels"] == {"stored": list(ALL), "compiled": [], "reason": None}
    monkeypatch.setattr(torch_language, "TorchLanguageRuntime", lambda bundle, **_: SimpleNamespace(kernels=None))
    found = device.language_loader(Settings(bundles=(), device="cuda"))(bundle).kernels
    assert found == torch_kernels.GpuKernels((), (), torch_kernels.UNTRUSTED)


# Every launch of serving is one that a stored kernel fits: nothing is compiled here, and nothing run.

RECORD = """
import json, sys
from rfa.export.kernel_compile import launch_fields
from rfa.export.kernel_recording import merge_launches, serving_launches
from rfa.runtime.text.config import LanguageModelConfig
config = LanguageModelConfig.from_dict(json.loads(sys.argv[1]))
json.dump([launch_fields(launch) for launch in merge_launches(serving_launches(config, int(sys.argv[2])))], sys.stdout)
"""
# Streams and tokens that are not recorded, among them so many that products take each of their blocks.
PIECES = ([5], [1, 1], [16, 1, 2], [64, 7, 130], [600, 3, 700], [1] * 41, [3] * 90)
OTHERS: dict[str, dict[str, Any]] = {
    "all modes": {
        "d_model": 40, "n_layers": 3, "n_heads": 3, "head_dim": 10, "n_slots": 5, "mlp_ratio": 2, "own_readout": True,
        "output_gate": True, "inner": 3, "innovation": "value", "kernel": "gaussian",
    },
    "attention": {
        "d_model": 32, "n_layers": 1, "n_heads": 2, "head_dim": 8, "n_slots": 0, "mlp_ratio": 2, "unit_norm": True,
        "rotate_values": False,
    },
}  # fmt: skip


@dataclass
class Ledger:
    """Takes every launch and runs none: which kernel it fits, or its name."""

    kernels: list[StoredKernel]
    taken: set[int] = field(default_factory=set)
    missed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, config: Mapping[str, Any], architecture: int) -> Ledger:
        """What export would compile for an architecture, by a process without Triton's interpreter."""
        recorded = run_without_interpreter(RECORD, json.dumps(dict(config)), str(architecture))
        entries = [KernelEntry.model_construct(**entry) for entry in read_entries(recorded)]
        return cls([StoredKernel(entry, b"", "") for entry in entries])

    def take(self, call: KernelCall) -> bool:
        fitting = [i for i, kernel in enumerate(self.kernels) if kernel.fits(call.name, call.values, call.options)]
        self.taken.update(fitting)
        if not fitting:
            self.missed.append(call.name)
        return True


def read_entries(text: str) -> list[dict[str, Any]]:
    return [
        {**entry, "parameters": [Parameter(**part) for part in entry["parameters"]]}
        for entry in json.loads(text.splitlines()[-1])
    ]


def assert_all_are_taken(ledger: Ledger) -> None:
    assert not ledger.missed, sorted(set(ledger.missed))
    unused = [kernel.entry.name for i, kernel in enumerate(ledger.kernels) if i not in ledger.taken]
    assert not unused, unused


def serve(runtime: TorchLanguageRuntime, pieces: Sequence[int]) -> None:
    """Prompts of so many tokens, each in two pieces where it has two tokens, then two draws of all, in both modes."""
    draws = Draws([Choice(0.8, 40, 0.9, top=2)] * len(pieces), np.float32(1))
    for mode in runtime.modes:
        contexts: list[Any] = [runtime.start(mode) for _ in pieces]
        for counts in ([-(-count // 2) for count in pieces], [max(1, count // 2) for count in pieces]):
            for advance in runtime.prefill(contexts, [[1] * count for count in counts]):
                advance.commit()
        for _ in range(2):
            noise = np.zeros((len(pieces), *runtime.latent_shape), np.float32)
            for advance in runtime.draw(contexts, [2] * len(pieces), noise, draws)[1]:
                advance.commit()
        for context in contexts:
            context.release()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90])
def test_serving_the_shipped_bundle_launches_what_is_stored_alone(books_bundle: Path, architecture: int) -> None:
    bundle = open_bundle(books_bundle)
    ledger = Ledger.of(bundle.config, architecture)
    with simulated_gpu(divmod(architecture, 10)), intercepted_launches(ledger.take):
        for dtype in DTYPES:
            runtime = runtime_of(bundle, dtype, rows=max(map(len, PIECES)))
            for pieces in PIECES:
                serve(runtime, pieces)
    assert_all_are_taken(ledger)


@torch.no_grad()
@pytest.mark.parametrize("what", ["all modes", pytest.param("attention", marks=pytest.mark.slow)])
def test_serving_other_models_launches_what_is_stored_alone(what: str) -> None:
    config = LanguageModelConfig(vocab_size=61, **OTHERS[what])
    ledger, model = Ledger.of(config.to_dict(), ARCHITECTURE), LanguageModel(config)
    with intercepted_launches(ledger.take):
        for passes in (ServedPasses(model, dtype) for dtype in DTYPES):
            for counts in PIECES:
                pieces, begins, silence = [[1] * n for n in counts], [3] * len(counts), passes.silence(len(counts))
                if passes.has_slots:
                    _, slots = passes.prefill(pieces, begins, initial_slots(model, len(counts)))
                    passes.step([1] * len(counts), begins, silence, slots)
                output, held = passes.extend(pieces, [passes.empty_cache()] * len(counts), silence)
                for is_filtered in (False, True):
                    passes.draw(output, is_filtered=is_filtered)
                passes.extend(pieces, held, silence)
    assert_all_are_taken(ledger)
