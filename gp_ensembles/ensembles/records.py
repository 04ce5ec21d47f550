"""Serialization of ensemble specifications to plain containers, for YAML files and checkpoints.

``FourierBasis`` is that record with its defaults, ``{FourierBasis: {num_features: 20}}`` one with other settings. A
name that is not in the table is an error: nothing that is read can import a module or call anything else.
"""

import difflib
import inspect
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from numbers import Integral
from typing import Any, Union, get_args, get_origin, get_type_hints

from gp_ensembles.ensembles import bases, targets
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.external_models import Boosting, ForecastColumns
from gp_ensembles.ensembles.extra_experts import Refitted, WideFeatures, WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import PRESETS, auto_for
from gp_ensembles.ensembles.spec import EnsembleSpec, SpeedSwitching, StickySwitching
from gp_ensembles.experts.empirical_bayes import LBFGS, GaussianPerturbation
from gp_ensembles.filters.sites import LaplaceUpdate, MomentMatchingUpdate
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    CombinedRules,
    DiscountedOnlineNewton,
    DynamicModelAveraging,
    ExponentiatedGradient,
    FixedShare,
    OnlineNewton,
    SoftBayes,
)

_KINDS: tuple[type, ...] = (
    bases.FourierBasis, bases.HilbertBasis, bases.RadialBasis, bases.PolynomialBasis, bases.LinearBasis,
    bases.OptimizedFourierBasis, bases.SplineBasis, bases.KernelDictionary, bases.RecurringBasis,
    targets.RealTarget, targets.UnknownNoiseTarget, targets.OutlierTarget, targets.BinaryTarget, targets.ClassTarget,
    targets.LevelTarget, targets.CountTarget,
    BayesianModelAveraging, DynamicModelAveraging, FixedShare, ExponentiatedGradient, SoftBayes, OnlineNewton,
    DiscountedOnlineNewton, CombinedRules, StickySwitching, SpeedSwitching,
    InnovationModel, TargetLags, WindowGP, WideFeatures, Boosting, ForecastColumns, Refitted,
    FitSettings, LBFGS, GaussianPerturbation, LaplaceUpdate, MomentMatchingUpdate,
)  # fmt: skip
TABLE: Mapping[str, type] = {kind.__name__: kind for kind in _KINDS}
_DEFAULT = "auto"


def spec_to_plain(spec: EnsembleSpec) -> dict[str, Any]:
    """An ensemble as plain containers with all its settings, which :func:`spec_from_plain` reads back."""
    return {field.name: _to_plain(getattr(spec, field.name)) for field in fields(spec)}


def spec_from_plain(plain: object, where: str = "ensemble") -> EnsembleSpec:
    """An ensemble from a file: a preset's name, or settings that differ from those of the preset ``like``."""
    if isinstance(plain, str):
        plain = {"like": plain}
    if not isinstance(plain, Mapping):
        raise ValueError(f"{where} must be a preset's name or a mapping such as {{like: e_doebe}}, got {plain!r}")
    hints = get_type_hints(EnsembleSpec)
    _check_keys(plain, ["like", "add_experts", *hints], where)
    like = plain.get("like", _DEFAULT)
    if not isinstance(like, str) or like not in PRESETS:
        raise ValueError(f"{where}.like is {like!r}; {_did_you_mean(like, PRESETS)}")
    values = {key: _from_plain(value, hints[key], f"{where}.{key}") for key, value in plain.items() if key in hints}
    add_experts = _from_plain(plain.get("add_experts", ()), hints["extra_experts"], f"{where}.add_experts")
    start = auto_for(values["target"]) if like == _DEFAULT and "target" in values else PRESETS[like]
    try:
        spec = replace(start, **values)
        return replace(spec, extra_experts=(*spec.extra_experts, *add_experts)) if add_experts else spec
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _to_plain(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for plain in (int, float, str):  # numpy's numbers and strings become Python's
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, tuple) and type(value).__name__ not in TABLE:
        return [_to_plain(part) for part in value]
    kind = type(value)
    if TABLE.get(kind.__name__) is not kind:
        raise TypeError(
            f"{kind.__name__} cannot be saved by save or by a command: store the model by "
            f"pickle.dump(model, file), or use {_alike(kind)}"
        )
    if getattr(value, "log_prior", None) is not None:
        raise TypeError(
            f"prior weights of {kind.__name__} cannot be saved; store the model with pickle.dump(model, file)"
        )
    settings = {name: _to_plain(getattr(value, name)) for name in _settings(kind)}
    return {kind.__name__: settings} if settings else kind.__name__


