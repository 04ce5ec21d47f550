"""The one door of packages that only a rival needs."""

import importlib
import importlib.util
from types import ModuleType


def is_installed(package: str) -> bool:
    """Whether a package can be imported.

    Example:
        >>> is_installed("numpy"), is_installed("no_such_package")
        (True, False)
    """
    return importlib.util.find_spec(package) is not None


def missing(package: str) -> str:
    """What to do about a package that does not exist."""
    return f"{package} is not installed; python -m pip install 'gp_ensembles[arena]'"


def optional(module: str) -> ModuleType:
    """A module of an optional package.

    Raises:
        ValueError: If the package is not installed.

    Example:
        >>> optional("no_such_package.part")
        Traceback (most recent call last):
        ValueError: no_such_package is not installed; python -m pip install 'gp_ensembles[arena]'
    """
    package = module.partition(".")[0]
    if not is_installed(package):
        raise ValueError(missing(package))
    return importlib.import_module(module)
