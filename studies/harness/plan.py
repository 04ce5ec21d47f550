"""Checks of a study's choices: names among those known, numbers within their range."""

from collections.abc import Iterable, Sequence


def chosen(given: Sequence[str] | None, known: Iterable[str], what: str) -> list[str]:
    """The names that were given, in the order of those that are known; all of these by default.

    Args:
        given: The names.
        known: Those there are.
        what: What they name, for messages.

    Raises:
        ValueError: If a name is unknown or stands twice, or there is none.

    Example:
        >>> chosen(["b"], ["a", "b"], "method")
        ['b']
        >>> chosen(["c"], ["a", "b"], "method")
        Traceback (most recent call last):
        ValueError: there is no method c; choose from a, b
    """
    names = list(known)
    wanted = names if given is None else list(given)
    unknown = [name for name in wanted if name not in names]
    if unknown or not wanted:
        raise ValueError(f"there is no {what} {unknown[0] if unknown else ''}; choose from {', '.join(names)}")
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"a {what} is named twice: {', '.join(wanted)}")
    return [name for name in names if name in wanted]


def check_range(option: str, value: int, least: int, most: int | None = None) -> None:
    """Raise unless a number is within its range.

    Args:
        option: Its option on the command line, without dashes.
        value: The number.
        least: The least that it may be.
        most: The most that it may be; without a limit by default.

    Raises:
        ValueError: If it is not.

    Example:
        >>> check_range("splits", 0, 1)
        Traceback (most recent call last):
        ValueError: --splits=0 is out of range; give at least 1
    """
    if value < least or (most is not None and value > most):
        limit = "" if most is None else f" and at most {most}"
        raise ValueError(f"--{option}={value} is out of range; give at least {least}{limit}")
