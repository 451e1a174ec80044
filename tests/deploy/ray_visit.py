"""Deploy the server on a local Ray, send requests like a client, and print the answers as one JSON document.

A separate program, because Ray may be in another environment than the tests, and its end stops Ray's processes.
"""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from typing import Any

import ray
from ray import serve

from rfa.service.deploy_ray import Options, application
from tests.waiting import PATIENCE

GENERATE = {"inputs": "It was the", "parameters": {"max_new_tokens": 6, "seed": 7}}
TOKENS = 12
FILTER = {"model": "linear", "observations": [[1.0, 0.2], None, [0.7, 0.1]]}


def ask(address: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Return status and text of the answer: POST with a body, GET without."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return answer.status, answer.read().decode()


def generate(base: str, inputs: str, tokens: int, **more: Any) -> dict[str, Any]:
    """Return the reply to a generation."""
    _, text = ask(f"{base}/generate", {"inputs": inputs, "parameters": {"max_new_tokens": tokens, "seed": 7}, **more})
    return json.loads(text)


def resumed(base: str) -> list[str]:
    """Generate a text whole, then interrupt it after each of its tokens and continue from the state on any free
    replica.
    """
    texts = [generate(base, "It was the", TOKENS)["generated_text"]]
    for cut in range(1, TOKENS):
        head = generate(base, "It was the", cut, return_state=True)
        tail = generate(base, "", TOKENS - cut, state=head["state"])
        texts.append(head["generated_text"] + tail["generated_text"])
    return texts


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(application(Options(replicas=2, cores=0.5)))
    base = f"http://127.0.0.1:{port}"
    answers = {
        "/health": ask(f"{base}/health"),
        "/ready": ask(f"{base}/ready"),
        "/filter": ask(f"{base}/filter", FILTER),
        "/generate": ask(f"{base}/generate", GENERATE),
        "/generate stream": ask(f"{base}/generate", {**GENERATE, "stream": True}),
        "resumed": resumed(base),
    }
    serve.shutdown()
    ray.shutdown()
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
