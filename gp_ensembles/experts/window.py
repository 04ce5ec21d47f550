"""Exact Gaussian process of the last rows, with any kernel and mean, and scheduled refits of its hyperparameters."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import torch
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor, nn

from gp_ensembles.experts.base import BoundExpert, Expert, Plans, StagedRunner, Traits, Upkeep
from gp_ensembles.experts.empirical_bayes import LBFGS, get_vectors, gradient_ascent, set_vectors_, trainable
from gp_ensembles.experts.gaussian import check_single_output, checked_likelihood
from gp_ensembles.experts.linear_rows import passed_columns
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.batch import take_experts
from gp_ensembles.features.covariance import bind_covariance, bind_mean, exact_log_evidence
from gp_ensembles.features.linear import InputFeatures
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.states import (
    FilterState,
    Predictions,
    StepPredictions,
    WindowState,
    concatenate_steps,
    overwrite_,
)
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.filters.update import predict, update_block
from gp_ensembles.filters.window import (
    RowWindow,
    Window,
    WindowChange,
    change_,
    joint_window,
    num_used,
    refactored,
    rows_until_refit,
    stage_window,
    window_state,
)
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.exact_gp import log_density
from gp_ensembles.numerics.gpytorch_types import GPyTorchModule, Kernel, Mean

M = TypeVar("M", bound=nn.Module | GPyTorchModule)
# Few steps at a time: more steps, or steps on the last rows only, overfit. But with twice as many rows as before, the
# search runs to convergence; otherwise hyperparameters of few rows would remain (``benchmarks/README.md``).
_REFIT = LBFGS(max_iterations=3, loss_tolerance=1e-5)
_REFIT_TO_MORE = LBFGS(max_iterations=30, loss_tolerance=1e-5)
_WORTH = 1.0  # nats of evidence that a refit must gain per hyperparameter
_REFIT_PRECISION = 0.5  # of a prior around the previous hyperparameters


@final
@dataclass(frozen=True)
class Refit:
    """Schedule of refits of a window's hyperparameters: three optimizer steps from their last values each.

    Attributes:
        every: Rows between two refits.
        first: Number of rows at the first refit; ``every`` if ``None``.
        num_rows: Maximum number of rows used, evenly spaced over the window.

    Raises:
        ValueError: If a number is not positive.
    """

    every: int
    first: int | None = None
    num_rows: int = 500

    def __post_init__(self) -> None:
        for name in ("every", "first", "num_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} of Refit must be at least 1, got {value}")


def _runner(bound: "BoundWindow", state: WindowState) -> StagedRunner:
    """Runner that appends and drops rows in place; a block with a refit runs on a copy."""

    def run(Phi: Tensor, rows: Rows, has_gaps: bool) -> tuple[Predictions, Callable[[], object]]:
        staged, predictions = bound.stage(state, Phi, rows)
        return predictions, lambda: bound.commit(state, staged, Phi.shape[-2])

    return StagedRunner(run)


def _row(bound: "BoundWindow", state: WindowState, features: FeatureMap) -> RowWindow | None:
    columns = passed_columns(features)
    if columns is None or state.num_used.ndim > 1:
        return None
    return RowWindow(state, bound.window_of(state), columns, bound.window_of if bound.refits else None)


def _upkeep(bound: "BoundWindow", state: WindowState) -> Sequence[Upkeep]:
    window, capacity, used = bound.window_of(state), state.targets.shape[-1], num_used(state)

    def dropped() -> WindowState:
        return refactored(state, window, window.keep) if used > window.keep else state

    found = [Upkeep("drop of its oldest rows", capacity - used, dropped)]
    if bound.refits:
        found.append(Upkeep("refit", rows_until_refit(state), lambda: bound.refitted(state)))
    return found


@final
class BoundWindow(BoundExpert):
    """The view of a window expert for loops; refitted hyperparameters are in the state."""

    plans = Plans(_runner, _row, upkeep=_upkeep)

    def __init__(self, expert: "WindowExpert") -> None:
        super().__init__(expert.features.bind(), expert.features.prior_variance, None)
        self._expert = expert
        self._window = expert.window()
        self.noise: Tensor = self._window.noise
        self._refitted: _Refitted | None = None if expert.refit is None else _Refitted(expert, expert.refit)

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor | Rows) -> tuple[WindowState, StepPredictions]:
        assert isinstance(state, WindowState)
        if self._refitted is None:
            return update_block(state, Phi, y, None, self._window)
        rows = as_rows(y)
        parts, start, num_rows = [], 0, Phi.shape[-2]
        while start < num_rows:
            stop = min(num_rows, start + rows_until_refit(state))
            state, part = update_block(
                state, Phi[..., start:stop, :], rows.part(slice(start, stop)), None, self._refitted.window(state)
            )
            parts.append(part)
            state = self._refitted.counted(state, stop - start)
            start = stop
        return state, concatenate_steps(parts)

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> StepPredictions:
        assert isinstance(state, WindowState)
        return predict(state, Phi, None, self.window_of(state))

    def stage(self, state: WindowState, Phi: Tensor, rows: Rows) -> tuple[WindowChange | WindowState, StepPredictions]:
        """Predict a block, and return the change for :meth:`commit`, or the full new state if a refit is due."""
        if self._refitted is not None and Phi.shape[-2] >= rows_until_refit(state):
            return self.update_block(state, Phi, rows)
        return stage_window(state, Phi, rows, self.window_of(state))

    @property
    def refits(self) -> bool:
        """Whether hyperparameters are refitted."""
        return self._refitted is not None

    @torch.no_grad()
    def refitted(self, state: WindowState) -> WindowState:
        """The state after refitting now instead of at the next scheduled time."""
        assert self._refitted is not None
        return self._refitted.counted(state._replace(due=state.num_rows.clone()), 0)

    def commit(self, state: WindowState, staged: WindowChange | WindowState, num_rows: int) -> None:
        """Apply the result of :meth:`stage` for this many rows, in place."""
        if isinstance(staged, WindowState):
            overwrite_(state, staged)
            return
        change_(state, staged)
        if self._refitted is not None:
            state.num_rows.add_(num_rows)

    def joint_covariance(self, state: FilterState, Phi: Tensor) -> Tensor:
        r"""Joint covariance (\*batch, N, N) of the targets of rows (\*batch, N, F), all one step ahead."""
        assert isinstance(state, WindowState)
        return joint_window(state, Phi, self.window_of(state))

    def take(self, index: Tensor) -> "BoundWindow":
        return self._expert.take(index).bind()

    def window_of(self, state: WindowState) -> Window:
        """Kernel, noise and prior mean at the current hyperparameters."""
        return self._window if self._refitted is None else self._refitted.window(state)


class _Refitted:
    """The window with the hyperparameters of a state, and their refits."""

    def __init__(self, expert: "WindowExpert", refit: Refit) -> None:
        self._refit = refit
        with torch.inference_mode(False):
            self._copy = copy.deepcopy(expert).double()
        self._latest: tuple[Tensor, Window] | None = None

    @torch.no_grad()
    def window(self, state: WindowState) -> Window:
        """The window with a state's hyperparameters; the latest one is cached."""
        vectors = state.hyperparameters
        if self._latest is None or not torch.equal(self._latest[0], vectors):
            set_vectors_(self._copy, vectors.reshape(self._copy.num_experts, -1))
            self._latest = vectors.clone(), self._copy.window()
        return self._latest[1]

    def counted(self, state: WindowState, num_rows: int) -> WindowState:
        """The state after this many rows arrived, refitted if due."""
        state = state._replace(num_rows=state.num_rows + num_rows)
        if rows_until_refit(state):
            return state
        due = state.due + state.due.clamp(max=self._refit.every)
        return self._refit_state(state)._replace(due=due)

    def _refit_state(self, state: WindowState) -> WindowState:
        """The state with better hyperparameters, or unchanged if none are found."""
        last, axis = num_used(state), state.targets.ndim - 1
        if last == 0:
            return state
        doubling = int(state.num_rows.max()) < 2 * self._refit.every
        search, share = (_REFIT_TO_MORE, 2) if doubling else (_REFIT, 1)
        num_rows, expert = min(last, share * self._refit.num_rows), self._copy
        with torch.inference_mode(False):
            some = torch.linspace(0, last - 1, num_rows, dtype=torch.float64, device=state.targets.device)
            rows, targets, scale = (
                field.detach().index_select(axis, some.round().long())
                for field in (state.inputs, state.targets, state.noise_scale)
            )
            vectors = state.hyperparameters.detach().clone().reshape(expert.num_experts, -1)
            set_vectors_(expert, vectors)
            found = gradient_ascent(
                expert, lambda: expert.evidence(rows, targets, scale), search, _REFIT_PRECISION, num_rows
            )
        after = state._replace(hyperparameters=found.reshape(state.hyperparameters.shape))
        if torch.equal(found, vectors):
            return state
        with torch.no_grad():
            try:
                after = refactored(after, self.window(after), last)
            except NumericalError:
                return state
            held, reached = (log_density(one.factor, one.projected) for one in (state, after))  # unused rows add 0
            better = reached > held + _WORTH * found.shape[-1]
            if bool(better.all()) or not bool(better.any()):
                return after if bool(better.all()) else state
            chosen = (
                torch.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old)
                for new, old in zip(after, state, strict=True)
            )
            return WindowState(*chosen)


