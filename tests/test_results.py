"""The README's results are the committed measurements, not memories of them."""

import json
import math
import re
import statistics
from pathlib import Path

import pytest

from rfa.experiments.quality.bars import Case, cases, losses, paired
from rfa.experiments.quality.table import report_lines

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def read(name):
    return json.loads((ROOT / "results" / name).read_text())


@pytest.mark.parametrize(
    "title, model, mode",
    [
        ("`books`, recurrent", "books", "recurrent"),
        ("`books`, attention", "books", "attention"),
        ("RoPE softmax", "books_rope", "attention"),
    ],
)
def test_language_rows(title, model, mode):
    scores = {row["length"]: row for row in read("language.json")["models"][model]["scores"] if row["mode"] == mode}
    cells = [f"{scores[n]['perplexity']:.2f} / {scores[n]['bits_per_byte']:.3f}" for n in (256, 1024, 4096)]
    assert f"| {title} | {' | '.join(cells)} |" in README


# Of the quality table; all of it is in docs/QUALITY.md.
QUALITY_SHOWN = ("B1", "B2", "B3", "M1", "M2", "M2.4", "M2.5", "M2.6", "slots", "both", "recipe-muon-wsd")


def test_quality_rows():
    document = read("quality-small.json")
    perplexities = {}
    for run in document["runs"]:
        for score in run["scores"]:
            if score["windows"] == "separate" and run["variant"] in QUALITY_SHOWN:
                key = run["variant"], score["mode"], score["length"]
                perplexities.setdefault(key, []).append(math.exp(score["nats_per_token"]))
    assert {variant for variant, *_ in perplexities} == set(QUALITY_SHOWN)
    for variant, mode in dict.fromkeys(key[:2] for key in perplexities):
        cells = []
        for factor in document["factors"]:
            values = perplexities[variant, mode, factor * document["context"]]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}")
        name = variant if mode == "attention" else f"{variant} ({mode})"
        title = document["variants"][variant]["title"]
        assert f"| {name} | {title} | {len(values)} | {' | '.join(cells)} |" in README


def test_the_whole_quality_table_is_the_command_s():
    page = (ROOT / "docs" / "QUALITY.md").read_text(encoding="utf-8")
    document = read("quality-small.json")
    assert page.endswith("\n".join(report_lines(document)) + "\n")
    # Every figure in the text above it is a bar's, or one of the ratios to M2 or to the slots.
    text, _ = page.split("## The table", 1)
    bars = {bar["name"]: bar["separate"] for bar in document["bars"] if bar["separate"]}
    shown = {f"{bar['ratio']:.3f}" for bar in bars.values()}
    for reference in (Case("M2"), Case("slots", "recurrent")):
        shown |= {f"{ratio:.3f}" for ratio in over(document, reference).values()}
    # The one seed of the shared checkpoint that was trained after its recipe had been chosen.
    both, single, slots = "recipe-muon-wsd-both-own-60", "recipe-muon-wsd", "recipe-muon-wsd-slots"
    pairs = ((Case(both), Case(single)), (Case(both, "recurrent"), Case(slots, "recurrent")))
    last = [math.exp(seed_2(document, ours) - seed_2(document, theirs)) for ours, theirs in pairs]
    for words in (text, README):
        assert "{:.3f} and {:.3f}".format(*last) in " ".join(words.split())
    shown |= {f"{ratio:.3f}" for ratio in last}
    assert set(re.findall(r"\b[01]\.\d{3}\b", text)) <= shown
    speeds = {(row["variant"], row["pass"]): f"{row['over_first']:.2f}" for row in document["speed"]["rows"]}
    m2, slots = ([speeds[name, which] for which in ("forward", "training")] for name in ("M2", "slots"))
    sentence = "reads {} of RoPE's tokens a second and trains on {} of them, the slots {} and {}"
    assert sentence.format(*m2, *slots) in " ".join(text.split())


def seed_2(document, case):
    return losses(document, case, "separate", 1)[2]


def over(document, reference):
    """Perplexity over that of another by variant, mode and factor, mean over the seeds that both have."""
    found = {}
    for case in cases(document):
        for factor in document["factors"]:
            ours, theirs = (losses(document, which, "separate", factor) for which in (case, reference))
            measured = paired(ours, theirs, 1.0)
            if measured:
                found[str(case), factor] = measured["ratio"]
    return found


