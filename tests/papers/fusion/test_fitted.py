"""The fitted fusion: predictions, weights of the experts, files, further draws, and how good quick inference is."""

import pytest
import torch

from gp_ensembles.files.checkpoint import Kind, write_checkpoint
from gp_ensembles.papers.fusion.chees import HMCSettings
from gp_ensembles.papers.fusion.fitted import FittedFusion, fit_fusion
from gp_ensembles.papers.fusion.hmc import HMC
from gp_ensembles.papers.fusion.inference import MAP, InferenceReport, PosteriorDraws
from gp_ensembles.papers.fusion.laplace import LaplaceApproximation
from gp_ensembles.papers.fusion.models import BHS, PBHS, MoGPE, PoGPE
from tests.papers.fusion.cases import fourier_prior, inputs, normal, quiet, seeded, without_noise

SHORT = HMC(4, HMCSettings(num_draws=20, num_warmup=40))
FEW = MAP(num_restarts=2, max_iterations=20)


def prior(seed=0, lengthscale=0.4):
    return fourier_prior(4, lengthscale, seed)


def two_sensors(num_rows, seed=0):
    """Two experts, the first right on the left, the second on the right, and targets."""
    X = inputs(num_rows, seed=seed)
    x = X.squeeze(-1)
    truth, bias = (3 * x).sin(), torch.stack([x.clamp(min=0), (-x).clamp(min=0)])
    mean = truth + 1.5 * bias
    return X, truth + 0.1 * normal(num_rows, seed=seed + 1), without_noise(mean, torch.full_like(mean, 0.02))


def stacking(kind=BHS):
    X, y, predictions = two_sensors(120)
    return kind(X, y, predictions, prior())


def joint(kind=MoGPE, num_rows=60, shift=0.0):
    X, y, _ = two_sensors(num_rows)
    return kind(X, y + shift, 2, prior(0), prior(1), prior(2))


def fit(model, inference):
    with quiet():
        return fit_fusion(model, inference, generator=seeded())


def test_laplace_is_the_default_and_cannot_continue():
    default = fit_fusion(stacking(), generator=seeded())
    assert default.inference == LaplaceApproximation()
    with pytest.raises(TypeError, match="LaplaceApproximation cannot continue"):
        default.sample_more(5)


def test_weights_of_draws_count():
    """A draw of no weight changes nothing."""
    model = joint(PoGPE)
    theta, X = model.draw_prior(2, generator=seeded()), model.X[:5]
    report = InferenceReport("by hand", 0.0, 0, theta[:, 0])
    both = FittedFusion(model, PosteriorDraws(theta, theta.new_tensor([1.0, 1e-300]).log(), report))
    one = FittedFusion(model, PosteriorDraws(theta[:1], theta.new_zeros(1), report))
    torch.testing.assert_close(both.predict(X).log_prob(model.y[:5]), one.predict(X).log_prob(model.y[:5]))
    torch.testing.assert_close(both.expert_weights(X).quantiles, one.expert_weights(X).quantiles)
    assert not both.predict(X).mean.requires_grad
    with pytest.raises(ValueError, match="this model has"):
        FittedFusion(joint(), PosteriorDraws(torch.zeros(1, 3), torch.zeros(1), report))


@pytest.mark.parametrize("kind", [BHS, PBHS])
def test_fusion_finds_the_right_expert(kind):
    """Two sensors: the weights move from one to the other, and the fusion beats both."""
    fitted = fit(stacking(kind), LaplaceApproximation())
    X, y, predictions = two_sensors(200, seed=7)
    bands = fitted.expert_weights(torch.tensor([[-0.8], [0.8]], dtype=torch.float64))
    assert bands.mean[0, 0] > 2 * bands.mean[1, 0]
    assert bands.mean[1, 1] > 2 * bands.mean[0, 1]
    fused = fitted.predict(X, predictions).log_prob(y).mean()
    assert fused > predictions.log_prob(y).mean(-1).amax() + 0.3


def test_quantiles_of_weights():
    model = stacking()
    theta = model.draw_prior(999, generator=seeded())
    equal = theta[:, 0].mul(0).log_softmax(0)
    fitted = FittedFusion(model, PosteriorDraws(theta, equal, InferenceReport("prior", 0.0, 0, theta[:, 0])))
    bands = fitted.expert_weights(model.X[:6], (0.0, 0.1, 0.5, 1.0))
    weights = model.log_weights(theta, model.X[:6]).exp()
    torch.testing.assert_close(bands.mean, weights.mean(0))
    expected = torch.quantile(weights, bands.levels, dim=0, interpolation="higher")
    torch.testing.assert_close(bands.quantiles[2], weights.median(0).values)
    assert (bands.quantiles - expected).abs().amax() < 0.01
    torch.testing.assert_close(bands.quantiles[[0, 3]], torch.stack([weights.amin(0), weights.amax(0)]))
    with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
        fitted.expert_weights(model.X, (1.5,))


@pytest.mark.parametrize("inference", [FEW, LaplaceApproximation(num_restarts=2, num_draws=5), SHORT])
def test_file_round_trip(tmp_path, inference):
    """What is read predicts what was written, bit for bit, and keeps its report."""
    fitted = fit(joint(), inference)
    fitted.save(tmp_path / "fusion.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["fusion.pt"]
    read = FittedFusion.load(tmp_path / "fusion.pt", joint())
    assert torch.equal(read.theta, fitted.theta)
    assert torch.equal(read.log_weights, fitted.log_weights)
    assert read.report.summary() == fitted.report.summary()
    X = fitted.model.X[:4]
    assert torch.equal(read.predict(X).log_prob(fitted.model.y[:4]), fitted.predict(X).log_prob(fitted.model.y[:4]))
    with pytest.raises(ValueError, match="sample_more needs"):
        read.sample_more(5)


def test_another_model_is_refused(tmp_path):
    fitted = fit(joint(), FEW)
    fitted.save(tmp_path / "fusion.pt")
    for other, message in [
        (lambda: joint(PoGPE), "written for a MoGPE with 40 parameters, but the model is a PoGPE"),
        (lambda: joint(shift=0.3), "another model"),
        (lambda: joint(num_rows=61), "another model"),
        (lambda: MoGPE(joint().X, joint().y, 2, prior(5), prior(1), prior(2)), "another model"),
        (lambda: MoGPE(joint().X, joint().y, 2, prior(0), prior(1, lengthscale=0.5), prior(2)), "another model"),
    ]:
        with pytest.raises(ValueError, match=message):
            FittedFusion.load(tmp_path / "fusion.pt", other())


def test_other_files_are_refused(tmp_path):
    """Of another kind, or lacking something; what any checkpoint refuses is tested with those."""
    path, less = tmp_path / "fusion.pt", {"model": "MoGPE", "check": torch.zeros(1)}
    for kind, message in [
        (Kind("gp_ensembles fusion", 3, "a fusion", ""), "not a saved fusion: 'posterior'"),
        (Kind("gp_ensembles fusion", 9, "a fusion", ""), "has checkpoint format 9, this version .* reads 3"),
        (Kind("another", 3, "another", ""), "not a checkpoint of a fitted fusion"),
    ]:
        write_checkpoint(path, kind, less)
        with pytest.raises(ValueError, match=message):
            FittedFusion.load(path, joint())
