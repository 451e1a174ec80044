"""Bundles that were damaged or tampered with: nothing of them is served, and the reason is one clear line.

What exactly is refused, file by file, is tested in `tests/runtime/bundle/test_bundle.py`;
here real servers are started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.faults.cast import ROOT
from tests.soak.faults.tampering import TAMPERINGS
from tests.waiting import PATIENCE


def tampered(folder: Path, name: str) -> Path:
    bundle = folder / name / "linear"
    shutil.copytree(ROOT / "bundles" / "linear", bundle)
    TAMPERINGS[name][0](bundle)
    return bundle


@pytest.mark.slow
@pytest.mark.parametrize("names", [list(TAMPERINGS)[:5], list(TAMPERINGS)[5:]])
def test_no_server_starts_with_a_bad_bundle(tmp_path: Path, names: list[str]) -> None:
    """Several at the same time, next to a good bundle: not even that is served."""
    good = ROOT / "bundles" / "oscillator"
    # A folder of their own for temporary files: in the usual one they may find, and tell of, what others left behind.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RFA_PROCESSES": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "rfa", "serve", "--port", "0", "--bundle", str(good), "--bundle"]
    servers = {
        name: subprocess.Popen(
            [*command, str(tampered(tmp_path, name))],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    try:
        for name, server in servers.items():
            _, complaint = server.communicate(timeout=PATIENCE)
            assert server.returncode == 1, name
            assert complaint.startswith("rfa: ") and complaint.count("\n") == 1, complaint
            assert TAMPERINGS[name][1] in complaint, complaint
            assert str(tmp_path) not in complaint and "http://" not in complaint
    finally:
        for server in servers.values():
            if server.poll() is None:
                server.kill()
            server.communicate()
