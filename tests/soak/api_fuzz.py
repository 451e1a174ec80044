"""Requests of any shape to a live server: never a 5xx, an undocumented status, or an answer that is not its schema's.

    python -m tests.soak.api_fuzz --cases 10000

Schemathesis walks /openapi.json: examples, boundaries of every field, generated requests, and stateful chains of them.
Then Hypothesis sends raw cases (`tests.soak.raw_cases`): documents of every POST route and of the WebSocket with
parts replaced by something else, text that is no JSON, wrong methods, wrong content types. At the end the server must
be ready, idle, and answer as at the start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
from hypothesis import HealthCheck, Phase, given, seed, settings
from prometheus_client.parser import text_string_to_metric_families
from tqdm import tqdm

from rfa.benchmarks.load.server import started
from rfa.measured import RESULTS, origin, write_result
from rfa.runtime.bundle.locate import default_bundles
from tests.soak.connection import Answer, Connection
from tests.soak.raw_cases import Frames, RawRequest, cases, unchanged
from tests.waiting import PATIENCE, TooLate, wait_until

RESULT = RESULTS / "api-fuzz.json"
SETTINGS: dict[str, Any] = {
    "processes": 1,
    "max_new_tokens": 16,
    "max_prompt_tokens": 512,
    "max_attention_tokens": 256,
    "max_observations": 64,
    "max_reply_numbers": 50_000,
    "max_body_bytes": 100_000,
    "sessions": "memory",
}
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
PHASES = "examples,coverage,fuzzing,stateful"
EVENTS = "text/event-stream"
ERROR_KEYS = {"message", "type", "param", "code"}
TERMINAL = ("done", "error")
MOST_EXAMPLES = 10


@dataclass
class Tally:
    """What the server answered.

    Attributes:
        statuses: raw cases by route and status.
        mistakes: answers that must not be, by kind, with the first few told.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    mistakes: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def mistake(self, kind: str, example: str) -> None:
        """Count an answer that must not be."""
        self.mistakes[kind] += 1
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{kind}: {example}"[:1000])


class Judge:
    """Holds answers to an OpenAPI document."""

    def __init__(self, document: dict[str, Any], tally: Tally) -> None:
        self._document = document
        self._tally = tally
        self._validators: dict[str, jsonschema.Draft202012Validator] = {}

    @property
    def operations(self) -> dict[str, list[str]]:
        """Methods by path, in upper case."""
        return {path: [method.upper() for method in methods] for path, methods in self._document["paths"].items()}

    def judge(self, request: RawRequest, answer: Answer) -> None:
        """Count an answer and what is wrong with it."""
        reported = f"{request} → {answer.status} {answer.body[:300]!r}"
        existing = self._document["paths"].get(request.path, {})
        self._tally.statuses[f"{request.path if existing else 'other'} {answer.status}"] += 1
        if answer.status >= 500:
            self._tally.mistake("5xx", reported)
        responses = existing.get(request.method.lower(), {}).get("responses", {})
        if existing and request.method.lower() in existing and str(answer.status) not in responses:
            self._tally.mistake("undocumented status", reported)
        if request.method != "HEAD":
            self._judge_body(responses.get(str(answer.status), {}).get("content", {}), answer, reported)

    def _judge_body(self, content: dict[str, Any], answer: Answer, reported: str) -> None:
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        try:
            documents = _documents(media_type, answer.body)
        except ValueError as error:
            self._tally.mistake("invalid JSON", f"{error}: {reported}")
            return
        if answer.status >= 400 and not (len(documents) == 1 and is_error(documents[0])):
            self._tally.mistake("error of another shape", reported)
        schema = _schema_of_documents(media_type, content.get(media_type, {}))
        if schema and documents and not all(self._fits(document, schema) for document in documents):
            self._tally.mistake("not its schema", reported)

    def _fits(self, document: Any, schema: dict[str, Any]) -> bool:
        key = json.dumps(schema, sort_keys=True)
        if key not in self._validators:
            whole = {**schema, "components": self._document["components"]}
            self._validators[key] = jsonschema.Draft202012Validator(whole)
        return self._validators[key].is_valid(document)