@final
class WindowExpert(Expert):
    r"""A batch of exact Gaussian processes of the last rows.

    .. math::
        y_t = f(x_t) + \varepsilon_t, \quad f \sim GP(m, k), \quad \varepsilon_t \sim N(0, \sigma^2)

    given at least the last W targets and fewer than 2 W: the older half is dropped at once, which costs less than
    dropping fewer rows more often, for the same average number. A row costs O(W²) and memory is O(W²), in double
    precision whatever the dtype of the rows. On a drifting stream the window forgets;
    if all rows fit, it is the exact Gaussian process of all of them. The number of rows is read on the host, so it does
    not run inside ``torch.func.vmap``.

    Hyperparameters are fixed or refitted on a schedule: then the current ones are part of the state, and
    predictions are not differentiable in those of the expert. A failed refit leaves them unchanged.

    Args:
        kernel: Any GPyTorch kernel of one output, with batch shape () or (M,); stored, not copied.
        inputs: Number of input columns D, or the map to the kernel's inputs:
            :class:`~gp_ensembles.features.linear.InputFeatures` of a subset of the columns.
        num_rows: Minimum number of rows W in the window, once as many have arrived.
        likelihood: GPyTorch's Gaussian likelihood with the kernel's batch shape; by default a new one.
        mean: Any GPyTorch prior mean with the kernel's batch shape; ``None`` for zero.
        refit: Schedule of refits; ``None`` for none.

    Raises:
        ValueError: If the window has no rows or fewer than the kernel has inputs, the likelihood's batch shape is not
            the kernel's, or there is nothing to refit.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import MaternKernel
        >>> expert = WindowExpert(MaternKernel(nu=2.5).double(), 1, num_rows=100)
        >>> X = torch.linspace(0, 3, 40, dtype=torch.float64).unsqueeze(-1)
        >>> state, steps = expert.update(expert.init(), X, X.squeeze(-1).sin())
        >>> steps.mean.shape, int(state.num_used)
        (torch.Size([40]), 40)
    """

    traits = Traits(shares_state=True, runs_apart=False, stores_rows=True)

    def __init__(
        self,
        kernel: Kernel,
        inputs: int | FeatureMap,
        num_rows: int = 1000,
        likelihood: GaussianLikelihood | None = None,
        mean: Mean | None = None,
        refit: Refit | None = None,
    ) -> None:
        if num_rows < 1:
            raise ValueError(f"a window needs at least one row, got num_rows={num_rows}")
        if isinstance(inputs, int):
            features: FeatureMap = InputFeatures(inputs, next(kernel.parameters()).new_ones(kernel.batch_shape))
        else:
            features = inputs
        if num_rows < features.num_features - 1:
            raise ValueError(
                f"a window of num_rows={num_rows} rows is shorter than the {features.num_features - 1} inputs of its "
                f"kernel, too few rows to determine it; use a longer window or fewer columns"
            )
        super().__init__(features, None)
        self.kernel = kernel
        self.num_rows = num_rows
        self.likelihood = checked_likelihood(features, likelihood)
        self.mean = mean
        self.refit = refit
        if refit is not None:
            trainable(self)

    def get_extra_state(self) -> Tensor:
        """Smoothness of the Matern kernels, which a search may have chosen, for ``state_dict``; shape (K,)."""
        return torch.tensor([part.nu for part in _materns(self.kernel)], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the result of :meth:`get_extra_state`."""
        for part, nu in zip(_materns(self.kernel), state.tolist(), strict=True):
            part.nu = nu

    def init(self) -> WindowState:
        room = 2 * self.num_rows
        state = window_state(self.batch_shape, self.features.num_features - 1, room, self.features.prior_variance)
        if self.refit is None:
            return state
        vectors = get_vectors(self).double().reshape(*self.batch_shape, -1)
        first = self.refit.every if self.refit.first is None else self.refit.first
        return state._replace(hyperparameters=vectors, due=torch.full_like(state.due, first))

    def bind(self) -> BoundWindow:
        """Read the hyperparameters once; in double precision predictions are differentiable in them."""
        return BoundWindow(self)

    def window(self) -> Window:
        """The filter's view of the hyperparameters, in double precision, which sums of a thousand rows need."""
        mean = None if self.mean is None else bind_mean(_double(self.mean))
        noise = self.likelihood.noise.squeeze(-1).double()
        kernel = bind_covariance(_double(self.kernel), is_constant=not torch.is_grad_enabled())
        return Window(kernel, noise, self.num_rows, mean)

    def check_targets(self, y: Tensor) -> None:
        check_single_output(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Exact, for all rows at once; see :meth:`Expert.log_evidence`."""
        rows = self.features.bind()(X)[..., :-1]
        return self.evidence(rows, y, y.new_ones(y.shape)).to(y.dtype)

    def evidence(self, rows: Tensor, targets: Tensor, noise_scale: Tensor) -> Tensor:
        r"""Log density of targets, differentiable in the hyperparameters.

        Args:
            rows: Kernel inputs, shape (\*batch, N, D).
            targets: Shape (N,) or (\*batch, N).
            noise_scale: Factor of the noise variance of each, shape (N,) or (\*batch, N).

        Returns:
            In nats, in double precision, shape (\*batch); NaN if the covariance is not positive definite.
        """
        noise = (self.likelihood.noise * noise_scale).expand(rows.shape[:-1])
        errors = targets if self.mean is None else targets - self.mean(rows)
        return exact_log_evidence(self.kernel, rows, noise, errors.double())

    def take(self, index: Tensor) -> "WindowExpert":
        shape = self.batch_shape
        return WindowExpert(
            take_experts(self.kernel, shape, index),
            take_experts(self.features, shape, index),
            self.num_rows,
            take_experts(self.likelihood, shape, index),
            None if self.mean is None else take_experts(self.mean, shape, index),
            self.refit,
        )

    def with_transition(self, transition: Transition | None) -> "WindowExpert":
        """An expert that shares kernel, features and likelihood with this one.

        Raises:
            ValueError: If there is a transition: a window forgets by dropping rows.
        """
        if transition is not None:
            raise ValueError("a window expert has no time-varying weights; to forget faster, reduce num_rows")
        return WindowExpert(self.kernel, self.features, self.num_rows, self.likelihood, self.mean, self.refit)


def _materns(kernel: Kernel) -> list[MaternKernel]:
    """The Matern kernels among the parts of a kernel, itself included."""
    return [part for part in kernel.modules() if isinstance(part, MaternKernel)]


def _double(module: M) -> M:
    """The module in double precision; the module itself if it already is."""
    if all(value.dtype == torch.float64 for value in module.parameters()):
        return module
    double: M = copy.deepcopy(module).double()  # type: ignore[assignment]
    return double
