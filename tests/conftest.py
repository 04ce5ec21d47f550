"""What every test shares: one thread unless told otherwise, no deadlines, seeded generators, optional data."""

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# It makes a golden file and needs NumPyro, which the tests do without.
collect_ignore = ["golden/make_fusion_nuts.py"]

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

# No test depends on how fast or busy the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Examples in docstrings and tests of frozen numbers are among those that run again as other processors."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) or {"golden", "goldens"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("processor")


GOLDEN = Path(__file__).parent / "golden"
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with a fixed seed."""
    return torch.Generator().manual_seed(20240502)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the frozen numbers that travel with the repository."""
    return GOLDEN


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of the data and golden files kept beside the repository; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the shared data folder is not beside this checkout")
    return SHARED


@pytest.fixture
def wrong_default_dtype():
    """Run the test while torch's default dtype is not the one the tensors have."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, as at a terminal, even where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