def test_quality_sentences():
    bars = {bar["name"]: bar["separate"] for bar in read("quality-small.json")["bars"]}

    def ratio(name):
        return f"{bars[name]['ratio']:.3f}"

    def over_seeds(name):
        bar = bars[name]
        return f"({ratio(name)} ± {100 * bar['standard_error']:.1f} %, {bar['agree']} of {bar['seeds']})"

    own_60 = [
        bars["recipe-muon-wsd-both-own-60 ≤ 1.01 · recipe-muon-wsd at 1×"],
        bars["recipe-muon-wsd-both-own-60 (recurrent) ≤ 1.01 · recipe-muon-wsd-slots (recurrent) at 1×"],
    ]
    assert [(bar["agree"], bar["seeds"]) for bar in own_60] == [(2, 3), (2, 3)]
    own = [f"{bar['ratio']:.3f}" for bar in own_60]
    own_errors = [f"{100 * bar['standard_error']:.1f}" for bar in own_60]
    flat = " ".join(README.split())
    for part in (
        f"M2 has {ratio('M2 ≤ 0.9 · B1 at 8×')} of RoPE's perplexity, in 3 of 3 seeds",
        f"M1 beats RoPE {over_seeds('M1 < B1 at 1×')} and M2 does not {over_seeds('M2 < B1 at 1×')}",
        f"the modes have {ratio('both ≤ 1.01 · M2 at 1×')} (attention) and "
        f"{ratio('both (recurrent) ≤ 1.01 · slots (recurrent) at 1×')} (recurrent)",
        f"takes a fifth off M2, {ratio('recipe-muon-wsd-both ≤ 1.01 · recipe-muon-wsd at 1×')} and "
        f"{ratio('recipe-muon-wsd-both (recurrent) ≤ 1.01 · recipe-muon-wsd-slots (recurrent) at 1×')} (1 seed); "
        f"with a readout for each mode and 60 % of the loss recurrent {own[0]} and {own[1]} (± "
        f"{own_errors[0]} and {own_errors[1]} %; within 1 % in 2 of 3 seeds each; ",
    ):
        assert part in flat, part
    assert bars["M2 ≤ 0.9 · B1 at 8×"]["agree"] == bars["M2 ≤ 0.9 · B1 at 8×"]["seeds"] == 3


def test_confidence_paragraph():
    modes = read("token-calibration.json")["modes"]
    assert list(modes) == ["attention", "recurrent"]
    found = {
        (rule, what): [100 * part["calibration"]["rules"][rule]["served"][what] for part in modes.values()]
        for rule in ("top", "sampled")
        for what in ("ece", "floor")
    }
    areas = {
        name: [part["discrimination"]["scores"][name]["auroc"]["value"] for part in modes.values()]
        for name in ("entropy", "entropy + precision", "precision", "probability")
    }
    assert [f"{area:.3f}" for area in areas["entropy"]] == [f"{area:.3f}" for area in areas["entropy + precision"]]
    flat = " ".join(README.split())
    for part in (
        "mass {:.2f} % (attention) and {:.2f} % (recurrent) for the most likely token".format(*found["top", "ece"]),
        "{:.2f} and {:.2f} % for a drawn one".format(*found["sampled", "ece"]),
        "would show {:.2f} and {:.2f}, {:.2f} and {:.2f} % on".format(
            *found["top", "floor"], *found["sampled", "floor"]
        ),
        "AUROC {:.3f} and {:.3f} by entropy".format(*areas["entropy"]),
        "{:.3f} and {:.3f} by that alone".format(*areas["precision"]),
        "{:.3f} and {:.3f} by the largest probability".format(*areas["probability"]),
    ):
        assert part in flat, part


def test_recall_paragraph():
    rows = {(row["task"], row["setting"]): row for row in read("recall.json")["rows"]}

    def accuracy(setting, size, filler=0, task="recall"):
        (cell,) = (c for c in rows[task, setting]["scores"] if (c["size"], c["filler"]) == (size, filler))
        assert cell["answers"] == 4096
        return f"{cell['accuracy']:.3f}"

    assert {rows["recall", name]["steps"] for name in ("S1", "S4", "S16", "S32", "S16-W16")} == {6000}
    for setting in ("softmax", "rfa"):
        assert max(rows["recall", setting]["sizes_trained"]) == 32
        assert min(accuracy(setting, size, task="copy") for size in (8, 16, 32, 64)) >= "0.999"
    flat = " ".join(README.split())
    for part in (
        f"of 64 pairs RFA attention answers {accuracy('rfa', 64)}, softmax {accuracy('softmax', 64)}",
        f"16 slots answer 16 pairs at {accuracy('S16', 16)}, 64 tokens of filler later at {accuracy('S16', 16, 64)}",
        f"32 pairs, {accuracy('S16', 32)}, and 64, {accuracy('S16', 64)}",
        f"copying at 16 symbols, {accuracy('S16', 16, task='copy')}, and 32, {accuracy('S16', 32, task='copy')}",
        f"at {accuracy('rfa', 16, 256)} by RFA, {accuracy('softmax', 16, 256)} by softmax, "
        f"{accuracy('S16', 16, 256)} by 16 slots",
        f"of 16 pairs 1 slot answers {accuracy('S1', 16)}, 4 answer {accuracy('S4', 16)}, 32 answer "
        f"{accuracy('S32', 16)} (of 32 pairs {accuracy('S32', 32)}), 16 behind a window of 16 tokens "
        f"{accuracy('S16-W16', 16)}; one training each",
    ):
        assert part in flat, part


