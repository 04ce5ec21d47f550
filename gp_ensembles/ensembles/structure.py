"""The kinds of objects that an ensemble in a file consists of: what a spec builds, and the spec itself.

Whoever adds a class that fitted ensembles hold enters it here. Of the factors of windows, files hold only the rows in
use; what is read is equal to the bit.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gpytorch
import torch
from gpytorch import constraints, kernels
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, noise_models
from gpytorch.utils import quadrature, transforms
from torch import Tensor, nn
from torch.nn.functional import softplus

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.quarantine import Quarantine
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.engine.weighing import Layers
from gp_ensembles.ensembles.records import TABLE
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts import adapters, base, external, external_row, refitted, robust, structural, student_t, window
from gp_ensembles.experts.classifiers import ClassifierAdapter, boosted_classes
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.laplace import LaplaceExpert
from gp_ensembles.experts.multi_output import MultiOutputExpert
from gp_ensembles.features import additive, compose, fourier, hilbert, inducing, linear, radial
from gp_ensembles.features.base import PriorVariance
from gp_ensembles.files.structure import Form, Table
from gp_ensembles.filters import states, transitions
from gp_ensembles.filters.states import WindowState
from gp_ensembles.innovations.bank import InnovationBank, InnovationState
from gp_ensembles.likelihoods import CountLikelihood, LogPoissonLikelihood, classification, predictive
from gp_ensembles.meta_learners import MarkovSwitching, ReferenceAveraging
from gp_ensembles.meta_learners.base import MetaState


def _window_fields(state: WindowState) -> dict[str, Any]:
    """Of the factor the lower triangle of the rows in use, if it is the identity elsewhere."""
    whole, num_used = state.factor, int(state.num_used.max())
    triangle = whole[..., :num_used, :num_used][..., _lower(num_used, whole.device)]
    is_whole = not torch.equal(_with_capacity(triangle, num_used, whole.shape), whole)
    return {**state._asdict(), "factor": whole if is_whole else triangle}


def _window(**fields: Tensor) -> WindowState:
    state = WindowState(**fields)
    if state.factor.ndim > state.targets.ndim:
        return state
    shape = torch.Size([*state.targets.shape, state.targets.shape[-1]])
    return state._replace(factor=_with_capacity(state.factor, int(state.num_used.max()), shape))


def _lower(num_rows: int, device: torch.device) -> Tensor:
    return torch.ones(num_rows, num_rows, dtype=torch.bool, device=device).tril()


def _with_capacity(triangle: Tensor, num_used: int, shape: torch.Size) -> Tensor:
    """A factor with a triangle in its first rows, the identity elsewhere."""
    if triangle.shape != (*shape[:-2], num_used * (num_used + 1) // 2) or num_used > shape[-1]:
        raise RuntimeError(f"the factor of {num_used} rows of a window of {shape[-1]} does not fit")
    whole = torch.zeros(shape, dtype=triangle.dtype, device=triangle.device)
    whole.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    whole[..., :num_used, :num_used][..., _lower(num_used, triangle.device)] = triangle
    return whole


def _online(*, is_ranked: bool, **known: Any) -> OnlineEnsemble:
    online = OnlineEnsemble(**known)
    online.is_ranked = is_ranked
    return online


def _boosting_fields(adapter: ClassifierAdapter) -> dict[str, Any]:
    sizes = {"num_trees": adapter.classifier.max_iter, "learning_rate": adapter.classifier.learning_rate}
    if repr(boosted_classes(**sizes).classifier) != repr(adapter.classifier):
        raise TypeError(f"{adapter.classifier!r} cannot be saved; store the model with pickle.dump(model, file)")
    return sizes


_KINDS: tuple[type, ...] = (
    *TABLE.values(), EnsembleSpec,
    Ensemble, EnsembleState, TargetMemory, Layers, Quarantine, MetaState, InnovationState, states.GaussianState,
    states.SquareRootState, states.StudentTState, states.MultiOutputState, states.ExternalState,
    states.StructuralState, states.RefittedState,
    external.ExternalExpert, GaussianExpert, LaplaceExpert, MultiOutputExpert, refitted.RefittedExpert,
    robust.RobustExpert, structural.StructuralExpert, student_t.StudentTExpert, window.WindowExpert,
    external_row.HistogramBoosting, refitted.InitialFit, student_t.InverseGammaNoise, window.Refit, base.Traits,
    transitions.RandomWalk, transitions.CorrelatedWalk, transitions.ExponentialForgetting,
    transitions.StabilizedForgetting,
    additive.AdditivePolynomialFeatures, additive.AdditiveSplineFeatures, compose.Clamp, compose.Concatenate,
    compose.SelectColumns, fourier.OptimizedFourierFeatures, fourier.RandomFourierFeatures,
    hilbert.HilbertAdditiveFeatures, hilbert.HilbertTensorFeatures, inducing.InducingPointFeatures,
    linear.ConstantFeatures, linear.InputFeatures, linear.LinearFeatures,
    radial.RadialBasisFeatures, PriorVariance,
    CountLikelihood, LogPoissonLikelihood, classification.LogisticLikelihood, classification.MulticlassLikelihood,
    classification.OrdinalLikelihood, classification.Probit, predictive.GaussHermite, predictive.ProbitApproximation,
    MarkovSwitching, ReferenceAveraging, BernoulliLikelihood, GaussianLikelihood, noise_models.HomoskedasticNoise,
    quadrature.GaussHermiteQuadrature1D,
    kernels.AdditiveKernel, kernels.MaternKernel, kernels.RBFKernel, kernels.RQKernel, kernels.ScaleKernel,
    kernels.SpectralMixtureKernel, constraints.GreaterThan, constraints.Positive,
    nn.ModuleList, nn.Softplus,
)  # fmt: skip


def _given(make: Callable[..., Any], *names: str) -> Form:
    """Objects that are made of the attributes of these names."""
    return Form(lambda one: {name: getattr(one, name) for name in names}, make)


_SPECIAL: Mapping[type, Form] = {
    OnlineEnsemble: _given(_online, "ensemble", "state", "block_size", "is_ranked"),
    WindowState: Form(_window_fields, _window),
    InnovationBank: _given(InnovationBank, "models"),
    ClassifierAdapter: Form(_boosting_fields, boosted_classes),
    adapters.ColumnsAdapter: _given(adapters.ColumnsAdapter, "levels", "has_deviation"),
    external.TrainedModels: _given(external.TrainedModels),  # trained again on the rows of their state
}
_FUNCTIONS = (torch.exp, torch.log, softplus, transforms.inv_softplus, states.gaussian_state, states.square_root_state)
ENSEMBLES: Table = Table(
    {**{kind: Form.of(kind, (gpytorch.Module, nn.Module)) for kind in _KINDS}, **_SPECIAL},
    {function.__name__: function for function in _FUNCTIONS},
)
