"""The layers: who may import whom, what loads without what, and what no file may contain."""

from __future__ import annotations

import ast
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
# The one exception: what runs on a GPU runs the model's own kernels. It is imported only on request.
GPU_RUNTIME = ROOT / "runtime" / "gpu"
NOT_INSTALLED_FOR_SERVING = {"torch", "triton", "onnx", "onnxscript", "scipy"}
# What serving a model on a CPU may not import, of ours.
NOT_FOR_SERVING = {"rfa.model", "rfa.training", "rfa.export", "rfa.fitting"}


def sources(layer: str) -> list[Path]:
    found = sorted((ROOT / layer).rglob("*.py"))
    assert found, f"no source files in {layer}"
    return found


def module_name(path: Path) -> str:
    return ".".join(["rfa", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


def layer_of(name: str) -> str | None:
    """The layer of a module of ours; None for all others."""
    first, *rest = name.split(".")
    return rest[0] if first == "rfa" and rest and rest[0] in ARROWS else None


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere in it, relative imports resolved, as dotted names."""
    name = module_name(path)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield prefix
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def test_every_layer_has_its_arrows() -> None:
    links = {path.name for path in (ROOT / "rfa").iterdir() if path.is_symlink()}
    assert links == {*ARROWS, "bundles"}
    assert all((ROOT / "rfa" / name).resolve() == ROOT / name for name in links)
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert on_disk == {"rfa", *ARROWS}


@pytest.mark.parametrize("layer", ARROWS)
def test_layers_import_only_along_the_arrows(layer: str) -> None:
    bad = set()
    for path in sources(layer):
        allowed = {None, layer} | ARROWS[layer] | ({"model"} if path.is_relative_to(GPU_RUNTIME) else set())
        bad |= {
            f"{path.relative_to(ROOT)} imports {name}"
            for name in imported(path)
            if name.split(".")[0] == "tests" or layer_of(name) not in allowed
        }
    assert not bad


def test_our_modules_have_one_name() -> None:
    """From the repository's folder the layers could be imported by their bare names, a second time."""
    paths = [path for layer in (*ARROWS, "tests") for path in sources(layer)]
    bad = {
        str(path.relative_to(ROOT)) for path in paths if {name.split(".")[0] for name in imported(path)} & set(ARROWS)
    }
    assert not bad


def imported_at_once(path: Path) -> Iterator[str]:
    """The modules that a file imports when it is imported itself: not those of its functions."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_gpu_runtime_is_imported_only_on_request() -> None:
    needs_torch = {
        module_name(path)
        for path in GPU_RUNTIME.glob("*.py")
        if any(name == "torch" or layer_of(name) == "model" for name in imported_at_once(path))
    }
    assert needs_torch
    others = [
        path
        for layer in ("data", "runtime", "fitting", "service", "library", "cli")
        for path in sources(layer)
        if module_name(path) not in needs_torch
    ]
    assert not {str(path.relative_to(ROOT)) for path in others if {*needs_torch, "torch"} & set(imported_at_once(path))}


def test_the_runtime_loads_without_what_only_training_needs() -> None:
    statement = "\n".join(
        f"import {module_name(path)}" for path in sources("runtime") if not path.is_relative_to(GPU_RUNTIME)
    )
    result = run_without(NOT_INSTALLED_FOR_SERVING - {"numba"} | NOT_FOR_SERVING, statement)
    assert result.returncode == 0, result.stderr


def test_onnx_runtime_is_imported_where_its_reports_are_turned_off() -> None:
    door = ROOT / "runtime" / "bundle" / "onnx_runtime.py"
    assert {path for layer in ARROWS for path in sources(layer) if "onnxruntime" in set(imported(path))} == {door}
    code = (
        "import os, rfa.runtime.bundle.bundle;"
        "print(len(os.listdir('/proc/self/task')), os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert result.stdout.split() == ["1", "1"], result  # no thread of its own that would send anything


def run_without(blocked: set[str], statement: str) -> subprocess.CompletedProcess[str]:
    """Run a statement in a fresh interpreter in which some packages cannot be imported."""
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


def test_the_model_works_without_triton_and_numba() -> None:
    statement = (
        "import torch\n"
        "from rfa.runtime.text.config import LanguageModelConfig\n"
        "from rfa.model.language import LanguageModel\n"
        "config = LanguageModelConfig(vocab_size=64, d_model=16, n_layers=1, n_heads=2, head_dim=4)\n"
        "network = LanguageModel(config)\n"
        "for mode in ('attention', 'recurrent'):\n"
        "    network.mode = mode\n"
        "    assert network(torch.zeros(1, 5, dtype=torch.long)).logits.isfinite().all()\n"
        "assert 'torch._dynamo' not in sys.modules, 'the compiler is imported: it takes longer than torch itself'\n"
    )
    result = run_without({"triton", "numba"}, statement)
    assert result.returncode == 0, result.stderr


def test_the_service_works_without_what_only_training_needs() -> None:
    statement = (
        "import rfa.service.server, rfa.service.engine.models\n"
        "import rfa.cli.main, rfa.cli.serve, rfa.cli.filter, rfa.cli.generate\n"
        "from pathlib import Path\n"
        "from rfa.service.settings import Settings\n"
        "models = rfa.service.engine.models.load_models(Settings(bundles=(Path('bundles/linear'),)))\n"
        "result = models.filters['linear'].filter([0.0, 0.1], [[1.0, 0.2], None])\n"
        "assert len(result.steps) == 2\n"
        "from rfa.runtime.uncertainty.interface import MergeOptions\n"
        "other = models.filters['linear'].filter([0.1], [[0.9, 0.1]])\n"
        "options = MergeOptions((result.state, other.state), 'covariance_intersection')\n"
        "assert models.filters['linear'].merge(options).weights\n"
    )
    result = run_without(NOT_INSTALLED_FOR_SERVING | NOT_FOR_SERVING | {"matplotlib"}, statement)
    assert result.returncode == 0, result.stderr


def test_a_recorded_series_is_filtered_without_what_only_training_needs(tmp_path: Path) -> None:
    metric = tmp_path / "metric.csv"
    metric.write_text("t,value\n" + "".join(f"{t},{100 + t % 7}\n" for t in range(60)))
    statement = (
        "from rfa.cli.main import app\n"
        f"for options in (['docs/oscillator.csv', '--bundle', 'linear'], [{str(metric)!r}, '--alarm', '0.01']):\n"
        f"    app(['filter', *options, '--out', {str(tmp_path / 'out.csv')!r}], standalone_mode=False)\n"
    )
    result = run_without(NOT_INSTALLED_FOR_SERVING, statement)
    assert result.returncode == 0, result.stderr
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 61


def test_a_stream_in_the_process_needs_what_serving_needs_and_no_more() -> None:
    statement = (
        "import rfa\n"
        "stream = rfa.Stream(model='auto')\n"
        "steps = [stream.update(None, y) for y in (1.0, 1.5, None, 1.2)]\n"
        "assert steps[2].nis is None and len(stream.forecast(3)) == 3\n"
        "assert rfa.Stream.resume(stream.state).state == stream.state\n"
    )
    result = run_without(NOT_INSTALLED_FOR_SERVING | {"matplotlib", "pandas", "polars"}, statement)
    assert result.returncode == 0, result.stderr


def test_a_fit_needs_no_torch() -> None:
    statement = (
        "import numpy as np, rfa\n"
        "values = np.random.default_rng(0).normal(size=100).cumsum()\n"
        "found = rfa.fit(values, config={'max_free_modes': 0, 'iterations': 5})\n"
        "print(rfa.forecast(values, 2, system=found)['y_mean'])\n"
    )
    missing = NOT_INSTALLED_FOR_SERVING - {"numba", "scipy"} | {"matplotlib", "pandas", "polars", "holidays"}
    result = run_without(missing, statement)
    assert result.returncode == 0, result.stderr


def test_the_supervisor_is_small() -> None:
    """It watches processes that compute and answers their probes: it starts at once, and takes no memory of a model."""
    statement = "import rfa.service.server, rfa.service.process.health, rfa.service.process.supervisor"
    result = run_without({"numpy", "onnxruntime", "tokenizers", "fastapi"}, statement)
    assert result.returncode == 0, result.stderr


def test_compiled_texts_need_numba_and_nothing_else_that_training_needs() -> None:
    statement = (
        "from pathlib import Path\n"
        "from rfa.service.engine.models import load_models\n"
        "from rfa.service.settings import Settings\n"
        "models = load_models(Settings(bundles=(Path('bundles/books'),), max_running=1, max_batch_rows=2))\n"
        "language = models.languages['books']\n"
        "assert language.runtime == 'compiled', language.runtime\n"
        "context = language.start('recurrent')\n"
        "assert language.prefill([context], [[1, 2, 3]])[0].is_finite()\n"
    )
    result = run_without(NOT_INSTALLED_FOR_SERVING - {"numba"} | {"matplotlib"}, statement)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [("Dynamics", "torch", "train"), ("fit", "scipy", "fit")],
)
def test_a_name_whose_extra_is_missing_says_which(name: str, missing: str, extra: str) -> None:
    result = run_without({missing}, f"from rfa import {name}")
    assert result.returncode != 0
    assert f"needs {missing}: pip install 'rfa-server[{extra}]'" in result.stderr.splitlines()[-1]


def test_the_blocker_of_these_tests_blocks() -> None:
    result = run_without({"torch"}, "import torch")
    assert result.returncode != 0
    assert "No module named 'torch'" in result.stderr


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("layer", ARROWS)
def test_nothing_read_from_disk_can_execute(layer: str) -> None:
    bad = []
    for path in sources(layer):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bad += [
            f"{path.relative_to(ROOT)} imports {name}"
            for name in imported(path)
            if name.split(".")[0] in {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
        ]
        for name, call in calls(tree):
            arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            loads_pickle = name in {"torch.load", "torch.save", "eval", "exec", "pd.read_pickle"}
            if loads_pickle or arguments.get("allow_pickle", "False") != "False":
                bad.append(f"{path.relative_to(ROOT)}:{call.lineno} calls {name}")
    assert not bad


# Benchmarks are scripts that share little: each folder of them is held by itself.
NAMESPACES = [
    *sorted(set(ARROWS) - {"benchmarks"}),
    *(f"benchmarks/{path.parent.name}" for path in sorted((ROOT / "benchmarks").glob("*/__init__.py"))),
]


@pytest.mark.parametrize("folder", NAMESPACES)
def test_no_class_name_is_used_twice_in_a_layer(folder: str) -> None:
    places: dict[str, list[str]] = {}
    for path in sources(folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_nobody_changes_the_import_path() -> None:
    bad = [
        path
        for layer in ARROWS
        for path in sources(layer)
        if "sys.path" in re.sub(r'""".*?"""', "", path.read_text(), flags=re.S)
    ]
    assert not bad


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_tracked_file_names_a_folder_of_somebodys_machine() -> None:
    local = re.compile(rb"(?<![\w.])/(?:work|tmp|root|home/\w+|Users/\w+|farm)/[A-Za-z]")
    bad = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}…"
        for path in tracked_files()
        if path != Path(__file__).resolve() and (match := local.search(path.read_bytes()))
    ]
    assert not bad


# `import rfa`.


def test_importing_the_package_imports_nothing_else() -> None:
    result = run_without({"numpy", "torch", "numba", "pydantic"}, "import rfa")
    assert result.returncode == 0, result.stderr


def test_streams_are_filtered_without_torch() -> None:
    """Of a drift with an eigenbasis and of one without (constant velocity)."""
    statement = (
        "import numpy as np\n"
        "import rfa\n"
        "eye = np.eye(2)\n"
        "noises = {'Q': 0.1 * np.eye(4), 'R': eye, 'C': np.block([eye, np.zeros((2, 2))]), 'P0': 9.0}\n"
        "for corner in (0.0, -0.1):\n"
        "    drift = np.block([[corner * eye, eye], [10 * corner * eye, corner * eye]])\n"
        "    stream = rfa.Stream(system={'A': drift, **noises})\n"
        "    times, y = np.array([0.0, 0.5, 1.5]), np.array([[0.1, -0.1], [0.3, -0.3], [0.2, -0.2]])\n"
        "    steps = [stream.update(t, row) for t, row in zip(times, y)]\n"
        "    found = rfa.filter(y, time=times, system={'A': drift, **noises})\n"
        "    assert found['y0_mean'][-1] == steps[-1].mean[0]\n"
    )
    result = run_without(NOT_INSTALLED_FOR_SERVING - {"numba"}, statement)
    assert result.returncode == 0, result.stderr


def test_the_other_names_need_torch_alone() -> None:
    statement = (
        "from rfa import AttentionResult, Dynamics, IRKFState, irkf_scan, irkf_step, load_model\n"
        "from rfa import robust_filter_attention\n"
        "assert load_model('bundles/linear').mode == 'recurrent'\n"
    )
    result = run_without({"triton", "numba", "scipy", "onnx", "onnxscript", "matplotlib", "rfa.benchmarks"}, statement)
    assert result.returncode == 0, result.stderr


# Systems of the papers, in benchmarks/papers/.

MIXER_OF_A_PAPER = """
from rfa.runtime.text.config import LanguageModelConfig
from rfa.model.language import LanguageModel
sizes = {"vocab_size": 8, "d_model": 8, "n_layers": 1, "n_heads": 2, "head_dim": 2}
for mixer in ("softmax", "afa", "radial_tangential"):
    try:
        LanguageModel(LanguageModelConfig(mixer=mixer, **sizes))
        print(mixer, "made")
    except ValueError as error:
        print(mixer, "refused:", error)
"""


@pytest.mark.slow
def test_a_mixer_of_the_papers_is_made_in_a_checkout_and_refused_with_a_reason_elsewhere() -> None:
    checkout = run_without({"triton"}, MIXER_OF_A_PAPER)
    assert checkout.stdout.splitlines() == ["softmax made", "afa made", "radial_tangential made"], checkout.stderr
    installed = run_without({"rfa.benchmarks"}, MIXER_OF_A_PAPER).stdout.splitlines()
    assert installed[0] == "softmax made"
    for line, mixer in zip(installed[1:], ("afa", "radial_tangential"), strict=True):
        assert line.startswith(f"{mixer} refused: the mixer '{mixer}' is a system of the papers")


# Callers: what is shipped is called by what is shipped.

SHIPPED = ("data", "runtime", "model", "fitting", "training", "export", "service", "library", "cli")
HELD_TO_CALLERS = ("runtime", "model", "fitting", "export", "service", "library")
# Decorators that give what they decorate to a framework, which calls it; and names that the application reads of each.
GIVEN_AWAY = ("router.", "_probe(", "typeof_impl.", "register_model(", "unbox(")
READ_OF_EACH = {"router"}
# Modules that are started by their names.
STARTED = {
    "rfa.service.process.__main__",  # `python -m rfa.service.process FD`, by the supervisor
    "rfa.service.deploy_ray",  # `serve run rfa.service.deploy_ray:application`
    "rfa.export.gpu_kernels",  # `python -m rfa.export.gpu_kernels BUNDLE --gpu ARCHITECTURES`
}
# module, or module:name → since when it waits for a caller, and which. Each goes when its caller comes.
WITHOUT_CALLER: dict[str, str] = {}


def shipped_sources() -> list[Path]:
    return [path for layer in SHIPPED for path in sources(layer)] + sorted((ROOT / "rfa").glob("*.py"))


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Top-level names and the statements that make them; those a framework is given by a decorator are called by it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_given = any(ast.unparse(call).startswith(GIVEN_AWAY) for call in node.decorator_list)
            if node.name != "_" and not is_given:
                yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))


def references(path: Path, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of everything of ours that a file takes from another: imported, by attribute, or named in text."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            yield from ((node.module, alias.name) for alias in node.names)
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    modules = {text for text in texts if text.startswith("rfa.")}
    for module in modules:
        yield from ((module, text) for text in texts)
        yield tuple(module.split(":", 1)) if ":" in module else (module, "")  # type: ignore[misc]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases:
            yield aliases[ast.unparse(node.value)], node.attr


def reads(tree: ast.AST) -> Counter[str]:
    """How often each name is read."""
    return Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
    )


def test_what_is_shipped_has_a_caller_that_is_shipped() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in shipped_sources()}
    taken = {reference for path, tree in trees.items() for reference in references(path, tree)}
    waiting = set()
    for path, tree in trees.items():
        module, read = module_name(path), reads(tree)
        if path.relative_to(ROOT).parts[0] not in HELD_TO_CALLERS or path.name == "__init__.py" or module in STARTED:
            continue
        if not any(module in (source, f"{source}.{name}") for source, name in taken):
            waiting.add(module)
            continue
        waiting |= {
            f"{module}:{name}"
            for name, home in definitions(tree)
            if not name.startswith("__") and name not in READ_OF_EACH
            # What only calls itself has no caller.
            if (module, name) not in taken and read[name] == reads(home)[name]
        }
    assert waiting == set(WITHOUT_CALLER)


# Names and sizes.

# Kernels, of which a file is as long as its equations.
KERNELS = ("*_numba.py", "*_numba_learned.py", "triton_*.py")
LONGEST_FILE = 450


@pytest.mark.parametrize("layer", ["model", "training", "fitting", "benchmarks"])
def test_no_file_is_long_but_kernels(layer: str) -> None:
    long = [path.name for path in sources(layer) if path.read_text().count("\n") > LONGEST_FILE]
    assert [name for name in long if not any(Path(name).match(pattern) for pattern in KERNELS)] == []
