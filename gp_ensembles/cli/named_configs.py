"""The configs that travel with the package: found by name, in a checkout as in an installation."""

import difflib
import math
from pathlib import Path

import yaml

_MOST_BYTES, _MOST_NODES = 1_000_000, 100_000  # of a config


def configs_folder() -> Path:
    """The folder of the configs: inside an installed package, beside the package in a checkout.

    Raises:
        FileNotFoundError: If it is in neither.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "auto.yaml").is_file():
            return folder
    raise FileNotFoundError(f"the configs are not in {package}; install the package again")


def config_titles() -> dict[str, str]:
    """Names of the configs, each with the first line of its file without the comment mark."""
    files = sorted(configs_folder().glob("*.yaml"))
    return {file.stem: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for file in files}


def find_config(given: str | Path) -> Path:
    """The file of a config that is given by name or by path; a name that is known comes before a file called so.

    Raises:
        ValueError: If it is neither a name that is known nor a file.
    """
    path, names = Path(given), config_titles()
    if str(given) in names:
        return configs_folder() / f"{given}.yaml"
    if path.suffix or len(path.parts) > 1 or path.exists():
        return path  # its reader says what is wrong with it
    close = difflib.get_close_matches(str(given), names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ValueError(f"no config and no file is called {given}; {hint}gp-ensembles configs lists them")


def refuse_odd_yaml(path: str | Path) -> None:
    """Raise if a mapping in a YAML file has the same key twice, of which a parser would drop one without a word.

    Raises:
        ValueError: Naming the key and the line of its repetition, or the size.
    """
    try:
        if Path(path).is_file() and Path(path).stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path} has more than {_MOST_BYTES} bytes, which is no config")
        root = yaml.compose(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return
    if root is not None and _written_out(root, {}) > _MOST_NODES:
        raise ValueError(f"{path}: its aliases stand for more than {_MOST_NODES} values, which is no config")
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
                        f"{path}, line {line}: the key {name} stands here and in line {lines[name]}; leave one out"
                    )
                lines[name] = line
                todo.append(value)


def _written_out(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a node holds with all its aliases written out; infinity if it holds itself."""
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
