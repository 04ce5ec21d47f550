"""A fitted fusion as a BoTorch model, and joint predictions of its experts at several points."""

import copy
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, Self, final

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.models import ExactGP
from torch import Tensor, nn

from gp_ensembles.bo.data import Observations, joined, normal_likelihood
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import MixturePosterior, covariance_factors
from gp_ensembles.numerics import normal
from gp_ensembles.papers.fusion.base import FusionModel, PredictiveComponents
from gp_ensembles.papers.fusion.experts import ExpertPredictions, PredictiveExpert, predict_expert
from gp_ensembles.papers.fusion.fitted import FittedFusion
from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.fusion.models import BHS, PBHS, MoGPE

_FLOOR = 1e-10  # least variance of a component without noise, in variances of the targets
_DRAWS = 64  # draws whose bases are held in memory at once


class JointPredictions(NamedTuple):
    r"""Joint normal predictions of K experts at q points: means and covariances of the function, noise variances.

    Shapes: (\*batch, K, q), (\*batch, K, q, q) and (\*batch, K, q).
    """

    mean: Tensor
    covariance: Tensor
    noise: Tensor


@final
class FusedModel(MixtureModel):
    r"""A fusion and its experts as one BoTorch model of one output, differentiable in the inputs.

    The posterior at a point is the predictive mixture over the draws of the parameters. At several points jointly:

    - a linear pool (BHS, MoGPE) chooses an expert at each point by the weights there, independently given the draw, and
      an expert's predictions of two points are as correlated as its own; the posterior is the one normal distribution
      with the mean and covariance of that: with q > 1 marginals are normal, not the mixture that q = 1 has;
    - a log-linear pool (P-BHS) is normal given the draw: its marginals are exact, its correlation is that of the
      experts' average with shares :math:`s_k(x) \propto w_k(x) \tau_k(x)`, an approximation;
    - models that learn their experts (MoGPE, PoGPE, HetGP) have no separate noise: points are independent.

    Further data and fantasies are learned by Bayes' rule where the joint distribution allows: the draws are
    weighed by how well they predicted the rows, and a log-linear pool's normal distribution is conditioned on them, so
    that the mean after a fantasy is on average the mean before. In a linear pool every expert learns every row, one
    after another, though only the expert that was chosen predicted it: the mean after a fantasy differs on average, by
    some hundredths of a standard deviation where the experts agree and up to a fifth where they do not (measured on
    twelve cases), by which knowledge gradients are biased. Weights of experts as functions stay as they were fitted;
    after many rows, fit again.

    Args:
        fitted: The fitted fusion.
        experts: The experts whose predictions it stacks (BHS, P-BHS), each as for
            :func:`~gp_ensembles.papers.fusion.experts.predict_expert`; ``None`` for those from which the weights were
            learned, and for models that learn their own. Several points and more rows need experts that predict
            jointly: BoTorch models, or GPyTorch's.
        input_transform: The transform by which the fusion's inputs came about, if any; it is applied to others.
        outcome_transform: The transform by which its targets came about, if any; it is undone in predictions.

    Raises:
        ValueError: If the number of experts is not the fusion's, or the fusion knows their forecasts only.

    Example:
        >>> from gp_ensembles.papers.fusion import HetGP, LaplaceApproximation, fit_fusion
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> fusion = HetGP(X, (2 * X).sin().squeeze(-1), prior, prior)
        >>> model = FusedModel(fit_fusion(fusion, LaplaceApproximation(num_draws=50)))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
    """

    theta: Tensor
    draw_log_weights: Tensor

    def __init__(
        self,
        fitted: FittedFusion,
        experts: Sequence[object] | None = None,
        *,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> None:
        experts = _predictors(fitted.model, experts)
        X, Y = fitted.model.X, fitted.model.y.unsqueeze(-1)
        data = Observations(X, Y).untransformed(input_transform, outcome_transform)
        super().__init__(data, input_transform, outcome_transform)
        self.fusion: FusionModel = fitted.model
        self.register_buffer("theta", fitted.theta.detach())
        self.register_buffer("draw_log_weights", fitted.log_weights.detach())
        # Modules, and pairs of them, are submodules: they are copied, move and change modes with the model.
        parts = {str(k): nn.ModuleList(each) if isinstance(each, tuple) else each for k, each in enumerate(experts)}
        self._modules_of_experts = nn.ModuleDict({k: each for k, each in parts.items() if isinstance(each, nn.Module)})
        self._other_experts = {k: each for k, each in parts.items() if not isinstance(each, nn.Module)}
        self._order = tuple(parts)
        if not experts:
            self.why_no_known_noise = (
                "a fusion that learns its experts has learned their noise: use observation_noise=True, and "
                "leave noise= out"
            )
        self.eval()

    @property
    def experts(self) -> tuple[object, ...]:
        """The experts as they were given."""
        parts = {**self._other_experts, **dict(self._modules_of_experts.items())}
        ordered = [parts[number] for number in self._order]
        return tuple(tuple(each) if isinstance(each, nn.ModuleList) else each for each in ordered)

    @property
    def num_experts(self) -> int:
        """Number of components at one point: the experts of BHS, the draws of a log-linear pool, else both together."""
        if isinstance(self.fusion, BHS):
            return self.fusion.num_experts
        return self.theta.shape[0] * (self.fusion.num_experts if isinstance(self.fusion, MoGPE) else 1)

    @property
    def likelihood(self) -> GaussianLikelihood:
        """A likelihood with the mean noise at the rows of data; in transformed outcomes."""
        X, plain = self.rows().X.unsqueeze(-2), self._sibling()
        plain._fantasies = None
        with torch.no_grad():
            noise, function = (plain.predict(X, choice).variance.mean() for choice in (True, False))
        return normal_likelihood(noise - function if self.experts else noise, None)

    def predict(self, X: Tensor, noise: bool | Tensor) -> MixturePosterior:
        r"""The fusion at transformed points (\*t, q, D), with the experts' noise or a variance to add (..., q or 1, 1).

        In a product of powers the experts' noise also changes their weights, and so the mean. Models that learn their
        experts always include their noise.

        Raises:
            UnsupportedError: If noise variances are given to a model that learns its experts, or an
                expert predicts one point at a time only and is asked for more.
        """
        rows = self._fantasies
        if self.why_no_known_noise is not None and isinstance(noise, Tensor):
            raise UnsupportedError(self.why_no_known_noise)
        if not self.experts:
            places = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
            return self._pooled(X.expand(*places, *X.shape[-2:]), None, self._weighed(None))
        if rows is None or not rows.X.shape[-2]:
            found, draws = self._jointly(X), self.draw_log_weights
            places = torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
            found = JointPredictions(*(
                part.expand(*places, *part.shape[X.ndim - 2 :]) for part in found
            ))  # fmt: skip
        else:
            both = joined(rows.X, X)
            if not isinstance(self.fusion, BHS):
                return self._conditioned(both, rows, noise)
            known = None if rows.noise is None else rows.noise.squeeze(-1)
            found, predicted = _learn(self._jointly(both), rows.Y.squeeze(-1), known)
            draws = self._weighed(predicted)
            places = torch.broadcast_shapes(found.mean.shape[:-2], found.covariance.shape[:-3])
        if noise is not True:
            found = self._silent(found)
        posterior = self._pooled(X.expand(*places, *X.shape[-2:]), found, draws)
        return posterior if isinstance(noise, bool) else posterior.with_noise(noise.mT.unsqueeze(-3))

    def learned(self, rows: Observations, data: Observations) -> Self:
        """The fusion after more rows, (n, D) and (n, 1): draws weighed, experts conditioned."""
        other = self.fantasies(rows)
        other.data, other._is_fantasy = data, False
        return other

    def _jointly(self, X: Tensor) -> JointPredictions:
        r"""The experts at points (\*t, q, D); those that know no joint distribution at single points only."""
        if X.shape[-2] > 1:
            return _joined([predict_jointly(expert, X) for expert in self.experts])
        flat = X.reshape(-1, X.shape[-1])
        found = [predict_expert(expert, flat) for expert in self.experts]
        columns = ([part.expand_as(one.mean).reshape(*X.shape[:-2], 1, 1) for part in one] for one in found)
        return _joined([JointPredictions(mean, variance.unsqueeze(-1), noise) for mean, variance, noise in columns])

    def _silent(self, found: JointPredictions) -> JointPredictions:
        """Predictions of the function, their variances no less than the floor."""
        floor = _FLOOR * float(self.fusion.y.var())
        own = found.covariance.diagonal(dim1=-2, dim2=-1)
        lifted = found.covariance + torch.diag_embed((floor - own).clamp_min(0.0))
        return JointPredictions(found.mean, lifted, torch.zeros_like(found.noise))

    def _conditioned(self, both: Tensor, rows: Observations, noise: bool | Tensor) -> MixturePosterior:
        """A log-linear pool at the last points, given rows at the first: every draw's joint normal conditioned."""
        q = rows.X.shape[-2]
        found = self._jointly(both)
        shown = found if noise is True else self._silent(found)
        # Of targets: known noise is added to the pool of the function, as in predictions.
        own = found.noise[..., :q] if rows.noise is None else 0.0 * found.noise[..., :q]
        shown = shown._replace(noise=torch.cat([own, shown.noise[..., q:]], dim=-1))
        pooled = self._pooled(both, shown, self.draw_log_weights)
        added = rows.Y.new_zeros(1, 1, 1) if rows.noise is None else rows.noise.mT.unsqueeze(-3)
        posterior = pooled.conditioned(rows.Y, added)
        return posterior if isinstance(noise, bool) else posterior.with_noise(noise.mT.unsqueeze(-3))

    def _parts(self, X: Tensor, predictions: ExpertPredictions | None) -> tuple[Tensor, PredictiveComponents]:
        """Log weights of the experts (S, K, N) and components at points (N, D), for every draw."""
        weights, found = [], []
        for theta in self.theta.split(_DRAWS):
            values = self.fusion.values_at(theta, X)
            log_weights = self.fusion.weigh(values)
            weights.append(log_weights)
            found.append(self.fusion.combine(X, values, log_weights, predictions))
        _, mean, variance = found[0]
        if mean.ndim > 2:
            mean, variance = (torch.cat(parts) for parts in ([p.mean for p in found], [p.variance for p in found]))
        return torch.cat(weights), PredictiveComponents(torch.cat([p.log_weights for p in found]), mean, variance)

    def _weighed(self, predicted: ExpertPredictions | None) -> Tensor:
        """Log weights of the draws (*batch, S) after the fantasies, from the experts' predictions of each."""
        rows = self._fantasies
        if rows is None or not rows.X.shape[-2]:
            return self.draw_log_weights
        shape = torch.broadcast_shapes(rows.X.shape[:-1], rows.Y.shape[:-1])
        if predicted is not None:
            shape = torch.broadcast_shapes(shape, (*predicted.mean.shape[:-2], shape[-1]))
        X = rows.X.expand(*shape, rows.X.shape[-1]).reshape(-1, rows.X.shape[-1])
        _, components = self._parts(X, None if predicted is None else _flat(predicted, shape))
        y = rows.Y.squeeze(-1).expand(shape).reshape(-1)
        log_weights, mean, variance = components
        each = (log_weights + normal.log_prob(y, mean, variance)).logsumexp(-2)
        density = each.unflatten(-1, shape).sum(-1)  # (S, *batch)
        weighed: Tensor = (self.draw_log_weights + density.movedim(0, -1)).log_softmax(-1)
        return weighed

    def _pooled(self, X: Tensor, found: JointPredictions | None, draws: Tensor) -> MixturePosterior:
        """The fusion at points (*batch, q, D), given what the experts say there and log weights of the draws."""
        shape, num_draws = X.shape[:-1], self.theta.shape[0]
        predictions = None
        if found is not None:
            predictions = _flat((found.mean, found.covariance.diagonal(dim1=-2, dim2=-1), found.noise), shape)
        log_weights, components = self._parts(X.reshape(-1, X.shape[-1]), predictions)

        def apart(values: Tensor) -> Tensor:  # (..., S, K, N) to (*batch, S, K, q)
            wide: Tensor = (values if values.ndim == 3 else values.unsqueeze(0)).unflatten(-1, shape)
            return wide.movedim((0, 1), (-3, -2))

        weights, mean, variance = (apart(part) for part in components)
        if mean.shape[-2] == 1:
            mean, variance = mean.squeeze(-2), variance.squeeze(-2)
            if mean.shape[-2] < num_draws:  # one expert of BHS, the same for all draws
                draws = draws.logsumexp(-1, keepdim=True)
            joint = torch.diag_embed(variance)
            if found is not None and shape[-1] > 1:
                own = found.covariance + torch.diag_embed(found.noise)
                shares = (apart(log_weights) - own.diagonal(dim1=-2, dim2=-1).log().unsqueeze(-3)).softmax(-2)
                joint = _pool_covariance(shares, own.unsqueeze(-4), variance)
            return MixturePosterior(draws, mean.unsqueeze(-1), joint.unsqueeze(-3))
        if shape[-1] > 1:
            own = torch.diag_embed(variance)
            if found is not None:
                own = (found.covariance + torch.diag_embed(found.noise)).unsqueeze(-4)
            return _linear_pool(draws, weights, mean, own)
        joint_weights = draws.unsqueeze(-1) + weights.squeeze(-1)  # (*batch, S, K)
        if mean.shape[-3] < num_draws or num_draws == 1:  # draws share the components
            joint_weights, mean, variance = joint_weights.logsumexp(-2), mean.squeeze(-3), variance.squeeze(-3)
        else:
            joint_weights, mean, variance = joint_weights.flatten(-2), mean.flatten(-3, -2), variance.flatten(-3, -2)
        return MixturePosterior(joint_weights, mean.unsqueeze(-1), variance.unsqueeze(-1).unsqueeze(-1))

    def move_others(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move the fusion, and experts that are not modules, by a function of every tensor."""
        self.fusion, self._other_experts = _moved(self.fusion, fn), _moved(self._other_experts, fn)


@singledispatch
def predict_jointly(expert: object, X: Tensor) -> JointPredictions:
    r"""Joint predictions of one expert at points (\*batch, q, D), with gradients; K is one."""
    raise UnsupportedError(
        f"a {type(expert).__name__} predicts one point at a time: use q = 1 and learn no rows, or use a BoTorch "
        f"model as expert (an EnsembleModel in place of an OnlineEnsemble)"
    )


@predict_jointly.register
def _(expert: Model, X: Tensor) -> JointPredictions:
    posterior, target = expert.posterior(X), expert.posterior(X, observation_noise=True)
    mean, covariance, variance = _joint_moments(posterior)
    if mean.shape != X.shape[:-1]:
        raise ValueError(f"an expert must predict one output at each point, but its mean is {tuple(mean.shape)}")
    return _one(mean, covariance, _joint_moments(target)[2] - variance)


@predict_jointly.register
def _(expert: ExactGP, X: Tensor) -> JointPredictions:
    latent = expert(X)
    return _one(latent.mean, latent.covariance_matrix, expert.likelihood(latent, [X]).variance - latent.variance)


@predict_jointly.register
def _(expert: tuple, X: Tensor) -> JointPredictions:  # type: ignore[type-arg]
    model, likelihood = expert
    latent = model(X)
    if isinstance(latent, MultitaskMultivariateNormal):
        raise ValueError("an expert must predict one normal output")
    return _one(latent.mean, latent.covariance_matrix, likelihood(latent, [X]).variance - latent.variance)


def _joined(parts: list[JointPredictions]) -> JointPredictions:
    """Experts side by side."""
    mean, covariance, noise = (
        torch.cat(columns, dim=axis) for columns, axis in zip(zip(*parts, strict=True), (-2, -3, -2), strict=True)
    )
    return JointPredictions(mean, covariance, noise)


def _learn(before: JointPredictions, Y: Tensor, noise: Tensor | None) -> tuple[JointPredictions, ExpertPredictions]:
    r"""Experts at the last points after learning targets (\*y, q) at the first q, and their predictions of these."""
    q = Y.shape[-1]
    own = before.noise[..., :q] if noise is None else noise.unsqueeze(-2).expand_as(before.noise[..., :q])
    seen = before.covariance[..., :q, :q] + torch.diag_embed(own)
    factor = covariance_factors(seen)
    gain = torch.linalg.solve_triangular(factor, before.covariance[..., :q, q:], upper=False)
    targets = Y.unsqueeze(-2)  # (*y, 1, q)
    residual = (targets - before.mean[..., :q]).unsqueeze(-1)
    wide = factor.expand(*torch.broadcast_shapes(factor.shape[:-2], residual.shape[:-2]), q, q)
    white = torch.linalg.solve_triangular(wide, residual.expand(*wide.shape[:-1], 1), upper=False)
    mean = before.mean[..., q:] + (gain.mT @ white).squeeze(-1)
    spread = wide.diagonal(dim1=-2, dim2=-1)
    mean_before = targets - spread * white.squeeze(-1)
    predicted = ExpertPredictions(mean_before, spread.square(), torch.zeros_like(mean_before))
    after = JointPredictions(mean, before.covariance[..., q:, q:] - gain.mT @ gain, before.noise[..., q:])
    return after, predicted


def _pool_covariance(shares: Tensor, covariance: Tensor, variance: Tensor) -> Tensor:
    r"""Covariance of a log-linear pool at q points: its own variances, the correlation of :math:`\sum_k s_k(x) f_k(x)`.

    Shapes: ``shares`` (..., K, q), ``covariance`` (..., K, q, q), ``variance`` (..., q).
    """
    average = (shares.unsqueeze(-1) * shares.unsqueeze(-2) * covariance).sum(-3)
    own = average.diagonal(dim1=-2, dim2=-1)
    ratio = (variance / own).sqrt()
    pooled = ratio.unsqueeze(-1) * ratio.unsqueeze(-2) * average
    return pooled + torch.diag_embed(variance - pooled.diagonal(dim1=-2, dim2=-1))


def _linear_pool(draw_log_weights: Tensor, log_weights: Tensor, mean: Tensor, covariance: Tensor) -> MixturePosterior:
    r"""The normal distribution with the mean and covariance of q points of a pool, each of which takes its own expert.

    .. math:: s \sim v, \qquad z_i \sim w_s(x_i) \text{ independently}, \qquad f(x_i) = f_{s, z_i}(x_i), \qquad
              f_{s,k} \sim N(\mu_{s,k}, K_{s,k})

    Shapes: ``draw_log_weights`` (\*batch, S), ``log_weights`` (\*batch, S, K, q), ``mean`` (\*batch, S or 1, K, q),
    ``covariance`` (\*batch, S or 1, K, q, q).
    """
    draws, weights = draw_log_weights.softmax(-1).unsqueeze(-1), log_weights.exp()
    pooled = (weights * mean).sum(-2)  # under every draw, (*batch, S, q)
    center = (draws * pooled).sum(-2, keepdim=True)  # (*batch, 1, q)
    own = covariance.diagonal(dim1=-2, dim2=-1) + (mean - center.unsqueeze(-2)).square()
    variance = (draws * (weights * own).sum(-2)).sum(-2)
    shared = (weights.unsqueeze(-1) * weights.unsqueeze(-2) * covariance).sum(-3)  # both choose one expert
    deviation = pooled - center
    joint = (draws.unsqueeze(-1) * shared).sum(-3) + (draws * deviation).mT @ deviation
    joint = torch.diagonal_scatter(joint, variance, dim1=-2, dim2=-1)
    return MixturePosterior(joint.new_zeros(1), center.unsqueeze(-1), joint[..., None, None, :, :])


def _flat(parts: Sequence[Tensor], shape: Sequence[int]) -> ExpertPredictions:
    """Means, variances and noises (*batch, K, q) of experts as a table (K, N) of all points."""
    return ExpertPredictions(*(
        part.expand(*shape[:-1], part.shape[-2], shape[-1]).movedim(-2, 0).flatten(1) for part in parts
    ))  # fmt: skip


def _one(mean: Tensor, covariance: Tensor, noise: Tensor) -> JointPredictions:
    # The noise is a difference: below zero by round-off where there is none.
    return JointPredictions(mean.unsqueeze(-2), covariance.unsqueeze(-3), noise.clamp_min(0.0).unsqueeze(-2))


def _joint_moments(posterior: object) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (*batch, q), covariance (*batch, q, q) and variance (*batch, q) of a posterior of one output."""
    if isinstance(posterior, GaussianMixturePosterior):
        mean, covariance = posterior.mixture_mean.squeeze(-1), posterior.mixture_covariance_matrix
    elif isinstance(posterior, GPyTorchPosterior):
        mean, covariance = posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix
    elif isinstance(posterior, MixturePosterior):
        mean, covariance = posterior.mean.squeeze(-1), posterior.covariance.squeeze(-3)
    else:
        raise UnsupportedError(
            f"an expert whose posterior is a {type(posterior).__name__} has no covariance of several points; ask for "
            f"q = 1 and learn no rows"
        )
    return mean, covariance, covariance.diagonal(dim1=-2, dim2=-1)


def _predictors(model: FusionModel, experts: Sequence[object] | None) -> Sequence[object]:
    """The experts that predict new inputs; none for models that learn theirs."""
    name, wanted = type(model).__name__, 0
    known: Sequence[object] = ()
    if isinstance(model, BHS | PBHS):
        wanted, known = model.num_experts, model.experts
        if experts is None and not known:
            raise ValueError(f"the weights of this {name} were learned from a table of predictions: give its experts")
    experts = known if experts is None else experts
    if len(experts) != wanted:
        raise ValueError(f"a fitted {name} takes {wanted} experts here, got {len(experts)}")
    forecasts = [k for k, expert in enumerate(experts) if isinstance(expert, ExpertPredictions)]
    if forecasts:
        raise ValueError(f"experts {forecasts} are forecasts of other rows: give experts that predict new inputs")
    return experts


def _moved(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """A copy of an object, or of a container, with a function of every floating point tensor inside."""
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, nn.Module):
        return copy.deepcopy(value)._apply(fn)
    if isinstance(value, tuple | list):
        parts = [_moved(part, fn) for part in value]
        return type(value)(parts) if type(value) in (tuple, list) else type(value)(*parts)  # or a named tuple
    if isinstance(value, dict):
        return {name: _moved(part, fn) for name, part in value.items()}
    if isinstance(value, FusionModel | FourierPrior | PredictiveExpert):
        other = copy.copy(value)
        other.__dict__.update({name: _moved(part, fn) for name, part in vars(value).items()})
        return other
    return value
