"""Room is asked for before anything is allocated: on the host, and on a GPU by what its driver says."""

import pytest
import torch

from gp_ensembles.numerics.arguments import check_memory, memory_of


def test_a_gpu_has_what_its_driver_says_is_free(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device) or (3_000, 80_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1_500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 500)
    device = torch.device("cuda:1")
    assert memory_of(device) == 3_000 + 1_500 - 500  # what torch keeps for itself and does not use is free, too
    assert asked == [device]
    check_memory(4_000, device, "a table", "take less")
    with pytest.raises(
        ValueError, match="would take 4e-06 GB of memory of cuda:1, but only 4e-06 GB is available, 1e-09 GB too little"
    ):
        check_memory(4_001, device, "a table", "take less")
