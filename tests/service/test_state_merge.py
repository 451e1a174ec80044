"""POST /state/merge against Gaussians fused by hand; the laws of fusion are in tests/runtime/filters/test_fusion.py.

The arithmetic of these tests is their own: a Kalman filter in float64 with F and Q by Van Loan's block exponential.
Observations are near their forecasts, so that the robust weight is 1 (which is asserted) and the served filter is that
Kalman filter.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.state.names import StateScope
from rfa.service.schemas.filter_replies import MergeReply
from tests.model.joint_gaussian import van_loan
from tests.service.live import answer, refusal, serving
from tests.service.replies import read
from tests.service.stream_socket import Socket

pytestmark = pytest.mark.anyio
BUNDLES = Path(__file__).parents[2] / "bundles"
KEY, OTHER = "a-key-of-sixteen-or-more", "another-key-of-sixteen"
LINEAR = open_bundle(BUNDLES / "linear")
CONFIG, TRUST = LINEAR.config, LINEAR.calibration["recurrent"]["precision"]
DRIFT, NOISE, ERROR, START = (
    np.array(CONFIG[name]) for name in ("drift", "process_noise", "measurement_noise", "initial_covariance")
)
# Rounding, of numbers about 1: less than a hundred operations on covariances whose condition is below 10.
ROUNDING = 1e3 * float(np.finfo(np.float64).eps)
Belief = tuple[np.ndarray, np.ndarray]
served = functools.partial(serving, "linear", "oscillator", sessions="memory")


async def filtered(
    client: httpx.AsyncClient, times: Sequence[float], rows: Sequence[Any], state: str | None = None, **more: Any
) -> Any:
    """A stream of the linear filter, whose observations all had their whole weight."""
    document = {"model": "linear", "times": times, "observations": rows, "state": state, "return_state": True, **more}
    reply = await answer(client, document)
    assert {step["weight"] for step in reply["steps"]} <= {None, 1.0}
    return reply


async def merged(client: httpx.AsyncClient, *states: str, **more: Any) -> Any:
    return await answer(client, {"model": "linear", "states": states, **more}, "/state/merge")


def moved(belief: Belief, lag: float) -> Belief:
    f, q = van_loan(DRIFT, NOISE, lag) if lag else (np.eye(2), np.zeros((2, 2)))
    mean, covariance = belief
    return f @ mean, f @ covariance @ f.T + q


def seen(belief: Belief, row: Sequence[float | None] | None) -> Belief:
    """Bayes' rule, a component at a time: C is the identity, and the errors of the components are independent."""
    mean, covariance = belief
    for a, value in enumerate(row or ()):
        if value is not None:
            gain = covariance[:, a] / (covariance[a, a] + ERROR[a, a])
            mean = mean + gain * (value - mean[a])
            covariance = covariance - np.outer(gain, covariance[a])
    return mean, covariance


def kalman(times: Sequence[float], rows: Sequence[Any], begin: tuple[float, Belief] | None = None) -> Belief:
    now, belief = (times[0], (np.zeros(2), START)) if begin is None else begin
    for t, row in zip(times, rows, strict=True):
        belief, now = seen(moved(belief, t - now), row), t
    return belief


def summed(*beliefs: Belief) -> Belief:
    """Precisions added."""
    covariance = np.linalg.inv(np.sum([np.linalg.inv(p) for _, p in beliefs], axis=0))
    return covariance @ np.sum([np.linalg.solve(p, m) for m, p in beliefs], axis=0), covariance


def assert_tells(reply: Any, belief: Belief, scale: float, rounding: float) -> None:
    """A reply tells this belief; `scale` is the calibrated std per the filter's own. Its precision is calibrated by the
    running surprise, too, which is not known here."""
    mean, covariance = belief
    assert np.linalg.cond(covariance) < 10
    limits: Any = {"rtol": rounding, "atol": rounding}
    np.testing.assert_allclose(reply["mean"], mean, **limits)
    np.testing.assert_allclose(reply["std"], scale * np.sqrt(np.diag(covariance)), **limits)
    factors = [np.array(TRUST[name]) for name in ("by_gain", "by_surprise")]
    scaled = reply["precision"] * np.trace(covariance) / 2
    assert 1 / np.prod([f.max() for f in factors]) <= scaled * (1 + rounding)
    assert scaled <= (1 + rounding) / np.prod([f.min() for f in factors])


def scale_of(step: Any, belief: Belief) -> float:
    """How a step's std is calibrated, by the covariance that it is the std of."""
    scale: float = step["std"][0] / np.sqrt(belief[1][0, 0])
    return scale


