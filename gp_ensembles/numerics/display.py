"""Short texts of records, predictions and models, at most ten lines of 120 characters, and plots for notebooks."""

import dataclasses
import html
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

_MOST_LINES, _MOST_COLUMNS = 10, 120  # of a text
_MOST_EXPERTS = 6  # listed by name, the heaviest first
_EACH_END = 3  # rows shown at the beginning and at the end of a block
_MOST_OUTPUTS = 4  # shown per row
_FEW = 4  # numbers that are listed one by one
_MOST_POINTS = 400  # rows drawn in a band
_ABSENT = object()
_Record = TypeVar("_Record")
_WIDTH, _HEIGHT = 480, 120  # of a band, in pixels


def block_text(head: str, lines: Sequence[str] = ()) -> str:
    """A heading with lines below it, cut to ten lines of 120 characters."""
    most = _MOST_LINES - 1
    if len(lines) > most:
        lines = [*lines[: most - 1], f"and {len(lines) - most + 1} more"]
    return "\n".join([_cut(head), *(_cut(f"  {line}") for line in lines)])


def fields_text(kind: str, values: Mapping[str, object]) -> str:
    """A line for each named value: tensors as shape, range and missing numbers, records as their class."""
    width = max(map(len, values), default=0)
    return block_text(kind, [f"{name:<{width}}  {_value_text(value)}" for name, value in values.items()])


def prints_fields(kind: type[_Record]) -> type[_Record]:
    """The same as ``__repr__`` of a class of named tuples: its decorator."""

    def text(record: tuple[object, ...]) -> str:
        return fields_text(type(record).__name__, dict(zip(_fields(record), record, strict=True)))

    kind.__repr__ = text  # type: ignore[assignment, method-assign]
    return kind


def call_text(value: Any) -> str:
    """The call that makes a record or a weight rule, without arguments that are the default ones."""
    if type(value) in (tuple, list):
        parts = [call_text(part) for part in value]
        return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))
    if not (dataclasses.is_dataclass(value) or isinstance(value, nn.Module) or _fields(value)):
        text = " ".join(repr(value).split())
        return f"{type(value).__name__}(...)" if text.startswith("<") else text
    return f"{type(value).__name__}({', '.join(changed(value).values())})"


def changed(record: object) -> dict[str, str]:
    """The arguments of that call by name, each as ``name=value``, or as the value alone where there is no default."""
    found = {}
    for name, parameter in inspect.signature(type(record)).parameters.items():
        value = getattr(record, name, _ABSENT)
        if value is _ABSENT:  # prior weights of a rule are kept as logarithms
            if getattr(record, "log_prior", None) is not None:
                found[name] = f"{name}=..."
            continue
        text = call_text(value)
        if parameter.default is parameter.empty:
            found[name] = text
        elif text != call_text(parameter.default):
            found[name] = f"{name}={text}"
    return found


def spread_text(kind: str, arguments: Sequence[str]) -> str:
    """A call on one line if it fits, else one argument per line."""
    line = f"{kind}({', '.join(arguments)})"
    if len(line) <= _MOST_COLUMNS:
        return line
    most = _MOST_LINES - 2
    shown = [f"{argument}," for argument in arguments[:most]]
    if len(arguments) > most:
        shown[-1] = f"and {len(arguments) - most + 1} more"
    return block_text(f"{kind}(", shown) + "\n)"


def ends(num_rows: int) -> list[int]:
    """The rows of a block that are shown."""
    every = list(range(num_rows))
    return every if num_rows <= 2 * _EACH_END + 1 else every[:_EACH_END] + every[-_EACH_END:]


def rows_text(head: str, numbers: Sequence[int], columns: Mapping[str, Sequence[Tensor]]) -> str:
    """A small table of some rows below a head; dots where rows in between are left out."""
    if not numbers:
        return block_text(head)
    lists = [[values.detach().cpu().tolist() for values in tensors] for tensors in columns.values()]
    cells = [[" to ".join(_numbers(values[k]) for values in tensors) for tensors in lists] for k in range(len(numbers))]
    table = [["row", *columns], *([str(number), *row] for number, row in zip(numbers, cells, strict=True))]
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    gaps = [k for k in range(1, len(numbers)) if numbers[k] - numbers[k - 1] > 1]
    for gap in reversed(gaps[:1]):
        lines.insert(gap + 1, "...".rjust(widths[0]))
    return block_text(head, lines)


