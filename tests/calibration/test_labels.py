"""The label chain against plain loops; blocks, gaps and causality."""

import math

import pytest
import torch

from gp_ensembles.calibration.labels import LabelState, init_labels, predict_labels, step_labels, update_labels


def labels(num_classes, num_rows=60, missing=(0, 9, 10, 30)):
    g = torch.Generator().manual_seed(1)
    y = torch.randint(0, num_classes, (num_rows,), generator=g).double()
    y[list(missing)] = torch.nan
    return y


def plain(y, num_classes):
    counts = [[0.5] * num_classes for _ in range(num_classes)]
    last, previous, out = [1 / num_classes] * num_classes, None, []
    for label in y.tolist():
        table = [[n / sum(row) for n in row] for row in counts]
        ahead = [sum(last[k] * table[k][c] for k in range(num_classes)) for c in range(num_classes)]
        out.append([math.log(value) for value in ahead])
        if math.isnan(label):
            last, previous = ahead, None
            continue
        if previous is not None:
            row = [0.995 * n + 0.005 * 0.5 for n in counts[previous]]
            row[int(label)] += 1
            counts[previous] = row
        previous = int(label)
        last = [float(c == previous) for c in range(num_classes)]
    return torch.tensor(out, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_it_is_plain_loops_however_it_is_cut(num_classes):
    y = labels(num_classes)
    want, counts = plain(y, num_classes)
    for size in (1, 7, len(y)):
        state, parts = init_labels(num_classes, y), []
        for block in y.split(size):
            ahead = predict_labels(state)
            state, log_prob = update_labels(state, block)
            torch.testing.assert_close(ahead, log_prob[0], rtol=1e-12, atol=1e-12)
            parts.append(log_prob)
        torch.testing.assert_close((torch.cat(parts), state.counts), (want, counts), rtol=1e-12, atol=1e-12)


def test_one_label_of_many_series_at_a_time_is_the_same():
    y, start = labels(2), init_labels(2, torch.zeros((), dtype=torch.float64))
    after, want = update_labels(start, y)
    many = LabelState(*(part.expand(3, *part.shape) for part in start))
    for label, wanted in zip(y, want, strict=True):
        torch.testing.assert_close(predict_labels(many), wanted.expand(3, 2))
        many, found = step_labels(many, label.expand(3))
        torch.testing.assert_close(found, wanted.expand(3, 2))
    for part, alone in zip(many, after, strict=True):
        torch.testing.assert_close(part, alone.expand(3, *alone.shape))
