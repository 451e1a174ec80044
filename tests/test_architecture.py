"""The layers: permitted imports, modules that load without optional packages, and forbidden contents of files."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
# layer → the other layers that it may import.
ARROWS: dict[str, set[str]] = {
    "data": set(),
    "runtime": {"data"},
    "model": {"runtime"},
    "fitting": {"data", "runtime"},
    "training": {"data", "runtime", "model", "fitting"},
    "export": {"runtime", "model"},
    "service": {"data", "runtime"},
    "library": {"data", "runtime", "fitting"},
    "benchmarks": {"data", "runtime", "model", "fitting", "training", "export", "service", "library"},
    "cli": {"data", "runtime", "model", "fitting", "training", "export", "service", "library", "benchmarks"},
}
# The one exception: the GPU runtime uses the kernels of the model. It is imported only on request.
GPU_RUNTIME = ROOT / "runtime" / "gpu"
NEEDS_NO_TORCH = ("data", "runtime", "fitting", "service", "library", "cli")


def sources(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"no source files in {folder}"
    return found


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))


def dotted(node: ast.AST) -> str | None:
    """Return a name such as `a.b.c`, or None for any other expression."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and f"{base}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def module_name(path: Path) -> str:
    return ".".join(["rfa", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


def layer_of(name: str) -> str | None:
    """Return the layer of one of our modules, or None."""
    first, *rest = name.split(".")
    return rest[0] if first == "rfa" and rest and rest[0] in ARROWS else None


@functools.cache
def imported(path: Path, *, at_once: bool = False) -> frozenset[str]:
    """Return the dotted names of all imports of a file, or with `at_once` only of those at module level. Relative
    imports are resolved."""
    name = module_name(path)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in parsed(path).body if at_once else nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            found |= {prefix, *(f"{prefix}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def test_every_layer_has_its_arrows() -> None:
    links = {path.name for path in (ROOT / "rfa").iterdir() if path.is_symlink()}
    assert links == {*ARROWS, "bundles"}
    assert all((ROOT / "rfa" / name).resolve() == ROOT / name for name in links)
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert on_disk == {"rfa", *ARROWS}


@pytest.mark.parametrize("layer", [*ARROWS, "tests"])
def test_layers_import_only_along_the_arrows(layer: str) -> None:
    """And by one name: from the repository's folder they could be imported by their bare ones, a second time."""
    bad = set()
    for path in sources(layer):
        allowed = {None, layer} | ARROWS.get(layer, {*ARROWS}) | ({"model"} if path.parent == GPU_RUNTIME else set())
        without = {*ARROWS} if layer == "tests" else {*ARROWS, "tests"}
        bad |= {
            f"{path.relative_to(ROOT)} imports {name}"
            for name in imported(path)
            if name.split(".")[0] in without or layer_of(name) not in allowed
        }
    assert not bad


def test_the_gpu_runtime_is_imported_only_on_request() -> None:
    needs_torch = {
        module_name(path)
        for path in sources("runtime/gpu")
        if any(name == "torch" or layer_of(name) == "model" for name in imported(path, at_once=True))
    }
    assert needs_torch
    others = [path for layer in NEEDS_NO_TORCH for path in sources(layer) if module_name(path) not in needs_torch]
    assert not {
        str(path.relative_to(ROOT)) for path in others if {*needs_torch, "torch"} & imported(path, at_once=True)
    }


def test_onnx_runtime_is_imported_where_its_reports_are_turned_off() -> None:
    door = ROOT / "runtime" / "bundle" / "onnx_runtime.py"
    assert {path for layer in ARROWS for path in sources(layer) if "onnxruntime" in imported(path)} == {door}
    code = (
        "import os, rfa.runtime.bundle.bundle;"
        "print(len(os.listdir('/proc/self/task')), os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert result.stdout.split() == ["1", "1"], result  # no thread that would send anything


# Modules that load without optional packages.


def run_without(blocked: set[str], statement: str) -> subprocess.CompletedProcess[str]:
    """Run a statement in a new interpreter without some packages."""
    code = f"""
import sys

class Remaining:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        is_blocked = any(name == one or name.startswith(one + ".") for one in {sorted(blocked)!r})
        return None if is_blocked else self._finder.find_spec(name, path, target)

sys.meta_path = [Remaining(finder) for finder in sys.meta_path]
{statement}
"""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)


NOT_INSTALLED_FOR_SERVING = {"torch", "triton", "onnx", "onnxscript", "scipy", "matplotlib", "pandas", "polars"}
# Our modules that serving on a CPU may not import.
NOT_FOR_SERVING = {"rfa.model", "rfa.training", "rfa.export", "rfa.fitting"}
RUNTIME = "\n".join(
    f"import {module_name(path)}" for path in sources("runtime") if not path.is_relative_to(GPU_RUNTIME)
)
# Series and texts with the service, the command and the library; drifts with and without an eigenbasis.
SERVING = """
import tempfile
from pathlib import Path
import numpy as np
import rfa, rfa.service.server, rfa.cli.serve, rfa.cli.generate
from rfa.cli.main import app
from rfa.runtime.uncertainty.interface import MergeOptions
from rfa.service.engine.models import load_models
from rfa.service.settings import Settings

bundles = (Path("bundles/linear"), Path("bundles/books"))
models = load_models(Settings(bundles=bundles, max_running=1, max_batch_rows=2))
linear, language = models.filters["linear"], models.languages["books"]
result = linear.filter([0.0, 0.1], [[1.0, 0.2], None])
other = linear.filter([0.1], [[0.9, 0.1]])
assert len(result.steps) == 2
assert linear.merge(MergeOptions((result.state, other.state), "covariance_intersection")).weights
assert language.runtime == "compiled", language.runtime
assert language.prefill([language.start("recurrent")], [[1, 2, 3]])[0].is_finite()

with tempfile.TemporaryDirectory() as folder:
    metric, out = Path(folder, "metric.csv"), Path(folder, "out.csv")
    metric.write_text("t,value\\n" + "".join(f"{t},{100 + t % 7}\\n" for t in range(60)))
    for options in (["docs/oscillator.csv", "--bundle", "linear"], [str(metric), "--alarm", "0.01"]):
        app(["filter", *options, "--out", str(out)], standalone_mode=False)
    assert len(out.read_text().splitlines()) == 61

stream = rfa.Stream(model="auto")
steps = [stream.update(None, y) for y in (1.0, 1.5, None, 1.2)]
assert steps[2].nis is None and len(stream.forecast(3)) == 3
assert rfa.Stream.resume(stream.state).state == stream.state
eye = np.eye(2)
noises = {"Q": 0.1 * np.eye(4), "R": eye, "C": np.block([eye, np.zeros((2, 2))]), "P0": 9.0}
for corner in (0.0, -0.1):
    system = {"A": np.block([[corner * eye, eye], [10 * corner * eye, corner * eye]]), **noises}
    stream = rfa.Stream(system=system)
    times, y = np.array([0.0, 0.5, 1.5]), np.array([[0.1, -0.1], [0.3, -0.3], [0.2, -0.2]])
    steps = [stream.update(t, row) for t, row in zip(times, y)]
    assert rfa.filter(y, time=times, system=system)["y0_mean"][-1] == steps[-1].mean[0]
"""
FIT = """
import numpy as np, rfa
values = np.random.default_rng(0).normal(size=100).cumsum()
found = rfa.fit(values, config={"max_free_modes": 0, "iterations": 5})
assert np.isfinite(rfa.forecast(values, 2, system=found)["y_mean"]).all()
"""
MODEL = """
import torch
from rfa import AttentionResult, Dynamics, IRKFState, irkf_scan, irkf_step, load_model, robust_filter_attention
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig

assert load_model("bundles/linear").mode == "recurrent"
sizes = {"vocab_size": 64, "d_model": 16, "n_layers": 1, "n_heads": 2, "head_dim": 4}
network = LanguageModel(LanguageModelConfig(**sizes))
for mode in ("attention", "recurrent"):
    network.mode = mode
    assert network(torch.zeros(1, 5, dtype=torch.long)).logits.isfinite().all()
assert "torch._dynamo" not in sys.modules, "the compiler is imported: it takes longer than torch itself"
LanguageModel(LanguageModelConfig(mixer="softmax", **sizes))
for mixer in ("afa", "radial_tangential"):
    try:
        LanguageModel(LanguageModelConfig(mixer=mixer, **sizes))
    except ValueError as error:
        assert str(error).startswith(f"the mixer '{mixer}' is not part of the installed package"), error
    else:
        raise AssertionError(mixer)
"""
WITHOUT: dict[str, tuple[set[str], str]] = {
    "the package": ({"numpy", "torch", "numba", "pydantic"}, "import rfa"),
    # The supervisor must start at once and without the memory of a model.
    "the supervisor": (
        {"numpy", "onnxruntime", "tokenizers", "fastapi"},
        "import rfa.service.server, rfa.service.process.health, rfa.service.process.supervisor",
    ),
    "the runtime and serving": (NOT_INSTALLED_FOR_SERVING | NOT_FOR_SERVING, f"{RUNTIME}\n{SERVING}"),
    "fitting": (NOT_INSTALLED_FOR_SERVING - {"scipy"} | {"holidays"}, FIT),
    "the model": ({"triton", "numba", "scipy", "onnx", "onnxscript", "matplotlib", "rfa.benchmarks"}, MODEL),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_it_works_without_what_only_others_need(what: str) -> None:
    result = run_without(*WITHOUT[what])
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("name", "missing", "extra"), [("Dynamics", "torch", "train"), ("fit", "scipy", "fit")])
def test_a_name_whose_extra_is_missing_says_which(name: str, missing: str, extra: str) -> None:
    result = run_without({missing}, f"from rfa import {name}")
    assert result.returncode != 0
    assert f"needs {missing}; install it with pip install 'rfa-server[{extra}]'" in result.stderr.splitlines()[-1]


# Forbidden contents of files.


@pytest.mark.parametrize("layer", ARROWS)
def test_nothing_read_from_disk_can_execute(layer: str) -> None:
    bad = []
    for path in sources(layer):
        modules = imported(path) & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
        bad += [f"{path.relative_to(ROOT)} imports {name}" for name in modules]
        for call in nodes(path):
            if isinstance(call, ast.Call):
                name = dotted(call.func)
                allows_pickle = any(
                    keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False" for keyword in call.keywords
                )
                loads_pickle = name in {"torch.load", "torch.save", "eval", "exec", "pd.read_pickle"}
                if loads_pickle or allows_pickle:
                    bad.append(f"{path.relative_to(ROOT)}:{call.lineno} calls {name}")
    assert not bad


def test_nobody_changes_the_import_path() -> None:
    used = [
        path for layer in ARROWS for path in sources(layer) if any(dotted(node) == "sys.path" for node in nodes(path))
    ]
    assert not used


# Benchmarks share little, so each folder is checked separately.
@pytest.mark.parametrize(
    "folder",
    [*(layer for layer in ARROWS if layer != "benchmarks"),
     *(f"benchmarks/{path.parent.name}" for path in (ROOT / "benchmarks").glob("*/__init__.py"))],
)  # fmt: skip
def test_no_class_name_is_used_twice_in_a_layer(folder: str) -> None:
    counts = Counter(node.name for path in sources(folder) for node in nodes(path) if isinstance(node, ast.ClassDef))
    assert not {name for name, count in counts.items() if count > 1}


def test_no_tracked_file_names_a_folder_of_somebodys_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    local = re.compile(rb"(?<![\w.])/(?:work|tmp|root|home/\w+|Users/\w+|farm)/[A-Za-z]")
    bad = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}…"
        for path in paths
        if path != Path(__file__).resolve() and (match := local.search(path.read_bytes()))
    ]
    assert not bad


# A kernel file is as long as its equations.
KERNELS = ("*_numba.py", "*_numba_learned.py", "triton_*.py")
LONGEST_FILE = 450


@pytest.mark.parametrize("layer", ["model", "training", "fitting", "benchmarks"])
def test_no_file_is_long_but_kernels(layer: str) -> None:
    long = [path.name for path in sources(layer) if path.read_text().count("\n") > LONGEST_FILE]
    assert [name for name in long if not any(Path(name).match(pattern) for pattern in KERNELS)] == []


# Shipped code must have callers in shipped code.

SHIPPED = (*(layer for layer in ARROWS if layer != "benchmarks"), "rfa", "docs")
HELD_TO_CALLERS = ("runtime", "model", "fitting", "export", "service", "library")
# Decorators that register functions with a framework.
GIVEN_AWAY = ("router.", "_probe(", "typeof_impl.", "register_model(", "unbox(", "infer", "lower_")
# Modules that are started by name.
STARTED = {
    "rfa.service.process.__main__",  # `python -m rfa.service.process FD`, by the supervisor
    "rfa.library.spark",  # imported where Spark is, see docs/guides/engines.md
    "rfa.service.deploy_ray",  # `serve run rfa.service.deploy_ray:application`
    "rfa.export.transformers_model",  # copied into exported folders by `rfa.export.transformers_export`
    "rfa.export.gpu_kernels",  # `python -m rfa.export.gpu_kernels BUNDLE --gpu ARCHITECTURES`
}


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Return top-level names with their statements. Decorators of frameworks count as callers."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_given = any(ast.unparse(call).startswith(GIVEN_AWAY) for call in node.decorator_list)
            if node.name != "_" and not is_given:
                yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))


