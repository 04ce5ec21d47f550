"""What the first rows teach, and what searches that were cut short say of themselves."""

import pytest
import torch

from gp_ensembles.features.fourier import fourier_features
from gp_ensembles.meta_learners import BayesianModelAveraging, MarkovSwitching
from gp_ensembles.papers.gplvm import LatentSettings, ie_gplvm
from gp_ensembles.papers.gplvm import model as model_module
from gp_ensembles.papers.gplvm.first_rows import fit_batch, log_posterior, principal_components
from gp_ensembles.papers.gplvm.presets import rbf_features


def rows(num_rows=40, seed=0):
    source = torch.Generator().manual_seed(seed)
    t = 2 * torch.rand(num_rows, 2, generator=source, dtype=torch.float64) - 1
    mixing = torch.randn(2, 6, generator=source, dtype=torch.float64)
    noise = torch.randn(num_rows, 6, generator=source, dtype=torch.float64)
    return 7 + 3 * torch.sin(2 * t @ mixing) + 0.1 * noise


def small(**settings):
    generator = torch.Generator().manual_seed(0)
    return ie_gplvm(6, 2, 10, settings=LatentSettings(**settings), generator=generator)


def test_the_search_starts_at_principal_components_as_wide_as_the_prior(monkeypatch):
    seen = []

    def watched(omega, X, Y, latent_variance, **options):
        seen.append((X, Y, latent_variance))
        return fit_batch(omega, X, Y, latent_variance, **options)

    monkeypatch.setattr(model_module, "fit_batch", watched)
    Y = rows()
    small(latent_variance=2.5, batch_iterations=5).start(Y)
    ((X, scaled, spread),) = seen
    assert spread == 2.5
    torch.testing.assert_close(X, principal_components(Y, 2)[0] * 2.5**0.5)
    torch.testing.assert_close(X.square().mean(0), torch.full((2,), 2.5, dtype=torch.float64))
    centered = Y - Y.mean(0)
    torch.testing.assert_close(scaled, centered / centered.square().mean().sqrt())


def test_first_rows_have_the_objective_one_latent_space_and_the_dense_posterior():
    Y, model = rows(), small(latent_variance=2.5, batch_iterations=20)
    first = model.start(Y)
    scaled = (Y - model.offset) / model.scale
    variances = model.prior_variance, model.noise
    objective = log_posterior(model.omega, first.by_expert, scaled, 6, *variances, 2.5)[0]
    torch.testing.assert_close(model.log_joint, objective)
    assert first.expert.tolist() == [int(objective.argmax())] * 40
    torch.testing.assert_close(first.embedding, first.by_expert[first.expert[0]])
    torch.testing.assert_close(model.log_weights, model.log_weights.mean().expand(model.num_experts))
    Phi, ratio = fourier_features(model.omega, first.by_expert), model.noise / model.prior_variance
    information = Phi.mT @ Phi + ratio[:, None, None] * torch.eye(20, dtype=torch.float64)
    torch.testing.assert_close(model.factor @ model.factor.mT, torch.linalg.inv(information), rtol=1e-7, atol=1e-7)
    expected = torch.linalg.solve(information, Phi.mT @ scaled)
    torch.testing.assert_close(model.mean, expected, rtol=1e-6, atol=1e-6)


def test_the_preset_has_the_papers_variants():
    for stay, learner in [(None, BayesianModelAveraging), (0.99, MarkovSwitching)]:
        model = ie_gplvm(6, 2, 5, stay=stay, settings=LatentSettings(random_walk_ratio=1e-4))
        assert isinstance(model.meta_learner, learner)
        assert model.settings.random_walk_ratio == 1e-4
        assert (model.num_experts, model.num_latent, model.omega.shape[1]) == (7, 2, 5)
    omega = rbf_features(2, 4000, generator=torch.Generator().manual_seed(0)).frequencies()
    # Frequencies of an RBF kernel have the variance of one over its squared length scale.
    expected = 2.0 ** -torch.arange(-3.0, 4.0, dtype=torch.float64)
    torch.testing.assert_close(omega.var((1, 2)), expected, rtol=0.1, atol=0)


def test_unfit_features_are_named():
    for given, words in [
        ({"variances": []}, "at least one"),
        ({"variances": [1.0, float("nan")]}, "positive and finite"),
        ({"variances": torch.tensor([1.0, -1.0])}, "positive and finite"),
        ({"num_frequencies": 0}, "num_frequencies"),
        ({"dtype": torch.float16}, "torch.float32 or torch.float64"),
    ]:
        with pytest.raises(ValueError, match=words):
            rbf_features(**given)
