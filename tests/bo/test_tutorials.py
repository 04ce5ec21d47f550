"""BoTorch's tutorials in short form: the same code with ``SingleTaskGP`` and with our model, only the class changes."""

import pytest
import torch
from botorch.acquisition import ExpectedImprovement, PosteriorMean, qKnowledgeGradient, qLogExpectedImprovement
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.acquisition.risk_measures import CVaR, VaR
from botorch.fit import fit_gpytorch_mll
from botorch.generation.sampling import ConstrainedMaxPosteriorSampling, MaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms.input import AppendFeatures, InputPerturbation, Normalize
from botorch.models.transforms.outcome import Log, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.sampling.pathwise import get_matheron_path_model
from botorch.utils.multi_objective.box_decompositions.dominated import DominatedPartitioning
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Size

from gp_ensembles.bo import ExactEnsembleModel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::botorch.exceptions.BotorchWarning", "ignore:Optimization failed"),
    pytest.mark.filterwarnings("ignore::gpytorch.utils.warnings.NumericalWarning", "ignore:Sparse invariant"),
]
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


@pytest.fixture(params=[SingleTaskGP, ExactEnsembleModel], ids=lambda kind: kind.__name__)
def kind(request):
    with manual_seed(0):
        yield request.param


def hill(X, top=(0.3, 0.7)):
    """Highest at its top, where it is one."""
    return (-4 * (X - X.new_tensor(top)).square().sum(-1, keepdim=True)).exp()


def design(num_rows=8, bounds=UNIT):
    return draw_sobol_samples(bounds, num_rows, 1, seed=1).squeeze(-2)


def fitted(*models):
    model, mll = ModelListGP(*models), SumMarginalLogLikelihood
    if len(models) == 1:
        model, mll = models[0], ExactMarginalLogLikelihood
    fit_gpytorch_mll(mll(model.likelihood, model))
    return model


def best_of(acquisition, q=1, bounds=UNIT):
    """A maximizer, which has to be worth the same each time that it is asked, and more than points of a design."""
    X, value = optimize_acqf(acquisition, bounds, q, num_restarts=3, raw_samples=32, options={"maxiter": 40})
    assert X.shape == (q, bounds.shape[-1])
    with torch.no_grad():
        torch.testing.assert_close(acquisition(X), acquisition(X))
        torch.testing.assert_close(acquisition(X), value.reshape(1))
        others = draw_sobol_samples(bounds, 8, q, seed=2)
        assert bool((acquisition(others) <= value + 1e-3 * value.abs()).all())
    return X


@pytest.mark.parametrize("acquisition", [qLogExpectedImprovement, qLogNoisyExpectedImprovement])
def test_closed_loop_with_a_constraint_and_known_noise(kind, acquisition):
    """Two models in a list, an objective and a constraint of their samples, pairs of points: near the feasible top."""
    X = design()
    noise = torch.full_like(X[:, :1], 1e-4)
    objective = GenericMCObjective(lambda samples, X=None: samples[..., 0])
    for _ in range(3):
        Y, excess = hill(X), X.sum(-1, keepdim=True) - 0.8  # the top is not feasible
        noise = torch.full_like(Y, 1e-4)
        model = fitted(kind(X, Y, noise), kind(X, excess, noise))
        best = Y[excess <= 0].max()
        known = {"best_f": best} if acquisition is qLogExpectedImprovement else {"X_baseline": X}
        sampler = SobolQMCNormalSampler(Size([64]), seed=0)
        constraints = [lambda samples: samples[..., 1]]
        X = torch.cat(
            [X, best_of(acquisition(model, sampler=sampler, objective=objective, constraints=constraints, **known), 2)]
        )
    Y, feasible = hill(X), X.sum(-1) <= 0.8 + 1e-3
    assert Y[feasible].max() > hill(X.new_tensor([[0.2, 0.6]])) - 0.02


@pytest.mark.parametrize("form", ["list", "outputs"])
def test_two_objectives(kind, form):
    """Expected hypervolume improvement of a list of models, and of one model of two outputs."""
    X, tops = design(), ((0.3, 0.7), (0.6, 0.4))
    reference = torch.zeros(2, dtype=torch.float64)
    volumes = []
    for _ in range(3):
        Y = torch.cat([hill(X, top) for top in tops], dim=-1)
        volumes.append(DominatedPartitioning(reference, Y).compute_hypervolume())
        if form == "list":
            model = fitted(*(kind(X, y, outcome_transform=Standardize(1)) for y in Y.mT.unsqueeze(-1)))
        else:
            model = fitted(kind(X, Y))
        sampler = SobolQMCNormalSampler(Size([32]), seed=0)
        acquisition = qLogNoisyExpectedHypervolumeImprovement(model, reference, X, sampler=sampler, prune_baseline=True)
        X = torch.cat([X, best_of(acquisition, 2)])
    assert volumes[2] > volumes[1] + 0.01 > volumes[0] + 0.02


