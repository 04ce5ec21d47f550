"""Scores of many methods on many sets, computed once: recordings and scores are kept in files and read back."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from gp_ensembles.cli.error_messages import one_sentence
from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.files.checkpoint import fingerprint
from gp_ensembles.files.replacing import write_json
from gp_ensembles.numerics.cholesky import NumericalError
from studies.doebe.methods import Method, score
from studies.doebe.recording import (
    Recording,
    load_recording,
    record,
    save_recording,
)
from studies.doebe.sets import load_stream, set_names
from studies.harness.parts import kept_record

_VERSION = 1  # of everything that scores depend on besides the data; a new number makes old files worthless
_SCORES = ("nmse", "log_score", "log_score_gaussian")


class Scores(NamedTuple):
    """What came of an experiment.

    Attributes:
        sets: Names of the sets that could be run.
        num_seeds: Seeds each was run with.
        values: By set, method (its key) and seed, the scores by name.
        failures: Sets that could not be run, and why.
    """

    sets: list[str]
    num_seeds: int
    values: dict[tuple[str, str, int], dict[str, float]]
    failures: dict[str, str]

    def mean(self, name: str, method: Method, kind: str) -> float:
        """A score of a method on a set, averaged over seeds."""
        return sum(self.values[name, method.key, seed][kind] for seed in range(self.num_seeds)) / self.num_seeds


def score_sets(
    methods: Sequence[Method], data: Path | None, out: Path, seeds: int, max_rows: int | None, progress: bool
) -> Scores:
    """Score methods on the sets of experiments 1 and 3; what stands in ``out`` already is read back.

    The experts of a set are fitted and run once per seed, for all methods and all experiments that share ``out``.

    Args:
        methods: The methods.
        data: Folder of the sets with a manifest; ``None`` for the synthetic sets alone.
        out: Folder of the results.
        seeds: Number of seeds.
        max_rows: Most rows of a set, warm-up included; ``None`` for all.
        progress: Show progress bars.

    Raises:
        ValueError: If no set can be run.
        OSError: If ``out`` cannot be written.
    """
    experts, scores = out / "doebe_experts", out / "doebe_scores"
    make_folder(experts)
    make_folder(scores)
    values: dict[tuple[str, str, int], dict[str, float]] = {}
    failures: dict[str, str] = {}
    names = set_names(data)
    done = []
    for name in tqdm(names, unit="set", disable=not progress):
        try:
            for seed in range(seeds):
                found = _score_set(name, methods, data, (experts, scores), max_rows, seed, progress)
                values |= {(name, key, seed): result for key, result in found.items()}
            done.append(name)
        except (ValueError, NumericalError, FileNotFoundError) as error:
            failures[name] = one_sentence(error)
    if not done:
        raise ValueError(f"none of the sets could be run; {names[0]}: {failures[names[0]]}")
    return Scores(done, seeds, values, failures)


def _score_set(
    name: str,
    methods: Sequence[Method],
    data: Path | None,
    folders: tuple[Path, Path],
    max_rows: int | None,
    seed: int,
    progress: bool,
) -> dict[str, dict[str, float]]:
    """Scores by method's key on one set with one seed."""
    stream = load_stream(name, data, max_rows, seed)
    mark = f"version {_VERSION}, seed {seed}, data {fingerprint(stream.warm_X, stream.warm_y, stream.X, stream.y)}"
    path = folders[1] / f"{name}-seed{seed}.json"
    kept = kept_record(path, {"mark": mark})
    flat = {} if kept is None else dict(kept.scores)
    recording: Recording | None = None
    for method in methods:
        if f"{method.key}; {_SCORES[-1]}" in flat:
            continue
        if recording is None:
            kept_experts = folders[0] / f"{name}-seed{seed}.npz"
            recording = load_recording(kept_experts, mark)
            if recording is None:
                save_recording(record(stream, seed, name, progress), kept_experts, mark)
                recording = load_recording(kept_experts, mark)  # rounded as every later call will find it
                assert recording is not None
        flat |= {f"{method.key}; {kind}": value for kind, value in score(method, recording).items()}
    if recording is not None:
        write_json(path, {"settings": {"mark": mark}, "scores": flat, "curves": {}})
    return {method.key: {kind: flat[f"{method.key}; {kind}"] for kind in _SCORES} for method in methods}
