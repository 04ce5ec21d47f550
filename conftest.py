"""Settings that tests and docstring examples share: threads, patience, and where torch's global generator starts."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

# No test depends on how fast or busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _no_test_knows_the_draws_of_another() -> Iterator[None]:
    """The global generator starts anew and is left as it was: no test depends on which ran before it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20240502)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of frozen numbers are among those that run again as other processors."""
    for item in items:
        if {"golden", "goldens"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("processor")
