"""Calls that are to be refused, each with its error and what it says."""

from collections.abc import Callable

import pytest


def refused(error: type[Exception], words: str, call: Callable[[], object]) -> None:
    """Assert that ``call`` raises ``error``, whose message matches ``words``."""
    with pytest.raises(error, match=words):
        call()