def references(path: Path) -> Iterator[tuple[str, str]]:
    """Return (module, name) of all our names that a file uses: imported, by attribute, or in text."""
    aliases: dict[str, str] = {}
    for node in nodes(path):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            yield from ((node.module, alias.name) for alias in node.names)
    texts = {node.value for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for module in (text for text in texts if text.startswith("rfa.")):
        yield from ((module, text) for text in texts)
        yield tuple(module.split(":", 1)) if ":" in module else (module, "")  # type: ignore[misc]
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and (name := dotted(node.value)) in aliases:
            yield aliases[name], node.attr


def reads(tree: ast.AST) -> Counter[str]:
    """Count the uses of each name."""
    return Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
    )


def test_what_is_shipped_has_a_caller_that_is_shipped() -> None:
    taken = {reference for folder in SHIPPED for path in shipped(folder) for reference in references(path)}
    uncalled = set()
    for path in (path for folder in HELD_TO_CALLERS for path in sources(folder)):
        module, tree = module_name(path), parsed(path)
        if path.name == "__init__.py" or module in STARTED:
            continue
        if not any(module in (source, f"{source}.{name}") for source, name in taken):
            uncalled.add(module)
            continue
        read = reads(tree)
        uncalled |= {
            f"{module}:{name}"
            for name, home in definitions(tree)
            if not name.startswith("__") and name != "router"  # the application reads it from modules
            # A function that only calls itself has no caller.
            if (module, name) not in taken and read[name] == reads(home)[name]
        }
    assert not uncalled


def shipped(folder: str) -> list[Path]:
    return sorted((ROOT / "rfa").glob("*.py")) if folder == "rfa" else sources(folder)
