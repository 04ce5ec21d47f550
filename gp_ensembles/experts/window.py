"""The exact Gaussian process of the last rows, with any kernel."""

import copy
from typing import final

import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.gaussian import check_single_output, default_likelihood
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.features.inputs import InputFeatures
from gp_ensembles.features.rebatch import take_experts
from gp_ensembles.filters.states import FilterState, StepPredictions, WindowState
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.filters.update import predict, update_block
from gp_ensembles.filters.window import Window, WindowRows, condition_window, joint_window, own_covariance, window_state
from gp_ensembles.numerics.log_marginal import log_marginal

_SPARE = 4  # a full window drops the rows that it has beyond its length: one in so many


@final
class BoundWindow(BoundExpert):
    """A window expert's numbers.

    Args:
        expert: The expert.
    """

    def __init__(self, expert: "WindowExpert") -> None:
        super().__init__(expert.features.bind(), expert.features.prior_variance, None)
        self.noise: Tensor = expert.likelihood.noise.squeeze(-1).double()
        self._expert = expert
        self._window = Window(bind_covariance(expert.double_kernel()), self.noise, expert.num_rows)

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor) -> tuple[WindowState, StepPredictions]:
        """See :meth:`BoundExpert.update_block`."""
        assert isinstance(state, WindowState)
        return update_block(state, Phi, y, None, self._window)

    def predict(self, state: FilterState, Phi: Tensor) -> StepPredictions:
        """See :meth:`BoundExpert.predict`."""
        assert isinstance(state, WindowState)
        return predict(state, Phi, None, self._window)

    def condition(self, state: WindowState, Phi: Tensor, y: Tensor) -> tuple[WindowRows, StepPredictions]:
        """Predict a block that fits into the window, and what it gets; see :func:`condition_window`."""
        return condition_window(state, Phi, y, self._window)

    def joint_covariance(self, state: FilterState, Phi: Tensor) -> Tensor:
        r"""Joint covariance of the targets of rows (\*batch, N, F) that all come next, (\*batch, N, N)."""
        assert isinstance(state, WindowState)
        return joint_window(state, Phi, self._window)

    def take(self, index: Tensor) -> "BoundWindow":
        """See :meth:`BoundExpert.take`."""
        return self._expert.take(index).bind()


@final
class WindowExpert(Expert):
    r"""A batch of exact Gaussian processes that know the last rows only.

    .. math::
        y_t = f(x_t) + \varepsilon_t, \quad f \sim GP(0, k), \quad \varepsilon_t \sim N(0, \sigma^2)

    given at least the last W targets and fewer than 5/4 W: the oldest are dropped in lots. A row costs O(W²) and
    memory is O(W²), in double precision whatever the dtype of the rows. Where a stream drifts the window forgets;
    where all rows fit into it this is the exact Gaussian process of all of them. The number of rows is read, so it does
    not run inside ``torch.func.vmap``.

    Args:
        kernel: Any GPyTorch kernel of one output, with batch shape () or (M,); kept, not copied.
        num_inputs: Number of input columns D.
        num_rows: Rows W that the window knows at least, once there have been so many.
        likelihood: GPyTorch's Gaussian likelihood with the kernel's batch shape; by default a new one.
        features: What makes the rows that the kernel sees: :class:`~gp_ensembles.features.inputs.InputFeatures` of all
            columns by default, or of some of them.

    Raises:
        ValueError: If the window has no rows, or the likelihood's batch shape is not the kernel's.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import MaternKernel
        >>> expert = WindowExpert(MaternKernel(nu=2.5).double(), 1, num_rows=100)
        >>> X = torch.linspace(0, 3, 40, dtype=torch.float64).unsqueeze(-1)
        >>> state, steps = expert.update(expert.init(), X, X.squeeze(-1).sin())
        >>> steps.mean.shape, int(state.num_used)
        (torch.Size([40]), 40)
    """

    def __init__(
        self,
        kernel: Kernel,
        num_inputs: int,
        num_rows: int = 1000,
        likelihood: GaussianLikelihood | None = None,
        features: FeatureMap | None = None,
    ) -> None:
        if num_rows < 1:
            raise ValueError(f"a window needs at least one row, got num_rows={num_rows}")
        if features is None:
            features = InputFeatures(num_inputs, next(kernel.parameters()).new_ones(kernel.batch_shape))
        super().__init__(features, None)
        self.kernel = kernel
        self.num_rows = num_rows
        self.likelihood = default_likelihood(features) if likelihood is None else likelihood
        if self.likelihood.noise.shape[:-1] != features.batch_shape:
            raise ValueError(
                f"the likelihood's batch shape {tuple(self.likelihood.noise.shape[:-1])} is not the kernel's "
                f"{tuple(features.batch_shape)}; build it with batch_shape=kernel.batch_shape"
            )

    def init(self) -> WindowState:
        """State before any data."""
        room = self.num_rows + max(1, self.num_rows // _SPARE)
        return window_state(self.batch_shape, self.features.num_features - 1, room, self.features.prior_variance)

    def bind(self) -> BoundWindow:
        """Read the hyperparameters once; in double precision predictions are differentiable in them."""
        return BoundWindow(self)

    def double_kernel(self) -> Kernel:
        """The kernel in double precision, itself if it is: sums of a thousand rows need the digits."""
        if all(value.dtype == torch.float64 for value in self.kernel.parameters()):
            return self.kernel
        return copy.deepcopy(self.kernel).double()

    def check_targets(self, y: Tensor) -> None:
        """Raise unless targets have shape (B,) and none is infinite; see :meth:`Expert.check_targets`."""
        check_single_output(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Exact, of all rows at once; see :meth:`Expert.log_evidence`."""
        rows = self.features.bind()(X)[..., :-1]
        noise = self.likelihood.noise.expand(*self.batch_shape, X.shape[0])
        matrix = own_covariance(bind_covariance(self.kernel), rows, noise).double()
        return log_marginal(matrix, y.double()).to(y.dtype)

    def take(self, index: Tensor) -> "WindowExpert":
        """See :meth:`Expert.take`."""
        return WindowExpert(
            take_experts(self.kernel, self.batch_shape, index),
            self.features.num_inputs,
            self.num_rows,
            take_experts(self.likelihood, self.batch_shape, index),
            take_experts(self.features, self.batch_shape, index),
        )

    def with_transition(self, transition: Transition | None) -> "WindowExpert":
        """An expert that shares kernel, features and likelihood with this one.

        Raises:
            ValueError: If there is a transition: a window forgets by dropping rows.
        """
        if transition is not None:
            raise ValueError("a window expert has no weights that change; it forgets by a shorter window (num_rows)")
        return WindowExpert(self.kernel, self.features.num_inputs, self.num_rows, self.likelihood, self.features)