def test_baseline_rows():
    baselines = read("language.json")["baselines"]
    unigram = baselines["unigram"]
    assert f"| unigram | {unigram['perplexity']:.1f} / {unigram['bits_per_byte']:.3f} |" in README
    cells = "; ".join(f"{baselines[name]['bits_per_byte']:.3f}" for name in ("gzip", "xz", "xz_after_train"))
    assert f"| {cells} |" in README


def test_filter_rows():
    rows = read("filter.json")["rows"]
    assert len(rows) == 6
    for row in rows:
        columns = (
            "raw", "kalman", "oracle", "transformer", "linear recurrent", "linear attention", "oscillator recurrent"
        )  # fmt: skip
        cells = " | ".join(f"{row['rmse'][name]:.3f}" for name in columns)
        assert f"| ({row['sigma2']}, {row['eta2']}), {row['data']} | {cells} |" in README


def test_filter_coverage_sentence():
    rows = read("filter.json")["rows"]
    for model in ("linear", "oscillator"):
        coverage = [row["coverage"][f"{model} recurrent"] for row in rows]
        state, forecast = (
            max(abs(100 * (share - float(level))) for part in parts for level, share in part.items())
            for parts in ([c["state"] for c in coverage], [c["forecast"]["1"] for c in coverage])
        )
        assert f"`{model}` state {state:.1f}, one-step forecast {forecast:.1f}" in README


def test_decode_row():
    cases = read("decode.json")["cases"]
    names = ("recurrent at 100", "recurrent at 100000", "cache of 512", "cache of 4096")
    cells = " | ".join(f"{cases[name]['median_us'] / 1000:.2f}" for name in names)
    assert f"| {cells} |" in README


def test_kernel_sentence():
    document = read("aot.json")
    rows = {row["architecture"]: row for row in document["rows"] if row["kernel"] == "forward 64 bf16"}
    issued, special = (
        " and ".join(f"{rows[architecture][name]:.1f}" for architecture in (80, 90))
        for name in ("instructions_per_score", "mufu_per_score")
    )
    flat = " ".join(README.split())
    assert f"issues {issued} instructions per score, {special} of them to the special-function unit" in flat
    assert f"Triton {document['triton']}, commit {document['commit']}; [results/aot.json]" in flat


def test_nab_sentence():
    document = read("filter-nab.json")
    scores = {name: parts["whole"]["standard"] for name, parts in document["detectors"].items()}
    flat = " ".join(README.split())
    assert (
        f"on {document['files']} of its 58 files: {scores['metrics']['score']:.1f} at the one default threshold; "
        f"its windowed Gaussian gets {scores['windowed Gaussian']['best']:.1f} at its best threshold"
    ) in flat


def test_accuracy_paragraph():
    document = read("filter-accuracy.json")
    tracking, jumps, flat = document["tracking"], document["level_shift"], " ".join(README.split())

    def above(name):
        against = {"clean": "over_kalman", "5 % x10": "over_oracle", "5 % x20": "over_oracle"}
        return [f"{100 * tracking[case][name][against[case]][0]:.1f}" for case in against]

    def rmse(name):
        return " and ".join(f"{tracking[case][name]['rmse']:.3f}" for case in ("Student-t", "mixture"))

    def delays(name):
        return [f"{jumps[size][name]['median']:.0f}" for size in ("20", "50", "200")]

    clean, ten, twenty = above("linear")
    best = [min(tracking[case][name]["rmse"] for name in ("gate", "Student-t EM")) for case in ("Student-t", "mixture")]
    for part in (
        f"{document['trials']} streams of {document['steps']:,} steps",
        f"clean {clean} % (Kalman filter), 5 % outliers of 10 and 20 times {ten} and {twenty} %",
        'with `"rule": "learned"` {}, {} and {} %.'.format(*above("linear, learned")),
        f"{rmse('linear')}, learned {rmse('linear, learned')}; the best filters tuned for each have",
        " and ".join(f"{value:.3f}" for value in best),
        "after {}, {} and {} steps (Kalman filter {}, {}, {})".format(*delays("linear"), *delays("kalman")),
    ):
        assert part in flat
    gaps = [
        abs(share - float(level))
        for setting in ("tracking", "rotation")
        for case in ("clean", "5 % x10", "5 % x20")
        for level, share in document[setting][case]["linear"]["coverage"].items()
    ]
    assert f"Intervals are within {100 * max(gaps):.1f} points clean and with outliers" in flat


