"""`rfa export`, `rfa verify` and `rfa info`: runs become bundles, bundles are checked and described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.console import JsonFlag, print_result

BundleName = Annotated[str, typer.Argument(help="Bundle folder, or the name of a default bundle.", metavar="BUNDLE")]


def _summary(bundle: Any) -> dict[str, Any]:
    files = bundle.manifest.files
    return {
        "name": bundle.name,
        "kind": bundle.kind,
        "digest": bundle.digest,
        "files": len(files),
        "bytes": sum(spec.size for spec in files.values()),
    }


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

        bundle = export_language(run, out, name=name)
    else:
        from export.filter_export import export_filter

        bundle = export_filter(run, out, name=name)
    print_result({"bundle": str(out), **_summary(bundle)}, as_json)


def verify(bundle: BundleName, as_json: JsonFlag = False) -> None:
    """Check every hash and shape of a bundle, and its graphs against its golden outputs."""
    from cli.locate import find_bundle
    from export.bundle import check_golden, open_bundle

    opened = open_bundle(find_bundle(bundle))
    values = check_golden(opened)
    print_result({"verified": True, **_summary(opened), "golden_values": values}, as_json)


def info(bundle: BundleName, as_json: JsonFlag = False) -> None:
    """Describe a bundle: what it is, where it comes from, how it is calibrated."""
    from cli.locate import find_bundle
    from export.bundle import open_bundle

    opened = open_bundle(find_bundle(bundle))
    manifest = opened.manifest
    document = {
        **_summary(opened),
        "config": manifest.config,
        "metrics": manifest.metrics,
        "calibration": manifest.calibration,
        "provenance": manifest.provenance,
    }
    print_result(document, as_json)
