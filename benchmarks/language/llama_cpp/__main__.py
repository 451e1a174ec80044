"""The command of the comparison with llama.cpp."""

from __future__ import annotations

import argparse
from pathlib import Path

from rfa.benchmarks.language.llama_cpp import compare
from rfa.benchmarks.results_page.page import tables_of
from rfa.measured import RESULTS, write_result
from rfa.runtime.bundle.locate import BUNDLE_ROOT


def main() -> None:
    """Parse the arguments, measure, and write the result."""
    parser = argparse.ArgumentParser(prog="python -m rfa.benchmarks.language.llama_cpp", description=compare.__doc__)
    parser.add_argument("--python", required=True, help="interpreter with llama-cpp-python, gguf and numpy")
    parser.add_argument("--bundle", type=Path, default=BUNDLE_ROOT / "books")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--core", type=int, default=0, help="core that all processes use")
    parser.add_argument("--out", type=Path, default=RESULTS / "llama-cpp.json")
    given = parser.parse_args()
    document = compare.run(given.python, given.bundle, given.rounds, given.core)
    write_result(given.out, document)
    print(*tables_of("llama-cpp", document), sep="\n")


if __name__ == "__main__":
    main()
