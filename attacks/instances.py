"""Experts, ways to follow change, weight rules and error models in every combination: what ``streams`` attacks."""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import (
    GaussianExpert,
    LaplaceExpert,
    MultiOutputExpert,
    RobustExpert,
    StudentTExpert,
    WindowExpert,
)
from gp_ensembles.experts.adapters import ColumnsAdapter
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.external_row import HistogramBoosting
from gp_ensembles.experts.refitted import InitialFit, RefittedExpert
from gp_ensembles.experts.structural import StructuralExpert
from gp_ensembles.experts.window import Refit
from gp_ensembles.features import LinearFeatures, RandomFourierFeatures
from gp_ensembles.features.linear import InputFeatures
from gp_ensembles.filters import CorrelatedWalk, ExponentialForgetting, RandomWalk, StabilizedForgetting, gaussian_state
from gp_ensembles.filters.sites import MomentMatchingUpdate
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    CombinedRules,
    DiscountedOnlineNewton,
    DynamicModelAveraging,
    ExponentiatedGradient,
    FixedShare,
    MarkovSwitching,
    MetaLearner,
    OnlineNewton,
    ReferenceAveraging,
    SoftBayes,
    sticky_transition,
)

NUM_INPUTS = 2
_NUM_FEATURES = NUM_INPUTS + 1
_WINDOW = 12
_TWO = torch.Size([2])
_REFIT = Refit(every=40, first=20, num_rows=30)
_SPEEDS = (0.0, 1e-2)
_VARIANCES = ((0.1, 1e-2, 1e-4), (1.0, 1e-3, 0.0))


def _features(like: Tensor) -> LinearFeatures:
    return LinearFeatures(NUM_INPUTS, like.new_tensor([0.1, 10.0]))


def _refitted(like: Tensor) -> GaussianExpert:
    draw = torch.Generator().manual_seed(0)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=NUM_INPUTS + 1)).to(like)
    return GaussianExpert(RandomFourierFeatures.from_kernel(kernel, NUM_INPUTS + 1, 8, generator=draw))


