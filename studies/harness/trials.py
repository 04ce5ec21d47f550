"""Studies that are numbers by case and trial, and nothing else: run, resumed and written."""

from collections.abc import Callable, Mapping

import torch

from studies.harness.comparison import Estimate, estimate
from studies.harness.experiment import Choices
from studies.harness.parts import Record, Results, running
from studies.harness.report import write_report
from studies.harness.text import aligned

Case = Callable[[torch.Generator], Mapping[str, float]]


def run_cases(
    choices: Choices,
    name: str,
    title: str,
    cases: Mapping[str, Case],
    settings: Mapping[str, object],
    after: Callable[[Mapping[str, Mapping[str, Estimate]]], str] | None = None,
) -> str:
    """Run every case with every seed, and write means over trials with standard errors.

    Args:
        choices: Trials, seed, folder.
        name: Name of the files.
        title: What the table shows.
        cases: What is run: the numbers of one trial by their names, from a source of randomness.
        settings: What the numbers depend on; finished trials are read back if they were made with the same.
        after: Text below the table, from the estimates by case and score.

    Raises:
        OSError: If the folder cannot be read or written.
    """
    results = Results(None, ("case", "trial"), choices.trials)
    with running(results, choices.out / "runs", len(cases) * choices.trials, choices.progress) as parts:
        for case, make in cases.items():
            for trial in range(choices.trials):
                seed = choices.seed + trial
                used = {**settings, "case": case, "seed": seed}

                def record(make: Case = make, seed: int = seed, used: dict[str, object] = used) -> Record:
                    scores = make(torch.Generator().manual_seed(seed))
                    return Record(used, {key: float(value) for key, value in scores.items()}, {})

                stem = f"{name}_{case}_{trial}".replace(" ", "_").replace("/", "_")
                parts.run((case, trial), stem, used, record, f"{case}, trial {trial + 1}")
    found = {case: list(results.found(case).values()) for case in cases}
    means = {
        case: {score: estimate([one.scores[score] for one in records]) for score in records[0].scores}
        for case, records in found.items()
        if records
    }
    scores = list(dict.fromkeys(score for row in means.values() for score in row))
    rows: list[list[object]] = [[case, *(str(row.get(score, "")) for score in scores)] for case, row in means.items()]
    lines = [title, aligned(["case", *scores], rows), f"means over {choices.trials} trials, ± standard errors"]
    if after is not None:
        lines.append(after(means))
    lines += results.failure_lines()
    table = [[case, score, one.mean, one.error, one.num] for case, row in means.items() for score, one in row.items()]
    content = {
        "settings": dict(settings),
        "runs": {case: [one._asdict() for one in records] for case, records in found.items()},
        "failures": results.failed(),
    }
    header = ["case", "score", "mean", "standard_error", "trials"]
    return write_report(choices.out / name, "\n".join(line for line in lines if line), (header, table), content, {})