def test_filter_speed_paragraph():
    rows = {(row["job"], row["name"]): row for row in read("filter-speed.json")["rows"]}

    def millions(name):
        return f"{rows['batch', name]['steps_per_second'] / 1e6:.1f}"

    flat = " ".join(README.split())
    for part in (
        f"followed {rows['online', 'rfa robust, follows jumps']['us_per_step']:.1f} µs an observation",
        f"Kalman filter {rows['online', 'filterpy']['us_per_step']:.1f})",
        f"{millions('rfa robust, follows jumps')} million steps a second for 1,000 streams",
        f"dynamax, {millions('dynamax vmap, own covariances')})",
        f"covariance {millions('rfa Kalman, shared covariance')} million (dynamax "
        f"{millions('dynamax vmap, shared covariance')})",
    ):
        assert part in flat, part


def test_etth1_paragraph():
    document = read("forecast-etth1.json")
    flat = " ".join(README.split())
    for lead, words in (("1", "cover {} to {} % one hour ahead"), ("24", "{} to {} % at 24 hours")):
        assert (
            document["summary"][lead]["better_than"].items()
            >= dict.fromkeys(
                ("persistence", "seasonal naive", "statsmodels"), document["summary"][lead]["columns"]
            ).items()
        )
        covers = [100 * column["leads"][lead]["filter"]["coverage"] for column in document["columns"]]
        assert len(covers) == 7 and max(abs(cover - 90) for cover in covers) <= 2
        assert words.format(f"{min(covers):.1f}", f"{max(covers):.1f}") in flat


def test_afa_paragraph():
    rows = {row["sigma2"]: row for row in read("afa.json")["rows"]}
    calm, noisy = rows[0.0], rows[0.3]
    (real, imaginary), *_ = (pair for pair in calm["afa"][0]["eigenvalues"] if pair[1] > 0)
    flat = " ".join(README.split())
    for part in (
        f"loss is {calm['afa'][0]['loss']:.3f} (exact Kalman filter {calm['loss']['kalman']:.3f}, two softmax layers "
        f"{calm['loss']['softmax, 2 layers']:.3f})",
        f"eigenvalues −{-real:.2f} ± {imaginary:.2f}i",
        f"({noisy['afa'][0]['loss']:.3f}; one layer {noisy['loss']['softmax, 1 layer']:.3f}, two "
        f"{noisy['loss']['softmax, 2 layers']:.3f}, Kalman filter {noisy['loss']['kalman']:.3f})",
    ):
        assert part in flat


def percentiles(load, metric, *names):
    return " / ".join(f"{read(f'load-{load}.json')['latency_ms'][metric][name]:.1f}" for name in names)


def test_serving_rows():
    live, text, overload, overhead, idle = (
        read(f"load-{name}.json") for name in ("filter-live", "text-64", "overload", "overhead", "idle-sessions")
    )
    rows = [
        f"{live['counts']['observation.right']:,} answers, all right; p50 / p99 / max "
        f"{percentiles('filter-live', 'observation', 'p50', 'p99', 'max')} ms",
        f"first token p99 {percentiles('text-64', 'ttft', 'p99')} ms, between tokens p99 "
        f"{percentiles('text-64', 'itl', 'p99')} ms, {text['throughput']['tokens_per_second']:,.0f} tokens/s",
        f"admitted p99 {overload['admitted_slowdown']:.2f} times the calm one; the rest 429 in "
        f"{percentiles('overload', 'rejection', 'p99')} ms (p99)",
        f"{100 * overhead['server_share']:.0f} % of the bare engine's tokens, "
        f"{overhead['overhead_us_per_token']:.0f} µs a token",
        f"{100 * idle['pool']['memory_error']:.1f} % off computed; as named sessions in memory "
        f"{100 * idle['store']['memory_error']:.1f} %",
    ]
    for row, measured in zip(rows, (live, text, overload, overhead, idle), strict=True):
        (line,) = (line for line in README.splitlines() if row in line)
        assert ("missed" in line) == (not measured["passed"])
    assert not any(measured["wrong_count"] or measured["error_count"] for measured in (live, text, overload))
    assert live["counts"]["observation.right"] == live["counts"]["observation.sent"]
    share = sum(live["generator_cpu_share"])
    assert f"the load generator took {share:.2f} of a core of them" in README
    assert len({measured["commit"] for measured in (live, text, overload, overhead, idle)}) == 1
    assert f"commit {live['commit']}; [results](results)" in README
