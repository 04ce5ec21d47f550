"""Numbers of predictions.csv and of the score table, against scipy."""

import numpy as np
import torch
from scipy import integrate, optimize, stats

from gp_ensembles.cli.predictions import MODEL, rows_of_numbers, score_block, score_table
from gp_ensembles.distributions import StudentTMixture
from gp_ensembles.metrics.streaming import init_scores
from gp_ensembles.streaming.columns import Standardizer
from gp_ensembles.streaming.predictions import OnlinePredictions


def test_student_t_mixtures_have_their_own_quantiles_and_densities():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    variance = 1 + draws.square()
    df = torch.tensor([[2.5], [3.0], [torch.inf]], dtype=torch.float64).expand(3, 5)
    log_weights = draws.mul(0.3).log_softmax(0)
    y = torch.tensor([0.0, 30.0, -2.0, torch.nan, 1.0], dtype=torch.float64)
    zero = y.new_zeros(())
    scales = Standardizer(zero, zero + 1, zero + 2, zero + 5)
    mixture = StudentTMixture(log_weights, draws, variance, df).rescale(scales.y_mean, scales.y_scale)
    flat = StudentTMixture(y.new_zeros(1), y.new_zeros(1, 5), y.new_full((1, 5), 2.0), y.new_full((1, 5), 4.0))
    baseline = {"flat": rows_of_numbers(flat.rescale(scales.y_mean, scales.y_scale), y, 5.0)}
    before = {MODEL: init_scores(y), "flat": init_scores(y)}
    predictions = OnlinePredictions(mixture, mixture.log_prob(y), mixture.log_weights, 0)
    scores, chunk = score_block(before, 1, y, predictions, baseline, 5.0, 5)

    weights = log_weights.exp().numpy()
    location, scale = (2 + 5 * draws).numpy(), 5 * torch.where(df.isinf(), variance, variance * (df - 2) / df).sqrt()
    parts = stats.t(df.numpy(), location, scale.numpy())

    def cdf(x, row):
        return weights[:, row] @ parts.cdf(x)[:, row]

    for row in range(5):
        for level, got in ((0.05, chunk.rows.lower), (0.95, chunk.rows.upper)):
            want = optimize.brentq(lambda x, row=row, level=level: cdf(x, row) - level, -1e4, 1e4, xtol=1e-11)
            np.testing.assert_allclose(float(got[row]), want, rtol=1e-9)
    np.testing.assert_allclose(chunk.log_weights, log_weights, rtol=1e-12)  # one for each expert
    seen = [0, 1, 2, 4]
    density = np.log((weights * parts.pdf(y.numpy())).sum(0))
    np.testing.assert_allclose(chunk.rows.log_prob[seen], density[seen], rtol=1e-10)
    np.testing.assert_allclose(chunk.rows.pit[seen], [cdf(float(y[row]), row) for row in seen], rtol=1e-10)
    assert bool(chunk.rows.log_prob[3].isnan())
    assert bool(chunk.rows.pit[3].isnan())

    assert abs(float(chunk.baselines["flat"][0]) - stats.t(4, 2, 5).logpdf(0.0)) < 1e-12
    table = score_table(scores, 5.0)[MODEL]
    np.testing.assert_allclose(table["log_score"], density[seen].mean(), rtol=1e-10)
    np.testing.assert_allclose(table["log_score_standardized"], density[seen].mean() + np.log(5.0), rtol=1e-10)
    assert table["coverage_90"] == np.mean([0.05 <= cdf(float(y[row]), row) <= 0.95 for row in seen])
    # The CRPS is a sum over nodes that reach into the tails of 2.5 degrees of freedom.
    crps = []
    for row in seen:
        target = float(y[row])
        below = integrate.quad(lambda x, row=row: cdf(x, row) ** 2, -3000, target, limit=500, points=[-50, 0])[0]
        above = integrate.quad(lambda x, row=row: (1 - cdf(x, row)) ** 2, target, 3000, limit=500, points=[50, 100])[0]
        crps.append(below + above)
    np.testing.assert_allclose(table["crps"], np.mean(crps), rtol=2e-4)
