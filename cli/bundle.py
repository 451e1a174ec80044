"""`rfa export`, `rfa verify` and `rfa info`: runs become bundles, bundles are checked and described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import JsonFlag, print_result

if TYPE_CHECKING:
    from export.bundle import Bundle

BundleName = Annotated[str, typer.Argument(help="Bundle folder, or the name of a default bundle.", metavar="BUNDLE")]


def export(
    run: Annotated[
        Path, typer.Argument(help="Run directory of `rfa train`.", metavar="RUN", exists=True, file_okay=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Bundle folder to write; replaced if it is a bundle.", metavar="BUNDLE")
    ],
    name: Annotated[str | None, typer.Option(help="Name that requests use; default the folder's name.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Turn a trained run into a bundle: graphs, calibration, golden outputs, hashes."""
    config = run / "config.json"
    if not config.is_file():
        raise ValueError(f"{run} is not a run: it has no config.json")
    if json.loads(config.read_text())["family"] == "language":
        from export.language_export import export_language

        bundle: Bundle = export_language(run, out, name=name)
    else:
        from export.filter_export import export_filter

        bundle = export_filter(run, out, name=name)
    size = sum(spec.size for spec in bundle.manifest.files.values())
    document = {"bundle": str(out), "name": bundle.name, "kind": bundle.kind, "digest": bundle.digest, "bytes": size}
    print_result(document, as_json)


def verify(bundle: BundleName, as_json: JsonFlag = False) -> None:
    """Check a bundle: hashes, shapes, golden outputs, and, with torch installed, its graphs against the model."""
    from cli.locate import find_bundle
    from export.verify import verify_bundle

    report = verify_bundle(find_bundle(bundle))
    document = report.to_dict()
    if not as_json:
        largest = max((comparison.error for comparison in report.comparisons), default=None)
        document["comparisons"] = len(report.comparisons)
        document["largest_error"] = largest
    print_result(document, as_json)
    if not report.passed:
        far = [comparison.what for comparison in report.comparisons if not comparison.passed]
        raise ValueError(f"{report.name}: the graphs differ from the model: {', '.join(far)}")


def info(bundle: BundleName, as_json: JsonFlag = False) -> None:
    """Describe a bundle: what it is, where it comes from, how it is calibrated."""
    from cli.locate import find_bundle
    from export.verify import bundle_info

    print_result(bundle_info(find_bundle(bundle)), as_json)