Series = tuple[list[float], list[list[float | None] | None]]
ONE: Series = ([0.0, 0.4], [[0.5, 0.2], [0.3, None]])
TWO: Series = ([0.1, 0.4, 0.7], [[0.4, None], None, [0.1, 0.3]])


async def test_precisions_add_at_the_latest_time() -> None:
    """Each is brought forward by the filter's prediction; what is told and what goes on are the fused belief."""
    after = ([0.9, 1.3], [[0.1, 0.3], [None, 0.2]])
    async with served() as client:
        one, two = await filtered(client, *ONE), await filtered(client, *TWO)
        reply = await merged(client, one["state"], two["state"], method="precision", levels=[0.9], horizon=[0.5])
        rest = await filtered(client, *after, reply["state"])
    scale = scale_of(one["steps"][-1], kalman(*ONE))
    belief = summed(moved(kalman(*ONE), 0.7 - 0.4), kalman(*TWO))
    assert (reply["t"], reply["index"], reply["weights"], reply["method"]) == (0.7, 3, None, "precision")
    assert_tells(reply, belief, scale, ROUNDING)
    assert_tells(rest["steps"][-1], kalman(*after, (0.7, belief)), scale, ROUNDING)
    assert [step["index"] for step in rest["steps"]] == [3, 4]
    (point,) = reply["forecast"]
    assert point["t"] == 1.2
    np.testing.assert_allclose(point["mean"], moved(belief, 0.5)[0], atol=ROUNDING)
    assert list(reply["interval"]) == list(point["interval"]) == ["0.9"]
    assert read(MergeReply, json.dumps(reply)).seed == one["seed"]


async def test_two_sensors_that_share_a_prior_are_one_filter_with_both() -> None:
    """The law: what each saw at one time, merged, is what a filter that saw both believes."""
    async with served() as client:
        prior = (await filtered(client, [0.0, 0.2], [[0.5, 0.1], [0.4, 0.2]]))["state"]
        seen_by = [await filtered(client, [0.5], [row], prior) for row in ([0.3, None], [None, 0.4], [0.3, 0.4])]
        left, right, both = seen_by
        fused = await merged(client, left["state"], right["state"], method="precision", prior=prior)
        too_sure = await merged(client, left["state"], right["state"], method="precision")
        crossed = await merged(client, left["state"], right["state"])
    for name in ("mean", "std", "precision"):
        np.testing.assert_allclose(fused[name], both["steps"][-1][name], rtol=ROUNDING, atol=ROUNDING)
    # The prior counts twice where it is not given; an intersection counts nothing twice.
    assert too_sure["precision"] > 1.3 * fused["precision"] > crossed["precision"]
    assert abs(sum(crossed["weights"]) - 1) <= 1e-12


async def test_a_merged_state_streams_on_and_its_sources_stay() -> None:
    """As a token, as a session of a new name, and over a WebSocket; the states that were merged are as they were."""
    async with served() as client:
        one, two = await filtered(client, *ONE), await filtered(client, *TWO, return_state="session:two")
        assert two["state"] == "session:two@3"
        reply = await merged(client, one["state"], "session:two", method="precision", return_state="session:both")
        assert reply["state"] == "session:both@3"
        token = await merged(client, one["state"], "session:two@3", method="precision")
        nothing = await merged(client, one["state"], "session:two@3", return_state=False)
        assert nothing["state"] is None
        on = [
            await filtered(client, [1.0], [[0.2, 0.2]], state, return_state=False)
            for state in (token["state"], "session:both")
        ]
        socket = Socket(client.app)  # type: ignore[attr-defined]
        socket.frame({"model": "linear", "state": token["state"]})
        assert (await socket.reply())["index"] == 3
        socket.frame({"t": 1.0, "y": [0.2, 0.2]})
        live = await socket.reply()
        socket.frame({"close": True})
        assert (await socket.reply())["done"]
        again = await filtered(client, [0.9], [[0.1, 0.1]], "session:two", return_state=False)
        taken = {"states": [one["state"], "session:both"], "return_state": "session:both"}
        exists = await client.post("/state/merge", json=taken)
    assert on[0]["steps"] == on[1]["steps"] == [live]
    assert again["state"] == "session:two@4"
    assert (exists.status_code, exists.json()["error"]["code"]) == (409, "session_exists")