def test_trust_region(kind):
    """TuRBO: a box about the best point, its sides as the length scales; Thompson sampling inside."""

    def flat(X):
        return hill(X * X.new_tensor([1.0, 1.0, 0.1]), (0.3, 0.7, 0.05))  # the last input hardly matters

    X = torch.rand(12, 3, dtype=torch.float64)
    Y = flat(X)
    model = fitted(kind(X, (Y - Y.mean()) / Y.std()))
    kernel = model.covar_module
    weights = getattr(kernel, "base_kernel", kernel).lengthscale.squeeze().detach()
    weights = weights / weights.mean()
    assert weights.shape == (3,)
    assert weights.argmax() == 2
    low, high = ((X[Y.argmax()] + side * 0.4 * weights).clamp(0, 1) for side in (-1, 1))
    candidates = low + (high - low) * torch.rand(300, 3, dtype=torch.float64)
    with torch.no_grad():
        found = MaxPosteriorSampling(model, replacement=False)(candidates, num_samples=4)
    assert found.unique(dim=0).shape == (4, 3)
    assert flat(found).mean() > flat(candidates).mean() + 0.01


def test_constrained_thompson_sampling(kind):
    """SCBO: the best of joint draws among candidates whose drawn constraints hold."""
    X = design(16)
    model = fitted(kind(X, hill(X)))
    constraints = fitted(kind(X, X[:, :1] - 0.2), kind(X, 0.4 - X[:, 1:]))
    candidates = torch.rand(200, 2, dtype=torch.float64)
    sampling = ConstrainedMaxPosteriorSampling(model, constraint_model=constraints, replacement=False)
    with torch.no_grad():
        found = sampling(candidates, num_samples=4)
    assert bool((found[:, 0] < 0.22).all() and (found[:, 1] > 0.38).all())
    assert hill(found).min() > 0.6


def test_cost_aware(kind):
    """Expected improvement by the price of an evaluation, whose logarithm is modeled."""

    class ImprovementByCost(AnalyticAcquisitionFunction):
        def __init__(self, model, best_f, cost):
            super().__init__(model)
            self.improvement, self.cost = ExpectedImprovement(model, best_f), cost

        def forward(self, X):
            return self.improvement(X) / self.cost.posterior(X).mean[..., 0, 0]

    X = design(10)
    Y, price = hill(X, (0.5, 0.5)), (5 * X[:, :1]).exp()
    model, cost = fitted(kind(X, Y)), fitted(kind(X, price, outcome_transform=Log()))
    fresh = torch.rand(20, 2, dtype=torch.float64)
    predicted = cost.posterior(fresh).mean
    torch.testing.assert_close(predicted, (5 * fresh[:, :1]).exp(), rtol=0.2, atol=0.1)
    best = Y.max() - 0.2
    plain, aware = (best_of(a) for a in (ExpectedImprovement(model, best), ImprovementByCost(model, best, cost)))
    assert aware[0, 0] < plain[0, 0] - 0.05


def test_one_shot_knowledge_gradient(kind):
    """Fantasies and what is done after them are chosen at once; the value is what knowledge adds."""
    X = design(10)
    model = fitted(kind(X, hill(X)))
    _, current = optimize_acqf(PosteriorMean(model), UNIT, 1, num_restarts=3, raw_samples=64)
    gradient = qKnowledgeGradient(model, num_fantasies=4, current_value=current)
    found, value = optimize_acqf(gradient, UNIT, 2, num_restarts=2, raw_samples=16, options={"maxiter": 30})
    assert found.shape == (2, 2)
    assert -0.02 < float(value) < 0.5


@pytest.mark.parametrize("measure", [VaR, CVaR])
def test_inputs_that_are_perturbed(kind, measure):
    """Risk averse: a sharp hill is not worth a walk on its edge, a broad one is."""
    X = design(24)
    Y = 1.3 * (-400 * (X - X.new_tensor([0.2, 0.2])).square().sum(-1, keepdim=True)).exp() + hill(X, (0.7, 0.7))
    moves = 0.1 * torch.randn(8, 2, dtype=torch.float64)
    model = fitted(kind(X, Y, input_transform=InputPerturbation(moves, bounds=UNIT)))
    acquisition = qLogNoisyExpectedImprovement(
        model, X, SobolQMCNormalSampler(Size([32]), seed=0), measure(0.8, 8), prune_baseline=True
    )
    found = best_of(acquisition)
    assert (found - found.new_tensor([0.7, 0.7])).norm() < 0.35


def test_environment_that_is_averaged(kind):
    """A third input that nobody chooses: appended to points, and its conditional value at risk maximized."""
    X = draw_sobol_samples(torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64), 20, 1, seed=3).squeeze(-2)
    Y = hill(X[:, :2]) * (1 + 0.2 * X[:, 2:])
    model = fitted(kind(X, Y, input_transform=AppendFeatures(torch.rand(6, 1, dtype=torch.float64))))
    acquisition = qLogNoisyExpectedImprovement(model, X[:, :2], SobolQMCNormalSampler(Size([32]), seed=0), CVaR(0.5, 6))
    assert hill(best_of(acquisition)) > 0.7


def test_thompson_sampling(kind):
    """Maxima of joint draws among candidates, and of paths by Matheron's rule."""
    X = design(12)
    model = fitted(kind(X, hill(X), outcome_transform=Standardize(1), input_transform=Normalize(2)))
    candidates = torch.rand(400, 2, dtype=torch.float64)
    for sampled in (model, get_matheron_path_model(model)):
        with torch.no_grad():
            found = MaxPosteriorSampling(sampled, replacement=False)(candidates, num_samples=5)
        assert found.unique(dim=0).shape == (5, 2)
        assert hill(found).min() > 0.5
