"""The mixture of a probability with the frequency so far against a plain loop."""

import math

import pytest
import torch

from gp_ensembles.calibration.frequency import init_frequency, mix_frequency, update_frequency


def rows(num_rows=80):
    g = torch.Generator().manual_seed(2)
    p, labels = torch.rand(num_rows, generator=g).double(), (torch.rand(num_rows, generator=g) < 0.3).double()
    labels[[3, 20]] = torch.nan
    return p, labels


def plain(p, labels, before):
    counts, weights, found = [before.count(0.0) + 0.5, before.count(1.0) + 0.5], [0.5, 0.5], []
    for given, label in zip(p.tolist(), labels.tolist(), strict=True):
        ahead = [0.9995 * w + 0.00025 for w in weights]
        both = [given, counts[1] / sum(counts)]
        found.append(ahead[0] * both[0] + ahead[1] * both[1])
        if not math.isnan(label):
            scored = [w * (q if label else 1 - q) for w, q in zip(ahead, both, strict=True)]
            weights = [w / sum(scored) for w in scored]
            counts[int(label)] += 1
    return found


def test_it_is_a_plain_loop_for_one_series_and_for_many():
    p, labels = rows()
    before = torch.tensor([0.0, 1.0, torch.nan, 0.0, 0.0], dtype=torch.float64)
    one, many = init_frequency(before), init_frequency(before)
    many = type(many)(*(part.expand(3, 2) for part in many))
    found = []
    for given, label in zip(p, labels, strict=True):
        ahead = mix_frequency(one, given)
        one, mixed = update_frequency(one, given, label)
        many, _ = update_frequency(many, given.expand(3), label.expand(3))
        torch.testing.assert_close(mixed, ahead)
        found.append(float(mixed))
        for alone, part in zip(one, many, strict=True):
            torch.testing.assert_close(part, alone.expand(3, 2))
    assert found == pytest.approx(plain(p, labels, before.tolist()))
