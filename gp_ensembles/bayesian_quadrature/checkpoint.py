"""A search on disk."""

import hashlib
import os
from pathlib import Path

import torch

from gp_ensembles.bayesian_quadrature.problem import Problem
from gp_ensembles.bayesian_quadrature.search import Path as AscentPath
from gp_ensembles.bayesian_quadrature.search import Search, SearchState, Step
from gp_ensembles.bayesian_quadrature.store import Evaluations

_VERSION = 2


def fingerprint(problem: Problem, search: Search) -> str:
    """What a checkpoint has to agree with: the data, the prior's shape and quantiles, and the search."""
    digest = hashlib.sha256()
    prior = problem.prior
    probe = prior.bounds[0].new_tensor([0.1, 0.5, 0.9]).unsqueeze(-1)
    tensors = [problem.X, problem.y, prior.means.icdf(probe), prior.scales.icdf(probe), prior.log_prob_components]
    for tensor in tensors:
        digest.update(tensor.detach().cpu().double().contiguous().numpy().tobytes())
    digest.update(repr((prior.outputscale, prior.noise, prior.concentration, problem.reflection)).encode())
    discrepancy = problem.geometry.discrepancy
    digest.update(repr((discrepancy.dissimilarity, discrepancy.atoms.reflected, _name(search.policy))).encode())
    digest.update(repr(search._replace(policy=None)).encode())
    return digest.hexdigest()


def _name(policy: object) -> str:
    """A policy's class and settings; not its address in memory."""
    settings = repr(tuple(policy)) if isinstance(policy, tuple) else ""
    return f"{type(policy).__module__}.{type(policy).__qualname__}{settings}"


def save_state(state: SearchState, path: Path, mark: str) -> None:
    """Write a search to a file, whole or not at all."""
    content = {
        "version": _VERSION,
        "fingerprint": mark,
        "cube": state.evaluations.cube,
        "log_likelihood": state.evaluations.log_likelihood,
        "origins": state.origins,
        "paths": [tuple(path) for path in state.paths],
        "seconds": state.seconds,
        "random": state.random,
        "nodes_seed": state.nodes_seed,
        "planned": state.planned,
        "history": [tuple(step) for step in state.history],
    }
    partial = path.with_name(path.name + ".partial")
    try:
        torch.save(content, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load_state(path: Path, mark: str) -> SearchState:
    """Read a search from a file.

    Raises:
        ValueError: If the file is no checkpoint of a search, or of another problem or search.
    """
    try:
        content = torch.load(path, weights_only=True)
        version = content["version"]
    except Exception as error:
        raise ValueError(f"{path} is not a checkpoint of a marginalization; remove it or name another file") from error
    if version != _VERSION or content["fingerprint"] != mark:
        raise ValueError(
            f"{path} belongs to another data set, prior or search; remove it to start afresh, or name another file"
        )
    return SearchState(
        Evaluations(content["cube"], content["log_likelihood"]),
        content["origins"],
        tuple(AscentPath(*path) for path in content["paths"]),
        content["seconds"],
        content["random"],
        content["nodes_seed"],
        content["planned"],
        tuple(Step(*step) for step in content["history"]),
    )
