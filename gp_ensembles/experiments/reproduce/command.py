"""The command ``reproduce``: which paper, which figure or experiment, on what data."""

from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.experiments.reproduce import doebe, fusion, gplvm, ie_gp, knots, maskerade
from gp_ensembles.experiments.reproduce.fusion_methods import METHODS as FUSION_METHODS
from gp_ensembles.experiments.reproduce.fusion_sets import NUM_ROWS
from gp_ensembles.experiments.reproduce.gplvm_methods import METHODS as LATENT_METHODS
from gp_ensembles.experiments.reproduce.gplvm_methods import Effort
from gp_ensembles.experiments.reproduce.gplvm_sets import START_SHARES
from gp_ensembles.experiments.reproduce.knots_methods import METHODS as KNOT_METHODS
from gp_ensembles.experiments.reproduce.maskerade_methods import METHODS

_EXPERIMENTS = ("1", "2", "3", "C", "D")
_PAPERS = "Lu et al. 2022, Waxman and Djuric 2024, Hamid et al. 2022, Garton et al. 2020, or Ajirak et al. 2024"
_METHODS = (
    f"of maskerade: {', '.join(METHODS)}, those of the table by default; of knots: {', '.join(KNOT_METHODS)}, all by "
    f"default; of ie-gp's figure 7: {', '.join(LATENT_METHODS)}, all by default"
)


def add_reproduce(parser: ArgumentParser) -> None:
    """Give a parser the options of the command."""
    parser.add_argument("--config", action="config", help="YAML file with any of this command's options")
    parser.add_argument("paper", type=Literal["ie-gp", "doebe", "maskerade", "knots", "fusion"], help=_PAPERS)
    parser.add_argument(
        "--figure",
        type=int | str | None,
        default=None,
        help="of ie-gp: 2, 3, 4, 7, 10 or 11; of knots: 1 or 2, in place of a table; of fusion: 3a or 3b",
    )
    parser.add_argument("--experiment", type=str | None, default=None, help="of doebe: 1, 2, 3, C or D")
    parser.add_argument("--data", type=Path | None, default=None, help="a folder with a manifest.json")
    parser.add_argument("--draws", type=int, default=3, help="of ie-gp: draws of frequencies; tables show their median")
    parser.add_argument("--seeds", type=int, default=1, help="of doebe: repetitions; tables show their mean")
    parser.add_argument("--table", type=int | None, default=None, help="of maskerade: 1, 2, 3, 5 or 6")
    start = maskerade.Options()
    parser.add_argument(
        "--evaluations", type=int, default=start.evaluations, help="of maskerade: likelihoods for a method and a split"
    )
    parser.add_argument(
        "--folds", type=int | None, default=None, help="of maskerade: splits of each set; the paper's number by default"
    )
    parser.add_argument("--sets", type=str, nargs="+", default=None, help="of maskerade: only these sets")
    parser.add_argument("--methods", type=str, nargs="+", default=None, help=_METHODS)
    parser.add_argument(
        "--seed",
        type=int,
        default=start.seed,
        help="of maskerade, knots and fusion: seed of the first split; of ie-gp's figure 7: of the first draw",
    )
    sets = f"of knots: boston, airfoil or ccpp; of ie-gp's figure 7: {', '.join(START_SHARES)}, all by default"
    parser.add_argument("--dataset", type=str | None, default=None, help=sets)
    fresh = knots.Options()
    parser.add_argument(
        "--splits", type=int, default=fresh.splits, help="of knots and fusion: random splits of the set"
    )
    parser.add_argument("--max_knots", "--max-knots", type=int, default=fresh.max_knots, help="of knots: most knots")
    fused = fusion.Options()
    models = f"of fusion: {', '.join(FUSION_METHODS)}, all by default"
    parser.add_argument("--models", type=str, nargs="+", default=None, help=models)
    parser.add_argument("--inference", type=str, default=fused.inference, help="of fusion: hmc or laplace")
    effort = Effort()
    parser.add_argument(
        "--block_size", "--block-size", type=int, default=effort.block_size,
        help="of ie-gp's figure 7: rows that the ensembles embed at once",
    )  # fmt: skip
    parser.add_argument(
        "--iterations", type=int, default=effort.iterations, help="of ie-gp's figure 7: steps of GPyTorch's model"
    )
    rows = f"most rows of a stream or a set; of fusion: rows made up, {NUM_ROWS} by default"
    parser.add_argument("--max_rows", type=int | None, default=None, help=rows)


def run_reproduce(values: Namespace) -> str:
    """Make a figure or an experiment again and return its table.

    Raises:
        ValueError: If it is unknown.
    """
    if values.paper == "doebe":
        if values.experiment not in _EXPERIMENTS:
            raise ValueError(f"--experiment of doebe must be one of {', '.join(_EXPERIMENTS)}, got {values.experiment}")
        return doebe.run(
            values.experiment, values.data, values.out,
            seeds=values.seeds, max_rows=values.max_rows, progress=values.progress,
        )  # fmt: skip
    if values.paper == "maskerade":
        options = maskerade.Options(values.evaluations, values.folds, values.sets, values.methods, values.seed)
        return maskerade.run(values.table, values.data, values.out, options, progress=values.progress)
    if values.paper == "knots":
        chosen = knots.Options(values.splits, values.max_knots, values.methods, values.seed)
        return knots.run(
            values.dataset, values.data, values.out, chosen, figure=values.figure, progress=values.progress
        )
    if values.paper == "fusion":
        rows = NUM_ROWS if values.max_rows is None else values.max_rows
        wanted = fusion.Options(values.splits, values.models, values.inference, values.seed, rows)
        return fusion.run(values.figure, values.out, wanted, progress=values.progress)
    if values.figure == gplvm.FIGURE:
        effort = Effort(values.block_size, values.iterations)
        choices = gplvm.Options(values.dataset, values.methods, values.draws, values.seed, values.max_rows, effort)
        return gplvm.run(values.data, values.out, choices, progress=values.progress)
    if values.figure not in ie_gp.FIGURES:
        figures = sorted((*ie_gp.FIGURES, gplvm.FIGURE))
        raise ValueError(f"--figure of ie-gp must be one of {', '.join(map(str, figures))}, got {values.figure}")
    return ie_gp.run(
        values.figure, values.data, values.out, draws=values.draws, max_rows=values.max_rows, progress=values.progress
    )
