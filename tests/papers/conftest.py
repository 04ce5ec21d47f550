"""The golden files of the papers."""

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session")
def archive(golden):
    """The arrays of a golden file as tensors, by the file's name."""

    def read(name):
        with np.load(golden / f"{name}.npz") as data:
            return {key: torch.as_tensor(data[key]) for key in data.files if data[key].dtype.kind != "U"}

    return read