def ensemble_text(kind: str, names: Sequence[str], weights: Tensor | None, rule: str) -> str:
    """At most ten lines: how many experts under which rule, and the heaviest with their weights.

    Shapes: ``weights`` (M,).
    """
    head = f"{kind} of {len(names)} expert{'s' * (len(names) != 1)} under {rule}"
    if weights is None:
        shown = [f"  {name}" for name in names[:_MOST_EXPERTS]]
    else:
        shown = [f"  {weight:.3f}  {name}" for name, weight in _heaviest(names, weights)[:_MOST_EXPERTS]]
    rest = len(names) - len(shown)
    return "\n".join([head, *shown, *([f"  and {rest} more"] if rest else [])])


def ensemble_html(kind: str, names: Sequence[str], weights: Tensor, rule: str) -> str:
    """A table of the experts with their weights as bars, the heaviest first."""
    rows = "".join(
        f"<tr><td style='text-align:left'>{html.escape(name)}</td><td>{weight:.3f}</td><td style='text-align:left'>"
        f"<div style='background:#4477aa;height:0.8em;width:{12 * weight:.2f}em'></div></td></tr>"
        for name, weight in _heaviest(names, weights)[: 4 * _MOST_EXPERTS]
    )
    rest = len(names) - 4 * _MOST_EXPERTS
    more = f"<caption style='caption-side:bottom'>and {rest} more</caption>" if rest > 0 else ""
    title = f"{html.escape(kind)} of {len(names)} experts under {html.escape(rule)}"
    return f"<div><b>{title}</b><table>{more}<tr><th>expert</th><th>weight</th><th></th></tr>{rows}</table></div>"


def predictions_head(kind: str, shape: Sequence[int], num_experts: int, scores: Tensor) -> str:
    """Shapes and the mean log score of a block's predictions; rows without a target have none."""
    outputs = f" and {shape[1]} outputs" if len(shape) > 1 else ""
    sizes = f"{counted((shape[0], 'row'))}{outputs} by {counted((num_experts, 'expert'))}"
    score = f", mean log score {float(scores.nanmean()):.3f} nats per row" if bool((~scores.isnan()).any()) else ""
    return f"{kind} of {sizes}{score}"


def band_html(title: str, mean: Tensor, stddev: Tensor) -> str:
    """Mean and a band of two standard deviations of the last rows, (N,) each, as a small plot."""
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


def counted(*numbers: tuple[int, str]) -> str:
    """Counts with their nouns, as in "3 rows, 1 expert"."""
    return ", ".join(f"{number} {thing}{'s' * (number != 1)}" for number, thing in numbers)


def text_html(text: str) -> str:
    """A text as preformatted HTML."""
    return f"<pre>{html.escape(text)}</pre>"


def _fields(record: object) -> tuple[str, ...]:
    """Names of a named tuple's fields; none of anything else."""
    names: tuple[str, ...] = getattr(record, "_fields", ())
    return names


def _cut(line: str) -> str:
    return line if len(line) <= _MOST_COLUMNS else line[: _MOST_COLUMNS - 3] + "..."


def _numbers(values: float | Sequence[float]) -> str:
    """A number to four digits, or the first ones of a row."""
    if not isinstance(values, list):
        return f"{values:.4g}"
    return ", ".join([f"{value:.4g}" for value in values[:_MOST_OUTPUTS]] + ["..."] * (len(values) > _MOST_OUTPUTS))


def _value_text(value: Any) -> str:
    if isinstance(value, Tensor):
        return _tensor_text(value.detach())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return value
    if type(value) in (tuple, list) and value and not isinstance(value[0], int | float | str):
        return f"{len(value)} of {type(value[0]).__name__}"
    if _fields(value):
        shapes = {name: getattr(value, name) for name in _fields(value)}
        parts = [f"{name} {tuple(one.shape)}" for name, one in shapes.items() if isinstance(one, Tensor)]
        return f"{type(value).__name__}: {', '.join(parts)}" if parts else call_text(value)
    text = repr(value).split("\n")[0]
    return f"{type(value).__name__}(...)" if text.startswith("<") or text.endswith("(") else text


def _tensor_text(value: Tensor) -> str:
    if value.is_meta or value.is_complex():
        return f"{tuple(value.shape)} {value.dtype}"
    if value.numel() <= _FEW and value.ndim <= 1:
        return f"{value.item():.4g}" if value.ndim == 0 else f"[{', '.join(f'{one:.4g}' for one in value.tolist())}]"
    known = value.flatten().double()
    known = known[~known.isnan()]
    missing = value.numel() - known.numel()
    mean = float(known.mean()) if known.numel() else math.nan
    span = f", from {float(known.min()):.4g} to {float(known.max()):.4g}, mean {mean:.4g}" if known.numel() else ""
    return f"{tuple(value.shape)}{span}" + f", {missing} NaN" * bool(missing)