# Experts that follow change by a transition, and those with a separate path.
MOVING: dict[str, Callable[[Tensor, Transition | None], Expert]] = {
    "Gaussian": lambda like, change: GaussianExpert(_features(like), None, change, gaussian_state),
    "Gaussian, square root": lambda like, change: GaussianExpert(_features(like), None, change, square_root_state),
    "Student-t": lambda like, change: StudentTExpert(_features(like), transition=change),
    "robust": lambda like, change: RobustExpert(_features(like), None, change),
    "Laplace": lambda like, change: LaplaceExpert(_features(like), LogisticLikelihood(), change),
    "moment matching": lambda like, change: LaplaceExpert(
        _features(like), LogisticLikelihood(), change, MomentMatchingUpdate()
    ),
    "two outputs": lambda like, change: MultiOutputExpert(_features(like), 2, transition=change),
}
STANDING: dict[str, Callable[[Tensor], Expert]] = {
    "window": lambda like: WindowExpert(RBFKernel(batch_shape=_TWO).to(like), NUM_INPUTS, _WINDOW),
    "window, refitted": lambda like: WindowExpert(
        ScaleKernel(RBFKernel(batch_shape=_TWO), batch_shape=_TWO).to(like), NUM_INPUTS, _WINDOW, refit=_REFIT
    ),
    "refitted": lambda like: RefittedExpert(
        _refitted(like), NUM_INPUTS, InitialFit((1,)), like.new_tensor(_SPEEDS), _REFIT
    ),
    "structural": lambda like: StructuralExpert(like.new_tensor(_VARIANCES), 4, NUM_INPUTS, 20),
    "structural, slope": lambda like: StructuralExpert(
        like.new_tensor(_VARIANCES), None, NUM_INPUTS, 20, like.new_tensor([[1e-4, 1.0], [1e-2, 0.9]])
    ),
    "boosting": lambda like: ExternalExpert(HistogramBoosting(3), InputFeatures(NUM_INPUTS, like), 20, 40, 60),
    "forecasts": lambda like: ExternalExpert(
        ColumnsAdapter(), InputFeatures(1, like), 20, 40, 60, columns=[NUM_INPUTS]
    ),
}
_MAY_BE_ABSENT = ("boosting", "forecasts")  # another has to predict beside them
ADAPTATIONS: dict[str, Callable[[Tensor], Transition | None]] = {
    "static": lambda like: None,
    "random walk": lambda like: RandomWalk(like.new_tensor(1e-3)),
    "correlated walk": lambda like: CorrelatedWalk(1e-3 * torch.eye(_NUM_FEATURES).to(like)),
    "exponential forgetting": lambda like: ExponentialForgetting(like.new_tensor(0.97)),
    "stabilized forgetting": lambda like: StabilizedForgetting(like.new_tensor(0.97)),
}
RULES: dict[str, Callable[[int], MetaLearner]] = {
    "averaging": lambda num: BayesianModelAveraging(),
    "dynamic averaging": lambda num: DynamicModelAveraging(0.9),
    "fixed share": lambda num: FixedShare(0.05),
    "switching": lambda num: MarkovSwitching(sticky_transition(num, 0.95)),
    "gradient": lambda num: ExponentiatedGradient(),
    "soft": lambda num: SoftBayes(),
    "newton": lambda num: OnlineNewton(),
    "discounted newton": lambda num: DiscountedOnlineNewton(),
    "combined": lambda num: CombinedRules([FixedShare(0.05), SoftBayes(0.1)], over=FixedShare(0.02)),
    "reference": lambda num: ReferenceAveraging(FixedShare(0.05), range(num)),
}
INNOVATIONS: dict[str, tuple[InnovationModel, ...]] = {
    "none": (),
    "normal": (InnovationModel(),),
    "heavy tails": (InnovationModel(degrees_of_freedom=4, rate=0.1), InnovationModel(5.0, 0.0, 0.05, False)),
}
DTYPES = {"float64": torch.float64, "float32": torch.float32}
_LATENT = ("Laplace", "moment matching")


class Instance(NamedTuple):
    """One combination, by names."""

    expert: str
    adaptation: str
    rule: str
    innovations: str
    dtype: str

    @property
    def has_labels(self) -> bool:
        """Whether targets are 0 and 1."""
        return self.expert in _LATENT

    @property
    def has_forecasts(self) -> bool:
        """Whether a further column holds forecasts of the target."""
        return self.expert == "forecasts"

    @property
    def num_outputs(self) -> int | None:
        """Number of outputs, if it is reported."""
        return 2 if self.expert == "two outputs" else None

    def build(self) -> OnlineEnsemble:
        """A fresh ensemble of experts of this kind: two, or one and what predicts while it is absent."""
        like = torch.zeros((), dtype=DTYPES[self.dtype])
        if self.expert in STANDING:
            expert = STANDING[self.expert](like)
        else:
            expert = MOVING[self.expert](like, ADAPTATIONS[self.adaptation](like))
        experts = [expert]
        if self.expert in _MAY_BE_ABSENT:
            experts.append(GaussianExpert(LinearFeatures(NUM_INPUTS, like.new_ones(()))))
        models = INNOVATIONS[self.innovations]
        num = sum(each.num_experts for each in experts) * (1 + len(models))
        return OnlineEnsemble(Ensemble(experts, RULES[self.rule](num), innovations=models), block_size=8)


def instances() -> list[Instance]:
    """All combinations that make sense: error models are for single real-valued targets."""
    found = [Instance(*names) for names in product(MOVING, ADAPTATIONS, RULES, INNOVATIONS, DTYPES)]
    found += [Instance(*names) for names in product(STANDING, ["its own"], RULES, INNOVATIONS, DTYPES)]
    real = (*(name for name in MOVING if name not in (*_LATENT, "two outputs")), *STANDING)
    return [one for one in found if one.innovations == "none" or one.expert in real]
