"""NAB's scoring rules: values by hand, a plain scorer that reads them row by row, and the published per-file table."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from rfa.benchmarks.nab.benchmark import load_nab, windowed_gaussian
from rfa.benchmarks.nab.score import NEVER, best_threshold, earlier, score
from rfa.library.nab import PROFILES, Labelled, detect, labelled

STANDARD = PROFILES["standard"]
# One window of ten rows; 40 rows have 6 rows of probation.
SERIES = labelled("one", 40, [(20, 29)])

# NAB's results/windowedGaussian/windowedGaussian_standard_scores.csv at threshold 1.0: score, rows of false alarm.
PUBLISHED = {
    "artificialWithAnomaly/art_load_balancer_spikes.csv": (-0.692444609523, 15),
    "realAWSCloudwatch/ec2_cpu_utilization_24ae8d.csv": (-1.26667875935, 11),
    "realAWSCloudwatch/ec2_cpu_utilization_825cc2.csv": (0.956537840284, 0),
    "realAWSCloudwatch/ec2_cpu_utilization_c6585a.csv": (-1.32, 12),
    "realAWSCloudwatch/ec2_cpu_utilization_fe7f93.csv": (0.638757791772, 1),
    "realAWSCloudwatch/ec2_disk_write_bytes_1ef3de.csv": (-4.19089678552, 48),
    "realAWSCloudwatch/ec2_disk_write_bytes_c0d644.csv": (-1.09599853032, 19),
    "realAWSCloudwatch/ec2_network_in_5abac7.csv": (-3.52193223519, 50),
    "realAWSCloudwatch/grok_asg_anomaly.csv": (2.37942230674, 3),
    "realAWSCloudwatch/rds_cpu_utilization_cc0c53.csv": (-0.138449197924, 0),
    "realAdExchange/exchange-3_cpc_results.csv": (2.50266326119, 1),
    "realAdExchange/exchange-4_cpc_results.csv": (0.292288463428, 4),
    "realAdExchange/exchange-4_cpm_results.csv": (1.27471036268, 3),
    "realTraffic/TravelTime_387.csv": (-1.79598133079, 6),
    "realTraffic/occupancy_t4013.csv": (1.72522152023, 0),
    "realTraffic/speed_7578.csv": (3.47059145681, 1),
    "realTraffic/speed_t4013.csv": (1.76631783122, 0),
}


def alarms(*rows: int, length: int = 40) -> np.ndarray:
    anomaly = np.zeros(length)
    anomaly[list(rows)] = 1.0
    return anomaly


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((), -1.0),
        ((20,), 1.0),
        # 2 / (1 + e^-2.5) - 1 = 0.848284 at the middle, 2 / (1 + e^-0.5) - 1 = 0.244919 at the last row, over 0.986614.
        ((25,), 0.859793),
        ((29,), 0.248242),
        ((25, 29, 26), 0.859793),  # only the first counts
        ((10,), -1.11),
        ((10, 11), -1.22),
        ((20, 30), 1 - 0.11 * 0.270847),  # one row behind: y = 1/9, 2 / (1 + e^(5/9)) - 1 = -0.270847
        ((20, 38), 1 - 0.11 * 0.986614),  # y = 1
        ((5,), -1.0),  # under probation
        ((6,), -1.11),
    ],
)
def test_values_by_hand(rows, expected):
    assert detect(SERIES, alarms(*rows), 1.0, STANDARD).score == pytest.approx(expected, abs=1e-6)


def test_null_is_0_perfect_is_100_and_earlier_is_more():
    corpus = [SERIES, labelled("two", 60, [(12, 21), (40, 45)]), labelled("none", 30, [])]
    null = [np.zeros(series.length) for series in corpus]
    perfect = [alarms(*(first for first, _ in series.windows), length=series.length) for series in corpus]
    for profile in PROFILES.values():
        assert score(corpus, null, 0.5, profile) == pytest.approx(0)
        assert score(corpus, perfect, 0.5, profile) == pytest.approx(100)
        scores = [score([SERIES], [alarms(row)], 0.5, profile) for row in range(20, 30)]
        assert scores == sorted(scores, reverse=True) and scores[0] == pytest.approx(100) and scores[-1] > 0
    assert best_threshold(corpus, null, STANDARD) == (NEVER, pytest.approx(0))
    assert best_threshold(corpus, perfect, STANDARD) == (1.0, pytest.approx(100))


def plain_score(
    series: Labelled, anomaly: np.ndarray, threshold: float, hit: float, miss: float, false: float
) -> float:
    """The rules, row by row."""
    parts = {w: -miss for w in series.windows if w[1] >= series.start}
    total = 0.0
    for i in range(series.start, series.length):
        if anomaly[i] < threshold:
            continue
        around = [w for w in series.windows if w[0] <= i <= w[1]]
        if around:
            first, last = around[0]
            value = hit * math.tanh(2.5 * (last - i + 1) / (last - first + 1)) / math.tanh(2.5)
            parts[around[0]] = max(parts[around[0]], value)
        else:
            behind = [w for w in series.windows if w[1] < i]
            y = (i - behind[-1][1]) / (behind[-1][1] - behind[-1][0]) if behind else 3.0
            total -= false * (1.0 if y >= 3 else math.tanh(2.5 * y))
    return total + sum(parts.values())


def test_the_best_threshold_is_the_best_of_all_under_a_plain_reading_of_the_rules():
    generator = np.random.default_rng(3)
    corpus = [labelled("a", 80, [(5, 16), (30, 41), (60, 65)]), labelled("b", 50, []), labelled("c", 70, [(20, 29)])]
    for profile in PROFILES.values():
        # Few levels, so that several rows share one.
        anomalies = [generator.integers(0, 12, series.length) / 12 for series in corpus]
        windows = sum(len(series.windows) for series in corpus)
        null, perfect = -profile.miss * windows, profile.hit * windows
        totals = {
            level: sum(plain_score(s, a, level, *profile) for s, a in zip(corpus, anomalies, strict=True))
            for level in [*np.unique(np.concatenate(anomalies)).tolist(), NEVER]
        }
        for level, total in totals.items():
            expected = 100 * (total - null) / (perfect - null)
            assert score(corpus, anomalies, level, profile) == pytest.approx(expected, abs=1e-9)
        threshold, best = best_threshold(corpus, anomalies, profile)
        assert best == pytest.approx(100 * (max(totals.values()) - null) / (perfect - null), abs=1e-9)
        assert totals[threshold] == pytest.approx(max(totals.values()), abs=1e-9)


def test_the_earlier_part_keeps_its_windows_and_the_probation():
    series = labelled("long", 100, [(20, 29), (55, 70), (80, 85)])
    part = earlier(series, 0.6)
    assert part == Labelled("long", 55, ((20, 29),), 15)
    assert earlier(series, 0.9).length == 90


def test_the_published_table_of_the_windowed_gaussian():
    folder = os.environ.get("NAB_DATA")
    if not folder:
        pytest.skip("set NAB_DATA to a folder with NAB's data and windows")
    for series in load_nab(Path(folder)):
        if series.name not in PUBLISHED:
            continue
        # The stored scores have twelve digits.
        anomaly = np.round(windowed_gaussian(series.values), 12)
        found = detect(series.labelled, anomaly, 1.0, STANDARD)
        assert (found.score, found.false_alarms) == pytest.approx(PUBLISHED[series.name], abs=1e-9), series.name
