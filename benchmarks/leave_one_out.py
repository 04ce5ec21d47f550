"""Were constants of ``auto`` fitted to these sets? Its innovation models and the share of its rule, one set left out.

    python -m studies arena --data FOLDER --out out/experts --rows 3000 --methods auto_no_innovations --experts true
    python benchmarks/leave_one_out.py out/experts/arena_parts

From the experts' stored one-step-ahead predictions every candidate is computed on every set. For each set the candidate
that is best on all others of no like name, by the mean or by the median of the log scores less those of ``auto``, is
judged on it: what is lost against ``auto`` there is what choosing with the set in view has gained. Recalibration and
the threshold for outliers, which come before and after, are left out; references are those of ``auto``.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gp_ensembles.ensembles.presets import INNOVATIONS
from gp_ensembles.innovations import InnovationBank, InnovationModel
from gp_ensembles.meta_learners import CombinedRules, FixedShare, MetaLearner, ReferenceAveraging, SoftBayes

BLOCK = 64
REFERENCES = ("previous value", "value a season ago")


def of(*models: tuple[float, float, float]) -> tuple[InnovationModel, ...]:
    """Models by degrees of freedom, rate and width."""
    return tuple(InnovationModel(degrees_of_freedom=df, rate=rate, width=width) for df, rate, width in models)


SETS_OF_MODELS = {
    "as it is": INNOVATIONS,
    "normal .05, narrow t4 .02, t4 .3": of((np.inf, 0.05, 1.0), (4, 0.02, 0.1), (4, 0.3, 1.0)),
    "t4 .05, narrow t4 .02, t4 .3": of((4, 0.05, 1.0), (4, 0.02, 0.1), (4, 0.3, 1.0)),
    "t8 .05, t4 .3": of((8, 0.05, 1.0), (4, 0.3, 1.0)),
    "t8 .05, narrow t4 .02": of((8, 0.05, 1.0), (4, 0.02, 0.1)),
    "rates halved": of((8, 0.025, 1.0), (4, 0.01, 0.1), (4, 0.15, 1.0)),
    "rates doubled": of((8, 0.1, 1.0), (4, 0.04, 0.1), (4, 0.6, 1.0)),
    "width .3": of((8, 0.05, 1.0), (4, 0.02, 0.3), (4, 0.3, 1.0)),
    "t4 .02": of((4, 0.02, 1.0)),
    "normal .05, t4 .02, narrow t4 .02": of((np.inf, 0.05, 1.0), (4, 0.02, 1.0), (4, 0.02, 0.1)),
}
SHARES = (0.003, 0.01, 0.03)
AS_IT_IS = ("as it is", 0.01)


def rule_for(names: list[str], copies: int, share: float) -> MetaLearner:
    """The rule of ``auto`` with another share; references are an expert's own copies where there are any."""
    rule = CombinedRules([FixedShare(share), SoftBayes(0.05)], over=FixedShare(0.02))
    places = [i for i, name in enumerate(names) if any(reference in name for reference in REFERENCES)]
    copied = [place * copies + k for place in places for k in range(copies)]
    return ReferenceAveraging(rule, copied) if copied else rule


@torch.no_grad()
def scores(path: Path) -> dict[tuple[str, float], float]:
    """Mean log score of every candidate on one set."""
    with np.load(path) as file:
        mean, variance = (torch.as_tensor(file[k]).double() for k in ("mean", "variance"))
        y, names = torch.as_tensor(file["y"]).double(), [str(name) for name in file["names"]]
    missing, found = y.isnan(), {}
    own = (-0.5 * ((y - mean) ** 2 / variance + variance.log() + np.log(2 * np.pi))).unsqueeze(1)
    for title, models in SETS_OF_MODELS.items():
        bank = InnovationBank(models)
        state, parts = bank.init(mean.shape[0], mean), []
        for m, v, t in zip(mean.split(BLOCK, 1), variance.split(BLOCK, 1), y.split(BLOCK), strict=True):
            state, copies = bank.update_block(state, m, v, t, missing=t.isnan())
            parts.append(copies.log_prob)
        log_prob = torch.cat([own, torch.cat(parts, -1)], 1).flatten(0, 1)[:, ~missing]
        for share in SHARES:
            rule = rule_for(names, 1 + len(models), share)
            meta, total = rule.init(log_prob.shape[0], log_prob), 0.0
            for block in log_prob.split(BLOCK, 1):
                meta, output = rule.update_block(meta, block)
                total += float((output.log_weights.log_softmax(0) + block).logsumexp(0).sum())
            found[title, share] = total / log_prob.shape[1]
    return found


def family(name: str) -> str:
    """What several tables of the same measurements have in common."""
    return name.split("_")[0]


def report(table: NDArray[np.float64], names: list[str], candidates: list[tuple[str, float]]) -> None:
    """Candidates on all sets, then what is chosen for each set without it."""
    gains = table - table[:, [candidates.index(AS_IT_IS)]]
    print("| innovation models | share | mean | median | best | worst |\n|---|---:|---:|---:|---:|---:|")
    for column, (title, share) in zip(gains.T, candidates, strict=True):
        found = (column.mean(), np.median(column), column.max(), column.min())
        print(f"| {title} | {share} | " + " | ".join(f"{x:+.4f}" for x in found) + " |")
    for kind, average in (("mean", np.mean), ("median", np.median)):
        kept = [[other for other, name in enumerate(names) if family(name) != family(left)] for left in names]
        choices = [int(np.argmax(average(gains[others], 0))) for others in kept]
        at = np.array([gains[i, choice] for i, choice in enumerate(choices)])
        print(f"\nchosen by the {kind} of the others, {len(names)} sets: as it is on {np.sum(at == 0)};", end=" ")
        print(f"elsewhere {', '.join(sorted({str(candidates[c]) for c in choices}))}")
        print(
            f"log score of the chosen less that of auto: mean {at.mean():+.4f}, median {np.median(at):+.4f}, ", end=""
        )
        print(f"from {at.min():+.4f} ({names[int(at.argmin())]}) to {at.max():+.4f} ({names[int(at.argmax())]})")


def main() -> None:
    """All sets of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    torch.set_num_threads(1)
    paths = sorted(parser.parse_args().folder.glob("*-experts.npz"))
    rows, candidates = [], list(itertools.product(SETS_OF_MODELS, SHARES))
    for path in paths:
        found = scores(path)
        rows.append([found[candidate] for candidate in candidates])
        print(path.stem, f"{found[AS_IT_IS]:.4f}", "best", max(found, key=lambda key: found[key]), flush=True)
    report(np.array(rows), [path.name.split("-")[0] for path in paths], candidates)


if __name__ == "__main__":
    main()
