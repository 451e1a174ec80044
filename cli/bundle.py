"""`rfa export`, `verify`, `info`, `keygen` and `sign`: create, check, describe and sign bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rfa.cli.console import print_result
from rfa.cli.options import BundleName, JsonFlag

if TYPE_CHECKING:
    from rfa.runtime.bundle.bundle import Bundle

# File that exists only in the directory of a finished run.
RECORD_FILE = "train.json"

Run = Annotated[
    Path, typer.Argument(help="Run directory that `rfa train` wrote.", metavar="RUN", exists=True, file_okay=False)
]
Architectures = Annotated[
    str | None,
    typer.Option(
        help="GPU architectures to compile kernels for, separated by commas, such as sm_80,sm_90.",
        metavar="ARCHITECTURES",
    ),
]


def export(
    run: Run,
    out: Annotated[
        Path, typer.Option("--out", help="Bundle directory to write. It replaces an existing bundle.", metavar="BUNDLE")
    ],
    form: Annotated[
        Literal["bundle", "transformers"],
        typer.Option(
            "--format",
            help=(
                "Format of the output. `transformers` writes a directory for AutoModelForCausalLM; RUN may then also "
                "be a bundle."
            ),
        ),
    ] = "bundle",
    name: Annotated[
        str | None, typer.Option(help="Name of the model in requests. By default, the name of the directory.")
    ] = None,
    gpu: Architectures = None,
    as_json: JsonFlag = False,
) -> None:
    """Export a trained run as a bundle with graphs, calibration and hashes, or as a directory for transformers."""
    from rfa.model.checkpoint import read_config

    if form == "transformers":
        from rfa.export.transformers_export import export_transformers

        if name is not None or gpu is not None:
            raise ValueError("--name and --gpu are not supported with --format transformers")
        written = export_transformers(run, out)
        print_result({"folder": str(out), "mode": written["mode"], "code": "modeling_rfa.py"}, as_json)
        return
    family = read_config(run)[0]
    if not (run / RECORD_FILE).is_file():
        raise ValueError(f"training in {run} has not finished; run the same `rfa train` command again to continue it")
    if gpu is not None and family != "language":
        raise ValueError(
            f"--gpu supports only language models, but the model in {run} belongs to the family {family!r}"
        )
    bundle = _export_run(family, run, out, name, gpu)
    size = sum(spec.size for spec in bundle.manifest.files.values())
    document = {"bundle": str(out), "name": bundle.name, "kind": bundle.kind, "digest": bundle.digest, "bytes": size}
    print_result(document, as_json)


def _export_run(family: str, run: Path, out: Path, name: str | None, gpu: str | None) -> Bundle:
    if family == "language":
        from rfa.export.language_export import export_language

        return export_language(run, out, name=name, architectures=_architectures(gpu))
    if family == "series":
        from rfa.export.series_export import export_series

        return export_series(run, out, name=name)
    from rfa.export.filter_calibration import describe_problem
    from rfa.export.filter_export import export_filter

    bundle = export_filter(run, out, name=name)
    if warning := describe_problem(bundle.manifest.calibration):
        typer.echo(f"warning: {warning}", err=True)
    return bundle


def _architectures(gpu: str | None) -> tuple[int, ...]:
    if gpu is None:
        return ()
    from rfa.export.kernel_compile import parse_architectures

    return parse_architectures(gpu)


def verify(
    bundle: BundleName,
    trusted_key: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Minisign public key, or a file of public keys. The bundle must be signed with one of them. Repeatable."
            ),
            metavar="KEY",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check the signature, hashes, shapes and golden outputs of a bundle. If torch is installed, the outputs of the
    graphs are also compared with those of the model. GPU kernels are not run."""
    import asyncio

    from rfa.cli.bundles import find_bundle
    from rfa.export.verify import verify_bundle
    from rfa.runtime.bundle.signing import parse_public_keys
    from rfa.service.bundle_checks.subprocess_check import check_bundles

    path = find_bundle(bundle)
    keys = [key for value in trusted_key or () for key in parse_public_keys(_key_text(value))]
    asyncio.run(check_bundles([path], trusted_keys=[str(key) for key in keys]))
    report = verify_bundle(path, keys)
    document = report.to_dict()
    if not as_json:
        largest = max((comparison.error for comparison in report.comparisons), default=None)
        document["comparisons"] = len(report.comparisons)
        document["largest_error"] = largest
    print_result(document, as_json)
    if not report.passed:
        far = [comparison.what for comparison in report.comparisons if not comparison.passed]
        raise ValueError(
            f"{report.name}: the exported graphs do not reproduce the outputs of the model: {', '.join(far)}"
        )


def keygen(
    out: Annotated[Path, typer.Option("--out", help="Path of the key files, without suffixes.", metavar="PREFIX")],
    as_json: JsonFlag = False,
) -> None:
    """Create a key pair. PREFIX.key signs bundles and is not encrypted; PREFIX.pub verifies their signatures."""
    from rfa.runtime.bundle.signing import write_keys

    paths = write_keys(out)
    public = paths.pub.read_text().splitlines()[1]
    print_result({"secret_key": str(paths.key), "public_key": str(paths.pub), "RFA_TRUSTED_KEYS": public}, as_json)


def sign(
    bundle: BundleName,
    key: Annotated[
        Path,
        typer.Option(
            "--key", help="Secret key created with `rfa keygen` or `minisign -G -W`.", exists=True, dir_okay=False
        ),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Sign a bundle by writing manifest.json.minisig. The digest of the bundle does not change."""
    from rfa.cli.bundles import find_bundle
    from rfa.runtime.bundle.bundle import open_bundle
    from rfa.runtime.bundle.signing import SecretKey, sign_bundle

    secret, path = SecretKey.parse(key.read_text()), find_bundle(bundle)
    opened = open_bundle(path)
    signature = sign_bundle(path, opened.digest, secret)
    document = {"bundle": opened.name, "digest": opened.digest, "signature": str(signature), "key": str(secret.public)}
    print_result(document, as_json)


def _key_text(value: str) -> str:
    """Return the value of an option. If the value is the path of a file, return the content of the file."""
    path = Path(value)
    return path.read_text() if path.is_file() else value


def info(bundle: BundleName, as_json: JsonFlag = False) -> None:
    """Print a description of a bundle: its kind, origin and calibration."""
    from rfa.cli.bundles import find_bundle
    from rfa.export.verify import bundle_info

    print_result(bundle_info(find_bundle(bundle)), as_json)
