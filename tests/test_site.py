"""The site's own extensions; that all of it builds without a warning is shown by ``make docs``."""

import inspect

from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.filters import RandomWalk
from gp_ensembles.filters.transitions import Transition
from tests.sources import extension


def test_links_that_lead_nowhere_are_noticed(tmp_path):
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "there.html").write_text('<h1 id="one&amp;two"><a href="../index.html#top">up</a></h1>')
    (tmp_path / "index.html").write_text(
        '<a href="a%20folder/there.html#one%26two"></a> <a href="#"></a> <img src="data:image/png;base64,AA"> '
        '<a href="https://example.org/gone"></a> <a class="x" href="gone.html"></a> <img alt="" src="gone.png"> '
        '<a href="a%20folder/there.html#three"></a>'
    )
    assert list(extension("links").broken(tmp_path)) == [
        "a folder/there.html: ../index.html#top has no such anchor",
        "index.html: gone.html does not exist",
        "index.html: a%20folder/there.html#three has no such anchor",
        "index.html: gone.png does not exist",
    ]


def test_what_scrolls_takes_the_focus_and_no_head_of_a_column_is_empty():
    page = (
        '<pre>1</pre><div class="table-wrapper docutils container"></div><div class="math-wrapper docutils"></div>'
        '<div class="math"></div><th class="head"><p></p></th><th class="head"><p>name</p></th>'
    )
    assert extension("reachable").reachable(page) == (
        '<pre tabindex="0">1</pre><div tabindex="0" class="table-wrapper docutils container"></div>'
        '<div tabindex="0" class="math-wrapper docutils"></div><div class="math"></div>'
        '<td class="head"></td><th class="head"><p>name</p></th>'
    )


def test_defaults_are_shown_as_one_would_write_them():
    written = extension("defaults").written
    assert written("(a=<factory>, b: int = 3)") == "(a=..., b: int = 3)"
    assert written("(rule=<class 'gp_ensembles.papers.fusion.rules.Product'>)") == "(rule=Product)"
    predicted = written("(rule=<a.b.LBFGSB object at 0x7f12ab>, kind=<Kind.EQUAL: 'equal'>)")
    assert predicted == "(rule=LBFGSB(), kind=Kind.EQUAL)"
    bases = FourierBasis.__module__
    assert written("(starts: tuple[float, ...] = _STARTS)", bases) == "(starts: tuple[float, ...] = (0.2, 0.7, 2.0))"


def test_what_the_base_says_stands_in_the_place_of_a_reference_to_it():
    resolved = extension("inherited").resolved
    predicted = resolved(["See :meth:`Transition.take`."], RandomWalk.__module__, "RandomWalk.take")
    assert predicted == inspect.getdoc(Transition.take).splitlines()
    added = resolved(inspect.getdoc(WindowGP.build).splitlines(), WindowGP.__module__, "WindowGP.build")
    assert added[2].startswith("Here: one expert, whatever")
    assert "Raises:" in added
    assert resolved(["See the base."], RandomWalk.__module__, "RandomWalk.take") == ["See the base."]
    assert resolved(["See :meth:`Nobody.take`."], RandomWalk.__module__, "RandomWalk") == ["See :meth:`Nobody.take`."]


def test_links_from_sources_have_the_anchors_of_their_pages(tmp_path):
    links, folder = extension("links"), tmp_path / "_modules"
    folder.mkdir()
    page = 'href="../r/generated/gp.bo.draws.Paths.html#{}"'
    (folder / "draws.html").write_text(" ".join(map(page.format, ("gp.bo.Paths.take", "gp.bo.draws.Paths", "else"))))
    links.mend_sources(tmp_path)
    anchors = ("gp.bo.draws.Paths.take", "gp.bo.draws.Paths", "else")
    assert (folder / "draws.html").read_text() == " ".join(map(page.format, anchors))
