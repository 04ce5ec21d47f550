"""Configs bundled with the package, found by name in a checkout and in an installation."""

import difflib
import math
from pathlib import Path

import yaml

_MOST_BYTES, _MOST_NODES = 1_000_000, 100_000  # of a config


def configs_folder() -> Path:
    """The folder of the configs: inside an installed package, next to the package in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "auto.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no configs found in {package}; reinstall the package")


def config_titles() -> dict[str, str]:
    """Names of the configs, each with the first line of its file without the comment mark."""
    folder = configs_folder()
    files = {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))}
    return {name: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name, file in files.items()}


def find_config(given: str | Path) -> Path:
    """The file of a config given by name or by path; a known name goes before a file of that name."""
    path, names = Path(given), config_titles()
    if str(given) in names:
        return configs_folder() / f"{given}.yaml"
    if path.suffix or len(path.parts) > 1 or path.exists():
        return path  # its reader reports what is wrong with it
    close = difflib.get_close_matches(str(given), names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ValueError(f"{given} is neither a config nor a file; {hint}gp-ensembles configs lists all configs")


def refuse_odd_yaml(path: str | Path) -> None:
    """Raise if a mapping in a YAML file repeats a key, of which a parser would silently drop one."""
    try:
        if Path(path).is_file() and Path(path).stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path} has more than {_MOST_BYTES} bytes, too many for a config")
        root = yaml.compose(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return
    if root is not None and _written_out(root, {}) > _MOST_NODES:
        raise ValueError(f"{path}: its aliases expand to more than {_MOST_NODES} values, too many for a config")
    todo = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, yaml.SequenceNode):
            todo += node.value
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                line, name = key.start_mark.line + 1, str(key.value)
                if name in lines:
                    raise ValueError(
                        f"{path}, line {line}: the key {name} repeats line {lines[name]}; remove one of them"
                    )
                lines[name] = line
                todo.append(value)


def _written_out(node: yaml.Node, known: dict[int, float]) -> float:
    """Number of values of a node with all aliases expanded; infinity if it contains itself."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = math.inf  # until it is counted
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = node.value
    elif isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    known[id(node)] = 1 + sum(_written_out(part, known) for part in parts)
    return known[id(node)]
