"""Ensembles of each kind that a fleet runs, and a stream of rows of several series."""

from collections.abc import Callable

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.engine import Ensemble
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.experts import GaussianExpert, LaplaceExpert, StudentTExpert
from gp_ensembles.features import LinearFeatures, RandomFourierFeatures
from gp_ensembles.features.batch import stack_kernels
from gp_ensembles.filters import ExponentialForgetting, RandomWalk
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    CombinedRules,
    FixedShare,
    MarkovSwitching,
    SoftBayes,
    sticky_transition,
)

INPUTS, SERIES = 2, 5


def fourier(num_inputs: int = INPUTS, num_experts: int = 2) -> RandomFourierFeatures:
    kernels = [ScaleKernel(RBFKernel()).double() for _ in range(num_experts)]
    for number, kernel in enumerate(kernels):
        kernel.base_kernel.lengthscale = 0.7 + number
    stacked, generator = stack_kernels(kernels), torch.Generator().manual_seed(3)
    return RandomFourierFeatures.from_kernel(stacked, num_inputs, 10, generator=generator)


def linear(num_inputs: int = INPUTS) -> LinearFeatures:
    return LinearFeatures(num_inputs, torch.tensor(2.0, dtype=torch.float64))


def walking() -> list[GaussianExpert]:
    shared = fourier()
    return [GaussianExpert(shared), GaussianExpert(shared, transition=RandomWalk(1e-2)), GaussianExpert(linear())]


def remembering() -> Ensemble:
    y = torch.sin(torch.arange(80, dtype=torch.float64) / 3)
    memory = TargetMemory([1, 3], y)
    experts = [GaussianExpert(fourier(INPUTS + 2)), GaussianExpert(linear(INPUTS + 2))]
    models = (InnovationModel(rate=0.1), InnovationModel(degrees_of_freedom=4, autoregressive=False))
    return Ensemble(experts, combined(), innovations=models, memory=memory, outlier_threshold=5.0)


def combined() -> CombinedRules:
    return CombinedRules([FixedShare(0.01), SoftBayes(0.05)], over=FixedShare(0.02))


ENSEMBLES: dict[str, Callable[[], Ensemble]] = {
    "averaging": lambda: Ensemble(walking(), BayesianModelAveraging()),
    "switching": lambda: Ensemble(walking(), MarkovSwitching(sticky_transition(5, 0.9))),
    "one expert": lambda: Ensemble([GaussianExpert(linear())], FixedShare()),
    "forgetting": lambda: Ensemble(
        [GaussianExpert(fourier(), transition=ExponentialForgetting(0.98)), GaussianExpert(linear())], combined()
    ),
    "square roots": lambda: Ensemble(
        [GaussianExpert(fourier(), initial_state=square_root_state), GaussianExpert(linear())], FixedShare()
    ),
    "unknown noise": lambda: Ensemble([StudentTExpert(fourier()), GaussianExpert(linear())], FixedShare()),
    "outliers": lambda: Ensemble(walking(), FixedShare(), outlier_threshold=4.0),
    "all layers": remembering,
    "classes": lambda: Ensemble([LaplaceExpert(fourier(), LogisticLikelihood())], FixedShare()),
}


def rows(num_rows: int, generator: torch.Generator, classes: bool = False) -> tuple[list[str], Tensor, Tensor]:
    """Names, inputs and targets of rows of several series in any order, with gaps and gross errors."""
    draw = {"generator": generator, "dtype": torch.float64}
    series = torch.randint(0, SERIES, (num_rows,), generator=generator)
    X = torch.randn(num_rows, INPUTS, **draw)
    y = torch.sin(2 * X[:, 0]) * (1 + series) + 0.2 * torch.randn(num_rows, **draw)
    if classes:
        y = (y > 0).double()
    else:
        y[::31] += 60
    y[::13] = torch.nan
    return [f"series {number}" for number in series.tolist()], X, y
