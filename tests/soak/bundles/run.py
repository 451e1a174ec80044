"""Every bundle of the two catalogues is tried as the server tries it, under strace."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from rfa.runtime.bundle.bundle import Bundle, BundleError, open_bundle
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.bundle.signing import PublicKey, SecretKey, sign_bundle
from rfa.service.bundle_checks import subprocess_check
from tests.soak.bundles import graphs
from tests.soak.bundles.case import Case
from tests.soak.bundles.live import Offered, offer
from tests.soak.bundles.mutations import catalogue, seal
from tests.soak.bundles.opened import STRACE, outside

Outcome = Literal["refused", "equivalent", "another"]
SECONDS, MEMORY_BYTES = 20.0, 2 << 30
ENDED = re.compile(r"was ended by (SIG\w+)")
KEY = SecretKey(b"soaking!", bytes(range(32)))


@dataclass
class Tried:
    """What came of a case alone. `outcome` "equivalent": it was accepted, and all that serving uses is what it was;
    "another": it was accepted, and is another bundle that fits together, which only a signature tells."""

    case: Case
    outcome: Outcome
    reason: str
    seconds: float
    opened: list[str]
    is_refused_unsigned: bool


@dataclass
class Report:
    """All of it."""

    tried: list[Tried] = field(default_factory=list)
    offered: Offered = field(default_factory=Offered)

    def to_document(self) -> dict[str, Any]:
        """Counts by family, and each case that was accepted or opened something."""
        families: dict[str, Counter[str]] = {}
        for entry in self.tried:
            families.setdefault(entry.case.family, Counter())[entry.outcome] += 1
        ended = Counter(found[1] for entry in self.tried if (found := ENDED.search(entry.reason)))
        return {
            "tried": len(self.tried),
            "by_family": {name: dict(sorted(counts.items())) for name, counts in sorted(families.items())},
            "accepted": [
                {"case": str(entry.case), "outcome": entry.outcome}
                for entry in self.tried
                if entry.outcome != "refused"
            ],
            "not_refused_where_signatures_are_asked_for": sum(not entry.is_refused_unsigned for entry in self.tried),
            "trials_ended_by_signal": dict(ended),
            "opened_outside": {str(entry.case): entry.opened for entry in self.tried if entry.opened},
            "longest_seconds": round(max(entry.seconds for entry in self.tried), 1),
            "median_seconds": round(float(np.median([entry.seconds for entry in self.tried])), 2),
            "offered_to_a_server": self.offered.to_document(),
        }

    @property
    def missed(self) -> list[str]:
        """Bars that were missed."""
        found = []
        for entry in self.tried:
            name = str(entry.case)
            if entry.case.family == "graphs" and entry.outcome != "refused":
                found.append(f"{name} was accepted")
            if entry.opened:
                found.append(f"{name} opened {entry.opened[0]}")
            if not entry.is_refused_unsigned:
                found.append(f"{name} was accepted unsigned")
        alone = {str(entry.case) for entry in self.tried if entry.outcome != "refused"}
        found += [f"{name} was refused alone and taken by a server" for name in set(self.offered.taken) - alone]
        found += [f"after {name} a server answered otherwise" for name in self.offered.other_answers]
        if self.offered.processes_lost:
            found.append(f"{self.offered.processes_lost} processes of a server were lost")
        if self.offered.outcomes.keys() - {"refused", "committed"}:
            found.append(f"a server said {sorted(self.offered.outcomes)} of a reload")
        return found


def cases(*, mutations: bool = True, malicious: bool = True) -> list[Case]:
    """Both catalogues."""
    found: list[Case] = []
    if mutations:
        found += catalogue(BUNDLE_ROOT)
    if malicious:
        both = {**graphs.FOR_THE_READER, **graphs.FOR_THE_TRIAL}
        found += [Case("oscillator", "graphs", name, _graph(mutation)) for name, mutation in both.items()]
    return found


def _graph(mutation: graphs.Mutation) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "step.onnx"
        path.write_bytes(mutation(onnx.ModelProto.FromString(path.read_bytes())))
        seal(folder)

    return apply


def run(chosen: Sequence[Case], tick: Callable[[], object]) -> Report:
    """Try each in a process of its own under strace, and offer it to a server that serves."""
    report, originals = Report(), {name: open_bundle(BUNDLE_ROOT / name) for name in {case.bundle for case in chosen}}
    with tempfile.TemporaryDirectory(prefix="rfa-soak-") as folder:
        for index, case in enumerate(chosen):
            report.tried.append(_try(case, Path(folder) / str(index), originals[case.bundle]))
            tick()
        report.offered = offer(chosen, BUNDLE_ROOT, Path(folder) / "offered", tick)
    return report


def _try(case: Case, home: Path, original: Bundle) -> Tried:
    copy = home / case.bundle
    shutil.copytree(original.path, copy)
    case.apply(copy)
    trace = home / "trace"
    subprocess_check.PROGRAM = (*STRACE, f"--output={trace}", *_PROGRAM)  # type: ignore[assignment]
    start = time.perf_counter()
    try:
        asyncio.run(subprocess_check.check_bundles([copy], seconds=SECONDS, memory_bytes=MEMORY_BYTES))
        outcome, reason = _accepted(original, open_bundle(copy)), ""
    except BundleError as error:
        outcome, reason = "refused", str(error)
    seconds = time.perf_counter() - start
    opened = outside(trace, copy)
    unsigned = _is_refused(copy, [KEY.public])
    shutil.rmtree(home)
    return Tried(case, outcome, reason, seconds, opened, unsigned)


_PROGRAM = subprocess_check.PROGRAM


def _is_refused(path: Path, keys: Sequence[PublicKey]) -> bool:
    """Without a signature, and with that of the original."""
    original = BUNDLE_ROOT / path.name
    try:
        open_bundle(path, keys)
        return False
    except BundleError:
        pass
    signed = Path(shutil.copytree(original, path.parent / "signed"))
    signature = sign_bundle(signed, open_bundle(signed).digest, KEY)
    shutil.copy(signature, path / signature.name)
    try:
        open_bundle(path, keys)
    except BundleError:
        return True
    # The signature fits only what it was made for.
    return (path / "manifest.json").read_bytes() == (original / "manifest.json").read_bytes()


def _accepted(original: Bundle, mutated: Bundle) -> Outcome:
    """Whether all that serving uses is what it was: then the outputs are, bit for bit."""
    used = all(
        getattr(original.manifest, name) == getattr(mutated.manifest, name)
        for name in ("name", "kind", "family", "config", "state", "tensors", "graphs")
    )
    files = [name for name in original.manifest.files if name.endswith((".onnx", "tokenizer.json"))]
    used = used and all(original.read(name) == mutated.read(name) for name in files)
    used = used and _same(original.weights(), mutated.weights())
    used = used and _same(original.constants() or {}, mutated.constants() or {})
    fields = ("temperature",) if original.kind == "lm" else original.filter.modes
    used = used and all(original.calibration[name] == mutated.calibration[name] for name in fields)
    return "equivalent" if used else "another"


def _same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(one[name].tobytes() == two[name].tobytes() for name in one)
