"""GPyTorch's kernels, likelihoods and means, for type annotations.

At run time they are GPyTorch's own classes. GPyTorch ships no ``py.typed``, so a strict type checker knows nothing of
them, nor of any class of ours that holds one; it reads these protocols instead.
"""

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:

    class GPyTorchModule(Protocol):
        """``gpytorch.Module``: called, and asked for whatever parameters its kind has."""

        def __call__(self, *inputs: Any, **settings: Any) -> Any:
            """What ``forward`` computes."""

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

        def forward(self, *inputs: Any, **settings: Any) -> Any:
            """What a call computes."""

    @runtime_checkable
    class Kernel(GPyTorchModule, Protocol):
        """``gpytorch.kernels.Kernel``, by the method that no other module has."""

        def covar_dist(self, *inputs: Any, **settings: Any) -> Any:
            """Distances."""

    @runtime_checkable
    class Likelihood(GPyTorchModule, Protocol):
        """``gpytorch.likelihoods.Likelihood``, by the method that no other module has."""

        def expected_log_prob(self, *inputs: Any, **settings: Any) -> Any:
            """Expectations under a normal distribution."""

    @runtime_checkable
    class Mean(GPyTorchModule, Protocol):
        """``gpytorch.means.Mean``."""

else:
    from gpytorch import Module as GPyTorchModule
    from gpytorch.kernels import Kernel
    from gpytorch.likelihoods import Likelihood
    from gpytorch.means import Mean

__all__ = ["GPyTorchModule", "Kernel", "Likelihood", "Mean"]