async def test_what_a_stream_has_learned_is_the_first_states() -> None:
    """Widths of forecasts, confidence and seed; the other way round they are the second's."""
    rng = np.random.default_rng(4)
    quiet = (0.05 * rng.normal(size=(80, 2))).tolist()
    wild = (3.0 * rng.normal(size=(80, 2))).tolist()

    def learned(reply: Any) -> list[float]:
        (point,) = reply["forecast"]
        (low, high), deviation = point["interval"]["0.9"][0], point["std"][0]
        return [(high - low) / deviation, reply["confidence"]]

    async with served() as client:
        states, alone = [], []
        for seed, rows in ((1, quiet), (2, wild)):
            body = {"model": "linear", "observations": rows, "seed": seed, "return_state": True}
            states.append((await answer(client, body))["state"])
            null = {"model": "linear", "observations": [None], "times": [79.0], "state": states[-1], "horizon": [0.1]}
            alone.append(learned((await answer(client, null))["steps"][0]))
        pair = [await merged(client, *order, horizon=[0.1]) for order in (states, states[::-1])]
    assert abs(alone[0][0] / alone[1][0] - 1) > 0.1
    for reply, own, seed in zip(pair, alone, (1, 2), strict=True):
        np.testing.assert_allclose(learned(reply), own, rtol=1e-9)
        assert (reply["seed"], reply["index"], reply["t"]) == (seed, 80, 79.0)


# Refusals.


async def refused(client: httpx.AsyncClient, document: Any) -> tuple[int, str | None, str, str]:
    status, error = await refusal(client, document, "/state/merge")
    return status, error["param"], error["code"], error["message"]


async def test_states_that_are_none_of_this_filter_are_refused_by_the_field_that_named_them() -> None:
    async with served(api_keys=f"{KEY},{OTHER}") as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        good = (await filtered(client, *ONE))["state"]
        second = (await filtered(client, *TWO))["state"]
        other = await answer(client, {"model": "oscillator", "observations": [[1, 1]], "return_state": True})
        tampered = second[:-10] + ("A" if second[-10] != "A" else "B") + second[-9:]
        client.headers["Authorization"] = f"Bearer {OTHER}"
        foreign = (await filtered(client, *TWO))["state"]
        client.headers["Authorization"] = f"Bearer {KEY}"
        for bad in (tampered, other["state"], foreign, "v1.AAAA", second[:-1]):
            status, param, code, message = await refused(client, {"states": [good, bad]})
            assert (status, param, code) == (422, "states[1]", "state_invalid")
            assert message.startswith("states[1]: not a state that this server issued")
            assert (await refused(client, {"states": [bad, good]}))[1] == "states[0]"
        more = {"method": "precision", "prior": tampered}
        assert (await refused(client, {"states": [good, second], **more}))[:3] == (422, "prior", "state_invalid")
        await filtered(client, *TWO, return_state="session:moved")
        for name, expected in (
            ("session:none", (404, "states[1]", "session_not_found")),
            ("session:moved@2", (409, "states[1]", "session_moved")),
            ("session:a b", (422, "states[1]", "session_name")),
        ):
            assert (await refused(client, {"states": [good, name]}))[:3] == expected
        del client.headers["Authorization"]
        assert (await refused(client, {"states": [good, second]}))[0] == 401


async def test_a_state_of_another_version_says_so() -> None:
    async with served() as client:
        app: Any = client.app  # type: ignore[attr-defined]
        good = (await filtered(client, *ONE))["state"]
        runtime = app.state.engine.filter_model("linear")
        scope = StateScope(app.state.engine.filter_state("linear").digest, "filter", "")
        payloads = {
            "was created by another version of the server": b"RFAC\x00" + runtime.pack(runtime.start())[5:],
            "belongs to another model or is truncated": runtime.pack(runtime.start())[:-1],
            "contains no observation yet": runtime.pack(runtime.start()),
        }
        for reason, payload in payloads.items():
            token = await app.state.keeper.save(scope, payload, 1, session=None, expected=None)
            status, param, _, message = await refused(client, {"states": [good, token]})
            assert (status, param) == (422, "states[1]")
            assert message.startswith(f"states[1] {reason}")


async def test_filters_whose_states_are_no_gaussians_are_refused_before_their_states_are_read() -> None:
    async with served() as client:
        for model in ("auto", "oscillator"):
            status, param, code, message = await refused(client, {"model": model, "states": ["x", "y"]})
            assert (status, param, code) == (422, "model", "no_merge")
            assert repr(model) in message
        assert (await refused(client, {"model": "nope", "states": ["x", "y"]}))[:3] == (404, "model", "model_not_found")


