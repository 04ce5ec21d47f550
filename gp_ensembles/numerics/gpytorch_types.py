"""GPyTorch's kernels, likelihoods and means, for type annotations.

At run time they are GPyTorch's own classes. GPyTorch ships no ``py.typed``, so a strict type checker knows nothing of
them, nor of any class of ours that holds one; it reads this protocol instead.
"""

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:

    @runtime_checkable
    class GPyTorchModule(Protocol):
        """``gpytorch.Module``: called, and asked for whatever parameters its kind has."""

        def __call__(self, *inputs: Any, **settings: Any) -> Any:
            """What ``forward`` computes."""

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

        def forward(self, *inputs: Any, **settings: Any) -> Any:
            """What a call computes."""

    Kernel: TypeAlias = GPyTorchModule
    Likelihood: TypeAlias = GPyTorchModule
    Mean: TypeAlias = GPyTorchModule
else:
    from gpytorch import Module as GPyTorchModule
    from gpytorch.kernels import Kernel
    from gpytorch.likelihoods import Likelihood
    from gpytorch.means import Mean

__all__ = ["GPyTorchModule", "Kernel", "Likelihood", "Mean"]
