"""Names of series and their places."""

import pytest

from gp_ensembles.fleet.store import Slots


def test_places_of_retired_series_are_taken_again():
    slots = Slots()
    slots.add(range(5))
    slots.retire([1, 3])
    assert slots.add(["a", "b", "c"]).tolist() == [1, 3, 5]
    assert slots.names == (0, "a", 2, "b", 4, "c")
    assert (len(slots), slots.size, 1 in slots, "a" in slots) == (6, 6, False, True)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda slots: slots.places(["a", "x", "y"]), KeyError, "unknown series 'x', 'y'"),
        (lambda slots: slots.add(["c", "c"]), ValueError, "'c' are named twice"),
        (lambda slots: slots.add(["c", "b"]), ValueError, "'b' are in the fleet already"),
        (lambda slots: slots.retire(["a", "x"]), KeyError, "unknown series 'x'"),
        (lambda slots: slots.places(range(9)), KeyError, "0, 1, 2 and 6 more"),
    ],
)
def test_what_is_refused_changes_nothing(call, error, words):
    slots = Slots()
    slots.add(["a", "b"])
    with pytest.raises(error, match=words):
        call(slots)
    assert slots.names == ("a", "b")
    assert slots.places(["b", "a"]).tolist() == [1, 0]
