"""The main results, for the README, each with its comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rfa.benchmarks.results_page.network import over_naive
from rfa.benchmarks.results_page.parts import Document, figure, percent

Headline = tuple[str, str, str]


def headlines(documents: Mapping[str, Document]) -> Iterator[Headline]:
    """Return subject, measured value and comparison of the main results."""
    yield _live(documents["load-filter-live"])
    yield _texts(documents["load-text-64"])
    yield _tracking(documents["filter-accuracy"])
    yield _forecast(documents["forecast-etth1"])
    yield _zero_shot(documents["gift"])
    yield _alarms(documents["alarm-rates"])
    yield _anomalies(documents["filter-nab"])
    yield _perplexity(documents["language"])
    yield _confidence(documents["token-calibration"])
    if "gpu-check" in documents:
        yield from _gpu(documents["gpu-check"])


def caption(documents: Mapping[str, Document]) -> str:
    """Return the interfaces and date of the figures."""
    measured = documents["load-filter-live"]["hardware"]
    return (
        f"The first two rows were measured over HTTP and WebSocket on {measured['date']} with {measured['cores']} "
        "cores, alarms and anomalies over HTTP, the others with the Python library.\n"
    )


def _live(document: Document) -> Headline:
    settings, found = document["settings"], document["latency_ms"]["observation"]
    live = settings["live"]
    return (
        f"{live['streams']:,} live filters, {live['rate']:g} observations per second each",
        f"p99 latency {found['p99']:.1f} ms, {document['wrong_count']} of {found['count']:,} replies wrong",
        f"target: {settings['budget']['observation_p99_ms']} ms",
    )


def _texts(document: Document) -> Headline:
    first, rate = document["latency_ms"]["ttft"], document["throughput"]["tokens_per_second"]
    return (
        f"{document['settings']['text']['streams']} concurrent texts",
        f"{rate:,.0f} tokens per second, first token p99 {first['p99']:.0f} ms",
        f"target: {document['settings']['budget']['ttft_p99_ms']} ms",
    )


def _tracking(document: Document) -> Headline:
    rows = document["tracking"]["5 % x10"]
    error = rows["linear"]["over_oracle"][0]
    kalman = rows["kalman"]["rmse"] / rows["oracle"]["rmse"] - 1
    return (
        "tracking with 1 outlier in 20 observations",
        f"error {percent(error)} above the optimum",
        f"Kalman filter: {percent(kalman)}",
    )


def _zero_shot(document: Document) -> Headline:
    means = {name: over_naive(document, name) for name in ("series", "auto")}
    shown = {name: f"{found[1]:.2f}" if found else "–" for name, found in means.items()}
    return (
        f"WQL of `series` on unseen series, {len(document['tasks'])} GIFT-Eval tasks",
        f"{shown['series']} × that of the seasonal naive forecast",
        f"`auto`, untrained: {shown['auto']} ×",
    )


def _forecast(document: Document) -> Headline:
    ratio = document["summary"]["24"]["crps_ratio"]["statsmodels"]
    covers = [column["leads"]["24"]["filter"]["coverage"] for column in document["columns"]]
    return (
        "ETTh1, 24 hours ahead",
        f"90 % intervals cover {percent(min(covers))} to {percent(max(covers))}",
        f"CRPS: {ratio:.2f} × that of statsmodels",
    )


def _alarms(document: Document) -> Headline:
    found = document["rows"]["ucr"]
    return (
        f"alarms of `{document['model']}` at a rate of 1 in 1,000 rows, {found['series']} anomaly-free UCR series",
        f"{found['over_nominal']['0.001']:.2f} × the expected number",
        "ideal: 1",
    )


def _anomalies(document: Document) -> Headline:
    detectors = document["detectors"] | {name: found["score"] for name, found in document["others"].items()}
    scores = {name: parts["whole"]["standard"] for name, parts in detectors.items()}
    auto, default = (scores[name]["score"] for name in ("auto", "default"))
    return (
        f"anomalies, NAB score on {document['files']} files",
        f"{auto:.1f} with `auto`, {default:.1f} with `default`, at the same alarm rate",
        f"windowed Gaussian with its best threshold: {scores['windowed Gaussian']['best']:.1f}",
    )


def _perplexity(document: Document) -> Headline:
    scores = [score for score in document["models"]["books"]["scores"] if score["mode"] == "recurrent"]
    longest = max(scores, key=lambda score: score["length"])
    return (
        f"`books` on an unseen novel, {longest['length']:,} tokens at a time",
        f"{longest['bits_per_byte']:.3f} bits per byte",
        f"xz, primed with the training text: {document['baselines']['xz_after_train']['bits_per_byte']:.2f}",
    )


def _confidence(document: Document) -> Headline:
    stage = document["modes"]["recurrent"]["calibration"]["rules"]["top"]["served"]
    return (
        "calibration error (ECE) of the confidence of `books`",
        percent(stage["ece"], 2),
        f"perfectly calibrated model: {percent(stage['floor'], 2)}",
    )


def _gpu(document: Document) -> Iterator[Headline]:
    """Return the main GPU requirements that were measured."""
    device = document["hardware"]["device"]
    shown = (
        ("µs per token at batch 1, greedy", "a decode step, one text", "{:.0f} µs"),
        ("tokens per second at the best batch, greedy", "decoding, many texts", "{:,.0f} tokens per second"),
        ("ms of a quantum", "1,024 prompt tokens, the slowest kind", "{:.1f} ms"),
        (
            "forward, ours / flash, 128 reals, N = 16384",
            "attention over 16,384 tokens",
            "{:.2f} × the time of FlashAttention",
        ),
        ("backward, ours / flash, 128 reals, N = 16384", "its gradients", "{:.2f} × the time of FlashAttention"),
        ("training step", "a training step", "{:.2f} × the time with softmax attention"),
    )
    for name, what, form in shown:
        found = _bar(document, name)
        if found is not None:
            yield f"{device}: {what}", form.format(found["actual"]), f"target: {found['kind']} {figure(found['bar'])}"


def _bar(document: Document, beginning: str) -> Document | None:
    """Return the requirement whose name begins so, if it was measured."""
    found = [
        bar
        for part in document["parts"].values()
        for bar in part.get("bars", ())
        if bar["name"].startswith(beginning) and bar["actual"] is not None
    ]
    return found[0] if found else None
