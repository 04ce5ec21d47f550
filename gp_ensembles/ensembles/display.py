"""What an ensemble and its predictions say of themselves: a few lines of text, and small pictures in notebooks."""

import html
from collections.abc import Sequence

from torch import Tensor

_MOST_LINES = 6  # experts listed by name, the heaviest first
_MOST_POINTS = 400  # rows drawn in a band
_WIDTH, _HEIGHT = 480, 120  # of a band, in pixels


def ensemble_text(kind: str, names: Sequence[str], weights: Tensor | None, rule: str) -> str:
    """At most ten lines: how many experts under which rule, and the heaviest with their weights.

    Args:
        kind: What the object is called.
        names: Names of the M experts.
        weights: Their weights, shape (M,); ``None`` where no state is owned.
        rule: What the weight rule is called.

    Example:
        >>> import torch
        >>> print(ensemble_text("Ensemble", ["static", "moving"], torch.tensor([0.25, 0.75]), "FixedShare"))
        Ensemble of 2 experts under FixedShare
          0.750  moving
          0.250  static
    """
    head = f"{kind} of {len(names)} expert{'s' * (len(names) != 1)} under {rule}"
    if weights is None:
        shown = [f"  {name}" for name in names[:_MOST_LINES]]
    else:
        shown = [f"  {weight:.3f}  {name}" for name, weight in _heaviest(names, weights)[:_MOST_LINES]]
    rest = len(names) - len(shown)
    return "\n".join([head, *shown, *([f"  and {rest} more"] if rest else [])])


def ensemble_html(kind: str, names: Sequence[str], weights: Tensor, rule: str) -> str:
    """A table of the experts with their weights as bars, the heaviest first.

    Example:
        >>> import torch
        >>> "moving" in ensemble_html("Ensemble", ["static", "moving"], torch.tensor([0.25, 0.75]), "FixedShare")
        True
    """
    rows = "".join(
        f"<tr><td style='text-align:left'>{html.escape(name)}</td><td>{weight:.3f}</td><td style='text-align:left'>"
        f"<div style='background:#4477aa;height:0.8em;width:{12 * weight:.2f}em'></div></td></tr>"
        for name, weight in _heaviest(names, weights)[: 4 * _MOST_LINES]
    )
    rest = len(names) - 4 * _MOST_LINES
    more = f"<caption style='caption-side:bottom'>and {rest} more</caption>" if rest > 0 else ""
    title = f"{html.escape(kind)} of {len(names)} experts under {html.escape(rule)}"
    return f"<div><b>{title}</b><table>{more}<tr><th>expert</th><th>weight</th><th></th></tr>{rows}</table></div>"


def predictions_text(kind: str, shape: Sequence[int], num_experts: int, scores: Tensor) -> str:
    """Shapes and the mean log score of a block's predictions; rows without a target have none.

    Example:
        >>> import torch
        >>> predictions_text("EnsemblePredictions", (3,), 2, torch.tensor([-1.0, -2.0, -3.0]))
        'EnsemblePredictions of 3 rows by 2 experts, mean log score -2.000 nats a row'
    """
    outputs = f" and {shape[1]} outputs" if len(shape) > 1 else ""
    score = f", mean log score {float(scores.nanmean()):.3f} nats a row" if bool((~scores.isnan()).any()) else ""
    return f"{kind} of {shape[0]} rows{outputs} by {num_experts} experts{score}"


def band_html(title: str, mean: Tensor, stddev: Tensor) -> str:
    """Mean and a band of two standard deviations of the last rows, (N,) each, as a small picture.

    Example:
        >>> import torch
        >>> band_html("two rows", torch.zeros(2), torch.ones(2)).count("<svg")
        1
    """
    mean, stddev = (values.detach().double().cpu()[-_MOST_POINTS:] for values in (mean, stddev))
    lower, upper = mean - 2 * stddev, mean + 2 * stddev
    bottom, size = float(lower.min()), max(float(upper.max() - lower.min()), 1e-12)
    step = _WIDTH / max(len(mean) - 1, 1)

    def points(values: Tensor) -> list[str]:
        return [f"{k * step:.1f},{_HEIGHT * (1 - (v - bottom) / size):.1f}" for k, v in enumerate(values.tolist())]

    area = " ".join([*points(upper), *reversed(points(lower))])
    line = " ".join(points(mean))
    return (
        f"<div><b>{html.escape(title)}</b><br><svg width='{_WIDTH}' height='{_HEIGHT}'>"
        f"<polygon points='{area}' fill='#4477aa' fill-opacity='0.25'/>"
        f"<polyline points='{line}' fill='none' stroke='#4477aa'/></svg></div>"
    )


def _heaviest(names: Sequence[str], weights: Tensor) -> list[tuple[str, float]]:
    return sorted(zip(names, weights.tolist(), strict=True), key=lambda pair: -pair[1])
