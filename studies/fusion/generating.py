"""Figure 2 of the fusion paper: the mixture that the rows come from, and the point predictions of all methods."""

import time
import warnings

import torch
from torch import Tensor

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.distributions import Mixture
from gp_ensembles.files.checkpoint import fingerprint
from studies.fusion.methods import METHODS, FusionTask, Sampling
from studies.fusion.pictures import GeneratingModel, draw_generating_model
from studies.fusion.sets import TRUE_EXPERTS, expert_source, made_up_mixture, split_rows
from studies.fusion.study import make_plan, make_task, part_settings
from studies.fusion.tables import FusionPlan, Making, Setting
from studies.harness.experiment import Choices
from studies.harness.parts import Record, Results, running
from studies.harness.report import write_report
from studies.harness.text import aligned

_SETTING = Setting(TRUE_EXPERTS, 30, 1.0)
_POINTS = 201


def run(choices: Choices, sampling: Sampling, made: Making = Making()) -> str:  # noqa: B008 (immutable)
    """Make the figure; write how far predictions are from the mixture's mean as text, lines as CSV, and the picture.

    Files are ``fusion_figure_2.txt``, ``.csv``, ``.json`` and ``.png`` in the folder of the results. Finished methods
    are kept in ``fusion_figure_2_parts`` there.

    Args:
        choices: What may be chosen of every experiment.
        sampling: How posteriors are found.
        made: How rows are made up.

    Returns:
        The table as text.

    Raises:
        ValueError: If there is no such method, a number is out of range, or nothing could be run.
        OSError: If the results cannot be written.
    """
    plan = make_plan("3a", choices, sampling, made)
    make_folder(choices.out)
    rows = made_up_mixture(_SETTING.half_width, made.num_rows, choices.seed, made.noise)
    assert rows.truth is not None
    split = split_rows(rows, choices.seed, 0)
    x = torch.linspace(-_SETTING.half_width, _SETTING.half_width, _POINTS, dtype=rows.X.dtype, device=rows.X.device)
    mixture = rows.truth.at(x.unsqueeze(-1))
    # the points replace the test rows, and the mixture's mean their targets
    asked = split._replace(test_X=x.unsqueeze(-1), test_y=mixture.mean - split.center)
    results = Results(plan, ("method", "split"), 1)
    experts = expert_source(asked, choices.seed, 0)
    folder = choices.out / "fusion_figure_2_parts"
    with running(results, folder, len(plan.methods), choices.progress) as parts:
        for method in plan.methods:
            settings = part_settings(method, _SETTING, 0, plan)
            name = "-".join(str(value) for value in settings.values())
            settings["data"] = fingerprint(*asked[:4])
            task = make_task(asked, _SETTING, experts, plan, 0)
            parts.run((method, 0), name, settings, lambda: _part(method, task, settings), method)  # noqa: B023 (called at once)
    records = {name: results.records[name, 0] for name in plan.methods if (name, 0) in results.records}
    predictions = {name: x.new_tensor(record.curves["prediction"]) for name, record in records.items()}
    origin = _origin(rows.truth.at(rows.X), rows.y)
    shown = GeneratingModel(x, mixture, (rows.X.squeeze(-1), rows.y), origin, predictions)
    return _written(results, shown, choices, sampling)


def _part(method: str, task: FusionTask, settings: dict[str, object]) -> Record:
    clock = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # figure 3 shows what they warn of
        answer = METHODS[method].run(task)
    seconds = time.perf_counter() - clock
    distance = float((answer.mean - task.split.test_y).square().mean().sqrt())
    prediction = (answer.mean + task.split.center).tolist()
    return Record(settings, {"distance": distance, "seconds": seconds}, {"prediction": prediction})


def _origin(mixture: Mixture, y: Tensor) -> Tensor:
    """The component under which weight times density is largest."""
    apart = (y - mixture.component_mean).square() / mixture.component_variance
    return (mixture.log_weights - 0.5 * apart).argmax(0)


def _written(results: Results[FusionPlan], shown: GeneratingModel, choices: Choices, sampling: Sampling) -> str:
    title = (
        f"Fusion, figure 2: the generating model and point predictions; {len(shown.origin)} rows, {_SETTING}, "
        f"inference by {sampling}{', AS PUBLISHED' if sampling.as_published else ''}"
    )
    remark = "distance: root mean square of the point prediction less the mixture's mean, over the inputs' range"
    rows: list[list[object]] = [
        [method, record.scores["distance"], record.scores["seconds"], METHODS[str(method)].title]
        for (method, _), record in results.records.items()
    ]
    table = aligned(["method", "distance", "seconds", ""], rows)
    text = "\n\n".join(filter(None, [f"{title}\n{remark}", table, "\n".join(results.failure_lines())]))
    weights = shown.mixture.log_weights.exp()
    columns = [shown.x, *shown.mixture.component_mean, *weights, shown.mixture.mean, *shown.predictions.values()]
    kinds = [f"{what} {number + 1}" for what in ("mean", "weight") for number in range(TRUE_EXPERTS)]
    header = ["x", *kinds, "mixture", *shown.predictions]
    content = {"title": title, "remark": remark, "seed": choices.seed, "sampling": sampling._asdict()}
    stem = f"fusion_figure_2{'_as_published' if sampling.as_published else ''}"
    pictures = {"": lambda path: draw_generating_model(shown, path)}
    return write_report(choices.out / stem, text, (header, torch.stack(columns, -1).tolist()), content, pictures)
