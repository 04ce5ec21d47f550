# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportMissingTypeStubs=false
# pyright: reportUnknownMemberType=false
"""The package under a user's type checker: GPyTorch's parts are accepted, what is none of them is not.

`python packaging/release.py --only build types` checks this file with pyright; it is not run.
"""

from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood

from gp_ensembles import OnlineModel, OnlineRegressor, StreamConfig
from gp_ensembles.experts import GaussianExpert, LaplaceExpert
from gp_ensembles.features import InducingPointFeatures, RandomFourierFeatures
from gp_ensembles.likelihoods.classification import LogisticLikelihood

features = RandomFourierFeatures.from_kernel(ScaleKernel(RBFKernel(ard_num_dims=2)), 2, 50)
normal = GaussianExpert(features, GaussianLikelihood())
binary = LaplaceExpert(features, BernoulliLikelihood()), LaplaceExpert(features, LogisticLikelihood())
RandomFourierFeatures.from_kernel(MaternKernel(2.5), 2, 50)
RandomFourierFeatures.from_kernel("rbf", 2, 50)  # pyright: ignore[reportArgumentType]
RandomFourierFeatures.from_kernel(GaussianLikelihood(), 2, 50)  # pyright: ignore[reportArgumentType]
LaplaceExpert(features, RBFKernel())  # pyright: ignore[reportArgumentType]

knots: type[InducingPointFeatures] = InducingPointFeatures
estimator: OnlineRegressor = OnlineRegressor().fit([[0.0], [1.0]], [0.0, 1.0])
config: StreamConfig = OnlineModel(StreamConfig()).config
