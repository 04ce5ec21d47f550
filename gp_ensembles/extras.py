"""The extra ``cli``, which the command line and tables need, and the one sentence where it is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

MODULES = frozenset({"jsonargparse", "narwhals", "pandas", "plotly", "yaml"})


class MissingExtraError(ImportError):
    """A part of the library was used whose extra is not installed; the message says how to install it."""


@contextmanager
def needs_cli(what: str) -> Iterator[None]:
    """Inside, what the extra ``cli`` installs is imported.

    Raises:
        MissingExtraError: If a module of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in MODULES:
            raise
        raise MissingExtraError(
            f'{what} needs {module}; add it with: pip install "gp_ensembles[cli]"', name=module
        ) from None
