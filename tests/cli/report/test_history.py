"""The history of a run: equal to brute force on all rows, in room that does not grow, the same after a checkpoint."""

import tracemalloc

import numpy as np
import pytest
import torch

from gp_ensembles.calibration.levels import count_coverage, init_coverage
from gp_ensembles.cli.predictions import Chunk, PredictedRows
from gp_ensembles.cli.report.history import RECENT, WINDOW_SERIES, Bins
from gp_ensembles.cli.scored_stream import SCORED
from gp_ensembles.files.structure import from_plain, to_plain


def fed(run, lengths, *, first=101, start=None):
    history, chunks = run.history(), []
    for length in lengths:
        chunks.append(run.chunk(first, length, start=start))
        history.add(chunks[-1])
        first += length
    return history, chunks


def joined(chunks, name):
    return torch.cat([{**chunk._asdict(), **chunk.rows._asdict()}[name] for chunk in chunks]).numpy()


@pytest.mark.parametrize("num_chunks", [3, 40])
def test_bins_are_the_sums_of_their_rows(run, num_chunks):
    history, chunks = fed(run, [256] * num_chunks + [77])
    width, y, mean = history.bins.width, joined(chunks, "y"), joined(chunks, "mean")
    assert width == (1 if num_chunks == 3 else 4)
    for name, values in (("y", y), ("mean", mean), ("upper", joined(chunks, "upper"))):
        parts = [values[k : k + width] for k in range(0, len(values), width)]
        expected = [np.nan if np.isnan(part).all() else np.nanmean(part) for part in parts]
        np.testing.assert_allclose(history.mean(name), expected, rtol=1e-12)
    parts = [y[k : k + width] for k in range(0, len(y), width)]
    assert history.bins["greatest y"].tolist() == pytest.approx([np.fmax.reduce(part) for part in parts], nan_ok=True)
    assert history.bins["sum log_prob"].sum() == pytest.approx(np.nansum(joined(chunks, "log_prob")), rel=1e-12)
    for name in run.baselines:
        whole = np.nansum(np.concatenate([chunk.baselines[name].numpy() for chunk in chunks]))
        assert history.bins[f"sum baseline {name}"].sum() == pytest.approx(whole, rel=1e-12)
    sizes = history.bins["count row"]
    assert sizes.sum() == len(y)
    np.testing.assert_allclose(sum(history.weights().values()), 1.0, rtol=1e-12)
    weights = torch.cat([chunk.log_weights for chunk in chunks], dim=1).exp().numpy()
    walking = history.weights()["Hilbert features, fast random walk"]
    assert (walking * sizes).sum() == pytest.approx(weights[1:3].sum(), rel=1e-12)


def test_windows_are_those_of_the_summary(run):
    history, chunks = fed(run, [100] * 53)
    hits, widths = torch.from_numpy(joined(chunks, "inside")), torch.ones(5300, dtype=torch.float64)
    state = count_coverage(init_coverage(hits), hits, widths, 0.9)
    assert history.window_bins.num_rows == int(state.num_windows) == 10
    assert history.window_bins["sum broken"].sum() == int(state.num_windows - state.num_kept)
    seen = hits[~hits.isnan()].numpy()
    assert history.window_shares == pytest.approx(seen[:5000].reshape(10, 500).mean(1))
    observed = np.flatnonzero(~np.isnan(joined(chunks, "y"))) + 101
    assert history.window_bins["greatest last"].tolist() == observed[499:5000:500].tolist()


def test_histograms_and_last_rows_are_exact(run):
    history, chunks = fed(run, [300] * 20)
    pit = joined(chunks, "pit")
    expected = np.histogram(pit[~np.isnan(pit)], bins=200, range=(0, 1))[0]
    assert history.pit_counts.tolist() == expected.tolist()
    recent = history.recent()
    assert recent["row"].tolist() == list(range(6100 - RECENT + 1, 6101))
    np.testing.assert_array_equal(recent["y"], joined(chunks, "y")[-RECENT:])


def test_reliability_of_classes_is_that_of_all_pairs(run):
    generator = torch.Generator().manual_seed(3)
    shares = torch.rand(700, 3, generator=generator, dtype=torch.float64)
    shares = shares / shares.sum(-1, keepdim=True)
    y = torch.randint(3, (700,), generator=generator).double()
    y[::9] = torch.nan
    nothing = torch.full_like(y, torch.nan)
    log_weights = torch.full((4, 700), 0.25, dtype=torch.float64).log()
    history = run.history()
    baselines = dict.fromkeys(run.baselines, nothing)
    history.add(Chunk(1, y, PredictedRows(*[nothing] * 7, shares, nothing), log_weights, baselines))
    seen = ~y.isnan()
    flat, hits = shares[seen].flatten(), (y[seen, None] == torch.arange(3)).flatten()
    inside = [(flat >= k / 10) & (flat < (k + 1) / 10) for k in range(10)]
    assert history.reliability[0].tolist() == [int(part.sum()) for part in inside]
    assert history.reliability[2].tolist() == [int(hits[part].sum()) for part in inside]
    assert history.is_class
    assert np.isnan(history.mean("inside")).all()


def test_room_does_not_grow_with_the_rows(run):
    def peak(num_chunks):
        chunk = run.chunk(1, 256)
        history = run.history(kinds=("moved",))
        history.window_bins = Bins(WINDOW_SERIES, capacity=64)
        tracemalloc.start()
        for number in range(num_chunks):
            history.add(chunk._replace(first_row=1 + 256 * number), {"moved": 3 * number})
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert history.num_rows == 256 * num_chunks
        sizes = [len(values) for values in history.bins.series.values()]
        assert max(sizes) <= 4096
        return most, history

    few, _ = peak(60)
    many, history = peak(360)  # 92 160 rows
    # A number for each row would take 600 000 bytes; Python keeps up to 2000 freed tuples of each length.
    assert many < few + 300_000
    assert history.events["moved"].sum() == 3 * 359


def test_a_history_goes_on_from_a_checkpoint(run):
    whole, _ = fed(run, [256] * 30)
    half, _ = fed(run, [256] * 17)
    again = from_plain(to_plain(half, SCORED), SCORED)
    first = 101 + 17 * 256
    again.add(run.chunk(first - 256, 256))  # rows that it knows
    assert again.num_rows == half.num_rows
    for _ in range(13):
        again.add(run.chunk(first, 256))
        first += 256
    assert again.last_row == whole.last_row
    for key in WINDOW_SERIES:
        np.testing.assert_array_equal(again.window_bins[key], whole.window_bins[key])
    for name in ("y", "mean", "lower"):
        np.testing.assert_array_equal(again.mean(name), whole.mean(name))
    np.testing.assert_array_equal(again.recent()["y"], whole.recent()["y"])
    np.testing.assert_array_equal(again.pit_counts, whole.pit_counts)
    assert again.weights().keys() == whole.weights().keys()


def test_a_record_that_is_interrupted_stays_whole():
    bins = Bins(["sum y", "greatest y"], capacity=4)
    bins.add({"y": np.arange(3.0)})
    with pytest.raises(KeyError):
        bins.add({"x": np.arange(3.0)})
    bins.add({"y": np.arange(3.0, 6.0)})
    assert (bins.num_rows, bins.width) == (6, 2)
    assert bins["sum y"].tolist() == [1.0, 5.0, 9.0]
    assert bins["greatest y"].tolist() == [1.0, 3.0, 5.0]
