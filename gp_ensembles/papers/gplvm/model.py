"""The ensemble of latent variable models and its state."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from gp_ensembles.engine.access_lock import uninterrupted
from gp_ensembles.engine.state import check_shapes
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.fourier import fourier_features
from gp_ensembles.meta_learners import BayesianModelAveraging, MetaLearner
from gp_ensembles.meta_learners.base import MetaState
from gp_ensembles.numerics.display import block_text, counted
from gp_ensembles.papers.gplvm.embed import (
    LatentModel,
    RowEmbedding,
    WeightPosterior,
    embedding_derivatives,
    learn_rows,
    likeliest,
    online_step,
    predict_rows,
    row_embedding,
    search_block,
    weight_prior,
)
from gp_ensembles.papers.gplvm.first_rows import filled_from_nearest, fit_batch, principal_components
from gp_ensembles.papers.gplvm.neighbors import Replaced, RowStore, keep_rows, nearest_rows, restore_rows, row_store
from gp_ensembles.papers.gplvm.records import (
    Embeddings,
    LatentSettings,
    Reconstruction,
    check_features,
    check_latent,
    check_rows,
    check_settings,
    check_start,
)

# In units of the mean square: noise of fits so perfect that they tell nothing of errors of further rows, and of those.
_PERFECT, _NOISE = 1e-5, 1e-3
_ROWS = 256  # rows embedded at once where nothing is learned
_PARTS = 512  # blocks whose reports are put together
_ROW_AXES = (0, 0, 1, 0, 1, 1)  # of the fields of Embeddings


@final
class IEGPLVM(nn.Module):
    r"""Online dimensionality reduction with an ensemble of Gaussian-process latent variable models.

    Every expert models a row of D entries as :math:`y = \Theta^\top \phi_m(x) + \varepsilon` at a latent
    :math:`x \sim N(0, \sigma_x^2 I)`, with random Fourier features of its own kernel (Lu et al. 2022, section 6 and
    algorithm 2). :meth:`start` embeds the first rows and learns two variances per expert; :meth:`update` embeds each
    further row, searching from where its nearest neighbors lie, then learns it; the rows' densities weigh the experts.
    Rows are centered by the means of the first ones and divided by one number, their root mean square.

    The rule that weighs makes the variant: Bayesian averaging or Markov switching; ``random_walk_ratio`` makes the
    weights of the experts walk. In a row with gaps an expert fills in what it predicts, once the row is embedded from
    the rest, and learns the row with the variance of that prediction as noise.

    The state is in buffers, so that ``state_dict`` loads into an object built the same way.

    Args:
        features: Features of M experts in d latent inputs, of kernels of one family without summands.
        num_outputs: Number of entries D of a row.
        meta_learner: How experts are weighed; Bayesian averaging if ``None``.
        settings: What all experts share; ``LatentSettings()`` if ``None``.

    Raises:
        ValueError: If the features have no single batch axis or are those of a sum, there are fewer entries than latent
            inputs, or a setting is out of range.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> source = torch.Generator().manual_seed(0)
        >>> kernel = RBFKernel(batch_shape=torch.Size([2])).double()
        >>> features = RandomFourierFeatures.from_kernel(kernel, 1, 20, generator=source)
        >>> t = torch.rand(40, 1, generator=source, dtype=torch.float64)
        >>> Y = torch.cat([t, (3 * t).sin(), (2 * t).cos()], dim=-1)
        >>> model = IEGPLVM(features, num_outputs=3)
        >>> first = model.start(Y[:20])
        >>> seen = model.update(Y[20:])
        >>> back = model.inverse_transform(seen.embedding, seen.expert)
        >>> seen.embedding.shape, bool((back.mean - Y[20:]).abs().max() < 0.05)
        (torch.Size([20, 1]), True)
    """

    settings: LatentSettings
    num_outputs: int
    num_experts: int
    num_latent: int
    omega: Tensor
    offset: Tensor
    scale: Tensor
    prior_variance: Tensor
    noise: Tensor
    factor: Tensor
    mean: Tensor
    log_joint: Tensor

    def __init__(
        self,
        features: RandomFourierFeatures,
        num_outputs: int,
        meta_learner: MetaLearner | None = None,
        settings: LatentSettings | None = None,
    ) -> None:
        super().__init__()
        settings = LatentSettings() if settings is None else settings
        check_settings(settings)
        check_features(features, num_outputs)
        self.settings, self.num_outputs = settings, num_outputs
        self.num_experts, self.num_latent = features.batch_shape[0], features.num_inputs
        self.meta_learner: MetaLearner = BayesianModelAveraging() if meta_learner is None else meta_learner
        self.register_buffer("omega", features.frequencies().detach().clone())
        one = self.omega.new_ones(self.num_experts)
        prior = weight_prior(one, features.num_features, num_outputs)
        self.register_buffer("offset", self.omega.new_zeros(num_outputs))
        self.register_buffer("scale", self.omega.new_ones(()))
        self.register_buffer("prior_variance", one)
        self.register_buffer("noise", one.clone())
        self.register_buffer("factor", prior.factor)
        self.register_buffer("mean", prior.mean)
        self.register_buffer("log_joint", torch.zeros_like(one))
        store = row_store(self.omega, settings.capacity, num_outputs, (self.num_experts, self.num_latent))
        for name, value in zip(RowStore._fields, store, strict=True):
            self.register_buffer(f"store_{name}", value)
        for name, value in zip(MetaState._fields, self.meta_learner.init(self.num_experts, self.omega), strict=True):
            self.register_buffer(f"meta_{name}", value.detach().clone())
        self.register_load_state_dict_pre_hook(_before_loading)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        counts = (self.num_outputs, "output"), (self.num_latent, "latent input"), (self.num_experts, "expert")
        lines = [f"rule {self.meta_learner!r}", f"{int(self.store.num_seen)} rows seen"]
        return block_text(f"IEGPLVM of {counted(*counts)}", lines)

    @property
    def store(self) -> RowStore:
        """The rows kept, scaled, and their embeddings; by reference."""
        return RowStore(*(self.get_buffer(f"store_{name}") for name in RowStore._fields))

    @property
    def meta(self) -> MetaState:
        """State of the weight rule; by reference."""
        return MetaState(*(self.get_buffer(f"meta_{name}") for name in MetaState._fields))

    @property
    def log_weights(self) -> Tensor:
        """Log weights for the next row, shape (M,)."""
        return self.meta_learner.log_weights(self.meta)

    @property
    def best_expert(self) -> int:
        """The expert with the largest log joint density of all rows so far and of their latent inputs.

        Its latent space serves best where all rows must lie in one.

        Raises:
            ValueError: If the model has not been started.
        """
        self._check_started()
        return int(self.log_joint.argmax())

    @torch.no_grad()
    def start(self, Y: Tensor) -> Embeddings:
        """Embed the first rows and learn each expert's variances from them; anything learned before is forgotten.

        Args:
            Y: Rows, shape (N, D), with N > d; NaN where an entry was not observed, which is filled from the nearest
                row that has it.

        Returns:
            Their embeddings. Each expert has embedded them together, so all are reported from the latent space of one,
            that with the largest weight times posterior density. The weights do not change.

        Raises:
            TypeError: If the dtype is not the model's.
            ValueError: If the shape is wrong, an entry is not finite, there are too few rows, a column has no
                value in them, or fewer than d directions vary.
            NumericalError: If an expert's posterior is not positive definite.
        """
        check_rows(Y, self.num_outputs, self.omega)
        check_start(Y, self.num_latent)
        omega, spread = self.omega, self.settings.latent_variance
        whole = filled_from_nearest(Y.contiguous())
        scores, offset = principal_components(whole, self.num_latent)
        centered = whole - offset
        scale = centered.square().mean().sqrt()
        if not bool(scale.isfinite() & (scale.square() > 0)):
            raise ValueError(f"the rows' root mean square is {float(scale)} in {Y.dtype}; rescale them")
        rows = centered / scale
        fit = fit_batch(omega, scores * spread**0.5, rows, spread, max_iterations=self.settings.batch_iterations)
        fit = fit._replace(noise=torch.where(fit.noise < _PERFECT, _NOISE, fit.noise))
        prior = weight_prior(fit.noise / fit.prior_variance, 2 * omega.shape[-2], self.num_outputs)
        posterior = learn_rows(prior, fourier_features(omega, fit.embedding), rows)
        first = LatentModel(omega, posterior, fit.noise, spread)
        given = (Y.contiguous() - offset) / scale
        value, _, _ = embedding_derivatives(first, fit.embedding, given)
        found = row_embedding(first, fit.embedding, value, fit.converged.unsqueeze(-1).expand(-1, len(Y)))
        meta = self.meta_learner.init(self.num_experts, self.omega)
        log_weights = self.meta_learner.log_weights(meta)
        best = (log_weights + fit.objective).argmax().expand(len(Y))

        learned = {"offset": offset, "scale": scale, "prior_variance": fit.prior_variance, "noise": fit.noise}
        with uninterrupted():
            for name, value in learned.items():
                self.get_buffer(name).copy_(value)
            self.store.num_kept.zero_()
            self.store.num_seen.zero_()
            keep_rows(self.store, rows, fit.embedding.movedim(0, 1), seed=self.settings.seed)
            self._commit(posterior, meta, fit.objective)
        return _reported(found, given, log_weights.unsqueeze(-1).expand(-1, len(Y)), best, scale)

    @torch.no_grad()
    def update(self, Y: Tensor, block_size: int = 1) -> Embeddings:
        """Embed rows in the order of time and learn them; a rejected call leaves everything as it was.

        Args:
            Y: Rows, shape (N, D); NaN where an entry was not observed.
            block_size: Rows embedded at once against the same posterior and neighbors, then learned. One is the
                algorithm; more is faster, and each row knows less by the rows of its block before it. With a random
                walk the steps of a block come before it.

        Raises:
            TypeError: If the dtype is not the model's.
            ValueError: If the model has not been started, the shape is wrong, an entry is infinite, or a row has no
                observed entry.
            NumericalError: If a density is not a number or a posterior not positive definite.
        """
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        rows, model, meta, log_joint = self._scaled(Y), self._model, self.meta, self.log_joint
        undo = list[Replaced]()
        whole, parts = list[Embeddings](), list[Embeddings]()
        try:
            for first in range(0, len(rows), block_size):
                block = rows[first : first + block_size]
                posterior, meta, found, log_weights, expert, filled = online_step(
                    model, self.meta_learner, meta, self._near(block), block, first,
                    max_iterations=self.settings.row_iterations,
                )  # fmt: skip
                model = model._replace(posterior=posterior)
                log_joint = log_joint + (found.log_prob + found.log_latent).sum(-1)
                if len(parts) == _PARTS:  # thousands of small tensors cost more than what is in them
                    whole, parts = [*whole, _joined(parts)], []
                parts.append(_reported(found, block, log_weights, expert, self.scale))
                with uninterrupted():
                    undo.append(keep_rows(self.store, filled, found.point.movedim(0, 1), seed=self.settings.seed))
            with uninterrupted():
                self._commit(model.posterior, meta, log_joint)
                undo.clear()
        except BaseException:
            with uninterrupted():
                for replaced in reversed(undo):
                    restore_rows(self.store, replaced)
            raise
        return _joined([*whole, *parts]) if parts else self.transform(Y)

    @torch.no_grad()
    def transform(self, Y: Tensor) -> Embeddings:
        """Embed rows, each as if it came next, learning nothing; arguments and errors as in :meth:`update`."""
        rows, model, log_weights = self._scaled(Y), self._model.ahead(), self.log_weights.unsqueeze(-1)
        parts = []
        for first in range(0, max(len(rows), 1), _ROWS):
            block = rows[first : first + _ROWS]
            found = search_block(model, self._near(block), block, first, max_iterations=self.settings.row_iterations)
            weights = log_weights.expand(-1, len(block))
            parts.append(_reported(found, block, weights, likeliest(found, weights), self.scale))
        return _joined(parts)

    @torch.no_grad()
    def inverse_transform(self, X: Tensor, expert: Tensor) -> Reconstruction:
        """Rows at latent inputs, as they would come next; variances include the noise.

        All entries share one covariance, which every row narrows, so the variance of an entry that has long been
        missing is too small.

        Args:
            X: Latent inputs, shape (N, d).
            expert: Whose latent space each lies in, shape (N,).

        Raises:
            TypeError: If X is not of the model's dtype, or ``expert`` not a tensor of integers.
            ValueError: If the model has not been started, a shape is wrong, X is not finite, or there is no such
                expert.
        """
        self._check_started()
        check_latent(X, expert, self.num_latent, self.num_experts, self.omega)
        mean = X.new_empty(len(X), self.num_outputs)
        variance = X.new_empty(len(X), 1)
        omega, posterior, noise, *_ = self._model.ahead()
        for number in expert.unique().tolist():
            own, only = expert == number, slice(number, number + 1)
            Phi = fourier_features(omega[only], X[own].unsqueeze(0))
            means, variances = predict_rows(WeightPosterior(*(part[only] for part in posterior)), Phi, noise[only])
            mean[own], variance[own] = means[0], variances[0].unsqueeze(-1)
        return Reconstruction(mean * self.scale + self.offset, (variance * self.scale.square()).expand_as(mean))

    def impute(self, Y: Tensor) -> Tensor:
        """The rows with their gaps filled by what is predicted from the rest; arguments as in :meth:`transform`."""
        found = self.transform(Y)
        return torch.where(torch.isnan(Y), self.inverse_transform(found.embedding, found.expert).mean, Y)

    def _check_started(self) -> None:
        if int(self.store.num_kept) == 0:
            raise ValueError("the model has not been started; call start with the first rows")

    def _scaled(self, Y: Tensor) -> Tensor:
        self._check_started()
        check_rows(Y, self.num_outputs, self.omega)
        return (Y.contiguous() - self.offset) / self.scale  # the same round-off for any memory layout

    def _near(self, rows: Tensor) -> Tensor:
        """Where the searches for rows (B, D) start, shape (M, B, K, d): at their nearest neighbors."""
        return self.store.embedding[nearest_rows(self.store, rows, self.settings.num_starts)].movedim(2, 0)

    @property
    def _model(self) -> LatentModel:
        ratio = self.settings.random_walk_ratio
        step = ratio * self.prior_variance / self.noise if ratio else None
        posterior = WeightPosterior(self.factor, self.mean)
        return LatentModel(self.omega, posterior, self.noise, self.settings.latent_variance, step)

    def _commit(self, posterior: WeightPosterior, meta: MetaState, log_joint: Tensor) -> None:
        own = (*self.meta, self.factor, self.mean, self.log_joint)
        for old, new in zip(own, (*meta, *posterior, log_joint), strict=True):
            old.copy_(new)


def _joined(parts: Sequence[Embeddings]) -> Embeddings:
    """Embeddings of consecutive blocks as one."""
    fields = zip(zip(*parts, strict=True), _ROW_AXES, strict=True)
    return Embeddings(*(torch.cat(field, dim=axis) for field, axis in fields))


def _reported(found: RowEmbedding, rows: Tensor, log_weights: Tensor, expert: Tensor, scale: Tensor) -> Embeddings:
    """Embeddings of scaled rows (B, D), each from the space of its expert, with densities in units of the data."""
    numbers = torch.arange(len(rows), device=rows.device)
    count = (~torch.isnan(rows)).sum(-1)
    log_prob = (log_weights + found.log_prob).logsumexp(0) - count * scale.log()
    return Embeddings(found.point[expert, numbers], expert, found.point, log_prob, log_weights.clone(), found.converged)


def _before_loading(model: IEGPLVM, state_dict: Mapping[str, Tensor], prefix: str, *_: object) -> None:
    check_shapes(model, state_dict, prefix, "model")