def _schema_of_documents(media_type: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Of each JSON document in a body: of a stream its lines, of server-sent events their data."""
    if "itemSchema" not in content:
        return content.get("schema")
    item: dict[str, Any] = content["itemSchema"]
    return item["properties"]["data"]["contentSchema"] if media_type == EVENTS else item


def is_error(document: Any) -> bool:
    """Whether a document is the one error shape."""
    return (
        isinstance(document, dict)
        and set(document) == {"error"}
        and isinstance(document["error"], dict)
        and set(document["error"]) == ERROR_KEYS
        and all(isinstance(document["error"][key], str) for key in ERROR_KEYS - {"param"})
    )


def _documents(media_type: str, body: bytes) -> list[Any]:
    """The JSON documents of an answer; none where it is something else.

    Raises:
        ValueError: one is not JSON as the RFC has it.
    """
    match media_type:
        case "application/json":
            parts = [body]
        case "application/x-ndjson":
            parts = body.splitlines()
        case _ if media_type == EVENTS:
            parts = [line[6:] for line in body.split(b"\n\n") if line and line != b"data: [DONE]"]
        case _:
            parts = []
    return [json.loads(part, parse_constant=_refuse_constant) for part in parts]


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


class Fuzz:
    """Raw cases against one server."""

    def __init__(self, url: str, tally: Tally) -> None:
        self._url = url
        self._tally = tally
        self._runner = asyncio.Runner()
        self._connection = Connection(url)
        self.judge = Judge(_get(f"{url}/openapi.json"), tally)

    def send(self, case: RawRequest | Frames) -> None:
        """Send a case and judge the answer."""
        self._runner.run(self._send_frames(case) if isinstance(case, Frames) else self._send_request(case))

    def close(self) -> None:
        """Close the connections."""
        self._connection.drop()
        self._runner.close()

    async def _send_request(self, request: RawRequest) -> None:
        try:
            answer = await self._connection.ask(request.encoded, has_body=request.method != "HEAD")
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self._connection.drop()
            self._tally.mistake("no whole answer", f"{request}: {error!r}")
            return
        self.judge.judge(request, answer)

    async def _send_frames(self, frames: Frames) -> None:
        """A live stream: whatever is sent, exactly one terminal frame comes, and it is the last."""
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{self._url}/filter/stream") as socket:
            for frame in (*frames.texts, '{"close": true}'):
                if socket.closed:
                    break
                await (socket.send_bytes(frame) if isinstance(frame, bytes) else socket.send_str(frame))
            async with asyncio.timeout(PATIENCE):
                received = [message.data async for message in socket]
            code = socket.close_code
        self._tally.statuses[f"/filter/stream closed {code}"] += 1
        self._judge_frames(frames, received, code)

    def _judge_frames(self, frames: Frames, received: list[Any], code: int | None) -> None:
        reported = f"{frames} → {received[-2:]} {code}"
        try:
            documents = [json.loads(text, parse_constant=_refuse_constant) for text in received]
        except ValueError:
            self._tally.mistake("invalid JSON", reported)
            return
        endings = [any(key in document for key in TERMINAL) for document in documents]
        if endings != [False] * (len(endings) - 1) + [True]:
            self._tally.mistake("not one terminal frame", reported)
        elif "error" in documents[-1] and not is_error(documents[-1]):
            self._tally.mistake("error of another shape", reported)
        if code not in (1000, 1008):
            self._tally.mistake("close code", reported)


def run_cases(fuzz: Fuzz, count: int, number: int, *, progress: bool = False) -> None:
    """So many cases: every valid document as it is, then what Hypothesis makes of them.

    Hypothesis takes constants from whatever modules are loaded, so its cases are not the same in every process.
    """
    strategy = cases(fuzz.judge.operations)
    plain = unchanged(fuzz.judge.operations)
    with tqdm(total=count, desc="raw cases", disable=not progress, mininterval=1) as bar:

        @seed(number)
        @settings(
            max_examples=count - len(plain),
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def send(case: RawRequest | Frames) -> None:
            fuzz.send(case)
            bar.update()

        for request in plain:
            fuzz.send(request)
            bar.update()
        send()


def run_schemathesis(url: str, examples: int, number: int) -> dict[str, Any]:
    """What Schemathesis found: its exit code, its counts by phase, and the end of what it said."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", CHECKS,
            "--phases", PHASES, "--max-examples", str(examples), "--seed", str(number), "--continue-on-failure",
            "--generation-database", "none", "--no-color", "--suppress-health-check", "all",
        ]  # fmt: skip
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    summary = process.stdout[process.stdout.find("= SUMMARY =") :]
    return {"exit_code": process.returncode, "examples": examples, "summary": summary.splitlines()[1:40]}


def after_all(url: str) -> dict[str, Any]:
    """What is left at the end: readiness, and what still holds state or a place."""
    names = ("rfa_num_requests_running", "rfa_num_requests_waiting", "rfa_num_streams", "rfa_state_slots_used")

    def left() -> dict[str, float]:
        with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        samples = [sample for family in families for sample in family.samples]
        missing = set(names) - {sample.name for sample in samples}
        if missing:
            raise RuntimeError(f"the server has no metric {', '.join(sorted(missing))}")
        return {name: sum(sample.value for sample in samples if sample.name == name) for name in names}

    with suppress(TooLate):  # what is still there is told below
        wait_until(lambda: not any(left().values()))
    return {"ready": _get(f"{url}/ready").get("status") == "ready", **left()}


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
        return json.loads(reply.read())


def is_met(document: dict[str, Any]) -> bool:
    """Whether nothing went wrong and nothing is left."""
    after = document["after"]
    is_idle = not any(value for name, value in after.items() if name != "ready")
    found = document["schemathesis"]
    return not document["mistakes"] and after["ready"] and is_idle and (found is None or found["exit_code"] == 0)


def main() -> int:
    """Fuzz a server and store what happened; 1 if any answer was not as it must be."""
    parser = argparse.ArgumentParser(description="Requests of any shape against a live server.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=400, help="of Schemathesis, an operation; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    tally = Tally()
    with started(default_bundles(), SETTINGS) as target:
        fuzz = Fuzz(target.url, tally)
        try:
            run_cases(fuzz, arguments.cases, arguments.seed, progress=True)
        finally:
            fuzz.close()
        found = run_schemathesis(target.url, arguments.examples, arguments.seed) if arguments.examples else None
        after = after_all(target.url)
    document = {
        **origin("python -m tests.soak.api_fuzz"),
        "seed": arguments.seed,
        "settings": SETTINGS,
        "raw_cases": tally.statuses.total(),
        "statuses": dict(sorted(tally.statuses.items())),
        "mistakes": dict(tally.mistakes),
        "examples": tally.examples,
        "schemathesis": found,
        "after": after,
    }
    write_result(arguments.out, document)
    print(
        f"{document['raw_cases']} raw cases, {tally.mistakes.total()} mistakes; "
        f"Schemathesis {'left out' if found is None else 'ended with ' + str(found['exit_code'])}; at the end {after}"
    )
    return 0 if is_met(document) else 1


if __name__ == "__main__":
    raise SystemExit(main())