def _alike(kind: type) -> str:
    """Names of the known classes that share a base class with another, or of all."""
    bases = [base for base in kind.__mro__[1:] if base.__module__.startswith("gp_ensembles.")]
    names = [name for name, known in TABLE.items() if any(issubclass(known, base) for base in bases)]
    return f"one of {names or list(TABLE)}"


def _from_plain(plain: object, hint: Any, where: str) -> Any:
    """A value of the type of a hint."""
    if get_origin(hint) in (Union, types.UnionType):
        options = get_args(hint)
        if plain is None and type(None) in options:
            return None
        kinds = [option for option in options if option is not type(None)]
        return _from_plain(plain, kinds[0], where) if len(kinds) == 1 else _record(plain, tuple(kinds), where)
    if get_origin(hint) in (tuple, list) or getattr(get_origin(hint), "__name__", "") == "Sequence":
        if isinstance(plain, str) and get_args(hint)[0] is str:
            plain = [plain]  # one name is allowed as a list of one
        if not isinstance(plain, list | tuple):
            raise ValueError(f"{where} must be a list, got {plain!r}")
        return tuple(_from_plain(part, get_args(hint)[0], f"{where}[{k}]") for k, part in enumerate(plain))
    if hint is bool:
        if not isinstance(plain, bool):
            raise ValueError(f"{where} must be true or false, got {plain!r}")
        return plain
    if hint in (int, float):
        return _number(plain, hint, where)
    if hint is str:
        if not isinstance(plain, str):
            raise ValueError(f"{where} must be a string, got {plain!r}")
        return plain
    return _record(plain, (hint,), where)


def _number(plain: object, kind: type[int] | type[float], where: str) -> float:
    """A number; also as a string, because YAML reads 1e-3 as one."""
    wanted = "a whole number" if kind is int else "a number"
    try:
        value = float(plain) if isinstance(plain, int | float | str) and not isinstance(plain, bool) else math.nan
    except ValueError:
        value = math.nan
    if math.isnan(value) or (kind is int and not value.is_integer()):
        raise ValueError(f"{where} must be {wanted}, got {plain!r}")
    return kind(value)


def _record(plain: object, kinds: tuple[type, ...], where: str) -> Any:
    """A record of one of some kinds from the table."""
    fitting = [known for known, kind in TABLE.items() if issubclass(kind, kinds)]
    name: object = plain
    settings: object = {}
    if isinstance(plain, Mapping) and len(fitting) == 1 and fitting[0] not in plain:
        name, settings = fitting[0], plain  # there is no choice, so the name may be omitted
    elif isinstance(plain, Mapping) and len(plain) == 1:
        name, settings = next(iter(plain.items()))
        settings = {} if settings is None else settings
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        raise ValueError(f"{where} must be a name such as {fitting[0]}, or {{{fitting[0]}: settings}}, got {plain!r}")
    if name not in fitting:
        raise ValueError(f"{where} is {name!r}; {_did_you_mean(name, fitting)}")
    kind = TABLE[name]
    hints = _settings(kind)
    _check_keys(settings, list(hints), f"{where}.{name}")
    values = {key: _from_plain(value, hints[key], f"{where}.{name}.{key}") for key, value in settings.items()}
    lacking = [key for key in _required(kind) if key not in values]
    if lacking:
        raise ValueError(f"{where}.{name} needs {', '.join(lacking)}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _settings(kind: type) -> dict[str, Any]:
    """Names and type hints of the settings of a record; prior weights are tensors and cannot be in files."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: hints[field.name] for field in fields(kind)}
    hints = get_type_hints(kind if issubclass(kind, tuple) else kind.__init__)
    return {name: hint for name, hint in hints.items() if name not in ("return", "prior_weights")}


def _required(kind: type) -> list[str]:
    if is_dataclass(kind):
        return [field.name for field in fields(kind) if field.default is MISSING]
    parameters = inspect.signature(kind).parameters.values()
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]


def _check_keys(given: Mapping[Any, Any], known: list[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise ValueError(f"{where} has no setting {key!r}; {_did_you_mean(key, known)}")


def _did_you_mean(word: object, known: Any) -> str:
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known) or 'none'}"