async def test_what_makes_no_sense_together_is_refused() -> None:
    async with served() as client:
        one, two = (await filtered(client, *ONE))["state"], (await filtered(client, *TWO))["state"]
        sharp = (await filtered(client, [0.7] * 30, [[0.2, 0.2]] * 30))["state"]
        precise = {"method": "precision"}
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({"states": [one, two], "t": 0.6}, "t", "time_not_monotonic"),
            ({"states": [one, two], "prior": one}, "prior", "needs_precision"),
            ({"states": [one, two, one], **precise}, "states[2]", "duplicate"),
            ({"states": [one, two], **precise, "prior": sharp}, "states[0]", "not_from_prior"),
            ({"states": [one, one], **precise, "t": 0.5, "prior": two}, "states[1]", "duplicate"),
            ({"states": [one, sharp], "method": "mean"}, "method", "literal_error"),
            ({"states": [one, two], "levels": [1.0]}, "levels[0]", "less_than"),
            ({"states": [one, two], "return_state": "two"}, "return_state", "no_member"),
            ({"states": [one, two], "stream": True}, "stream", "extra_forbidden"),
        ]
        found = [(await refused(client, case))[:3] for case, _, _ in cases]
        late = (await filtered(client, [0.9], [[0.1, 0.1]], two))["state"]
        after = await refused(client, {"states": [one, two], **precise, "prior": late})
    assert [(param, code) for _, param, code in found] == [case[1:] for case in cases]
    assert {status for status, _, _ in found} == {422}
    assert after[1:3] == ("prior", "time_not_monotonic")


async def test_beliefs_at_the_ends_of_the_range_are_merged_or_refused_in_words() -> None:
    """Whatever is legal to observe, however precise, and however far ahead: never a failure of the server."""
    rows: list[Any] = [[1e12, -1e12], [5e-324, 0.0], [None, 1e12], None]
    lags, noises = (0.0, 5e-324, 1e-12, 1.0, 1e6), (1e-6, 1.0, 1e6)
    rng = np.random.default_rng(8)
    counted: dict[int, int] = {}
    async with served() as client:
        states = []
        for _ in range(12):
            count = int(rng.integers(1, 40))
            body: dict[str, Any] = {
                "model": "linear", "observations": [rows[i] for i in rng.integers(0, len(rows), count)],
                "times": np.cumsum(rng.choice(lags, count)).tolist(), "noise": rng.choice(noises, count).tolist(),
                "return_state": True,
            }  # fmt: skip
            response = await client.post("/filter", json=body)
            if response.status_code == 200:
                states.append(response.json()["state"])
        assert len(states) >= 8
        for _ in range(30):
            chosen = rng.choice(len(states), int(rng.integers(2, 5)), replace=False)
            method = ("precision", "covariance_intersection")[int(rng.integers(2))]
            document: dict[str, Any] = {"states": [states[i] for i in chosen], "method": method, "horizon": [1e9]}
            document |= {"prior": states[int(rng.integers(len(states)))]} if method == "precision" else {}
            document |= {"t": 1e15} if rng.random() < 0.3 else {}
            response = await client.post("/state/merge", json=document)
            counted[response.status_code] = counted.get(response.status_code, 0) + 1
            if response.status_code == 200:
                read(MergeReply, response.content)
                on = {"model": "linear", "observations": [None], "times": [1e15], "state": response.json()["state"]}
                assert (await client.post("/filter", json=on)).status_code == 200
    assert set(counted) == {200, 422}, counted


async def test_limits_come_before_work() -> None:
    """Sizes and counts before a state is opened; quotas and places as of every request."""
    async with served(max_body_bytes=40_000) as client:
        app: Any = client.app  # type: ignore[attr-defined]
        state = (await filtered(client, *ONE))["state"]
        opened: list[str] = []
        load = app.state.keeper.load

        async def noting(reference: str, *rest: Any) -> Any:
            opened.append(reference)
            return await load(reference, *rest)

        app.state.keeper.load = noting
        for count, code in ((9, "too_long"), (1, "too_short"), (0, "too_short")):
            assert (await refused(client, {"states": [state[:100]] * count}))[:3] == (422, "states", code)
        assert (await refused(client, {"states": [state] * 8}))[0] == 413
        assert (await refused(client, {"states": ["x" * 12_000, state]}))[2] == "state_invalid"
        assert len(opened) == 1  # the last one's first
    async with served(api_keys=KEY, quota_observations=0.1) as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        # One observation is there at first, and next to none comes back; a merge takes as many as states.
        body = {"model": "linear", "observations": [[1, 1]], "return_state": True}
        state = (await answer(client, body))["state"]
        status, _, code, _ = await refused(client, {"states": [state, state]})
        assert (status, code) == (429, "quota_observations")
