"""Hyperparameters of a BoTorch model: the evidence of all rows, maximized for each feature map."""

from collections.abc import Callable

import torch
from botorch.models.transforms.input import InputTransform
from botorch.optim.closures import ForwardBackwardClosure
from botorch.optim.core import scipy_minimize
from botorch.optim.utils import get_parameters_and_bounds
from gpytorch import Module as GPyTorchModule
from linear_operator.utils.errors import NanError
from torch import Tensor

from gp_ensembles.bo.data import Observations
from gp_ensembles.bo.default_ensemble import allow_length_scales_
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.empirical_bayes import LBFGS, fit_empirical_bayes
from gp_ensembles.filters.states import FilterState
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.short_length_scales import short_length_scales

_METHOD = LBFGS(max_iterations=100, loss_tolerance=1e-6)
_ROUNDS = 3  # fits of an input transform with parameters, each followed by one of the components
_INPUT_ITERATIONS = 25


def fit_in_turn(
    transform: InputTransform | None, fit_components: Callable[[], None], log_evidences: Callable[[], Tensor]
) -> None:
    """Fit the components of a mixture, and in turn what an input transform has to learn, in place."""
    fit_components()
    if transform is not None and any(p.requires_grad for p in transform.parameters()):
        for _ in range(_ROUNDS):  # one after the other: each set of hyperparameters has a fit of its own
            maximize_in_transform(transform, log_evidences)
            fit_components()


def fit_experts(ensemble: Ensemble, rows: Observations, progress: bool = False) -> None:
    """Maximize evidence plus log priors, in place; experts that share a feature map are fitted through the first."""
    first = {id(expert.features): expert for expert in reversed(ensemble.experts)}
    y = rows.Y.squeeze(-1)
    found = short_length_scales(rows.X, y)
    starts = () if found is None else (found,)
    for expert in first.values():
        for scales in starts:
            allow_length_scales_(expert, scales)
        evidence = _SequentialEvidence(expert)
        fit_empirical_bayes(evidence, rows.X, y, _METHOD, progress=progress, length_scales=starts)


def maximize_in_transform(transform: InputTransform, log_evidences: Callable[[], Tensor]) -> None:
    """Maximize the evidence of a mixture plus log priors in an input transform's parameters, in place."""
    whole = GPyTorchModule()  # which knows bounds and priors of all its parts
    whole.transform = transform
    parameters, bounds = get_parameters_and_bounds(whole, requires_grad=True)
    before = [value.detach().clone() for value in parameters.values()]

    def loss() -> Tensor:
        try:
            value = log_evidences().logsumexp(-1).sum()
        except NumericalError as error:
            raise NanError(str(error)) from error  # which BoTorch's search takes for a bad point
        for _, module, prior, closure, _ in whole.named_priors():
            value = value + prior.log_prob(closure(module)).sum()
        return -value

    both = ForwardBackwardClosure(loss, parameters)
    try:
        scipy_minimize(both, parameters, bounds, options={"maxiter": _INPUT_ITERATIONS})
    except BaseException:
        with torch.no_grad():
            for value, old in zip(parameters.values(), before, strict=True):
                value.copy_(old)
        raise
    finally:
        for value in parameters.values():
            value.grad = None


class _SequentialEvidence(Expert):
    """An expert whose evidence is that of rows in their order, with weights that change."""

    def __init__(self, expert: Expert) -> None:
        super().__init__(expert.features, None)
        self.expert = expert

    def init(self) -> FilterState:
        return self.expert.init()

    def bind(self) -> BoundExpert:
        return self.expert.bind()

    def check_targets(self, y: Tensor) -> None:
        self.expert.check_targets(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Exact; in weight or function space for static weights, by the filter for weights that change."""
        expert = self.expert
        if expert.transition is None:
            return expert.log_evidence(X, y)
        bound = expert.bind()
        _, steps = bound.update_block(expert.init(), bound.features(X), y)
        return steps.log_prob.sum(-1)

    def take(self, index: Tensor) -> "_SequentialEvidence":
        return _SequentialEvidence(self.expert.take(index))

    def with_transition(self, transition: Transition | None) -> "_SequentialEvidence":
        return _SequentialEvidence(self.expert.with_transition(transition))
