"""Broken variants of the library: changes of lines that fit it, and are undone."""

import pytest

from dev.broken import BROKEN, _variants, broken
from pynamodb_mutex._fair.waiting_line import dead_after

DECIDE = "pynamodb_mutex._once.rows.OnceRequests.decide"


def test_variant_is_in_the_library_inside_the_block_alone():
    before = dead_after.__code__
    assert dead_after(1) == 6.0
    with broken("impatient"):
        assert dead_after(1) == 2.5
    with pytest.raises(AssertionError), broken("impatient"):
        assert dead_after(1) == 6.0
    assert dead_after.__code__ is before


def test_each_variant_fits_the_library():
    for name in BROKEN:
        with broken(name):
            pass


@pytest.mark.parametrize(
    ("place", "line", "why"),
    [
        (DECIDE, "if forces:", "0 times in it, not once:\nif forces:"),
        (DECIDE, "else:", "2 times in it, not once:\nelse:"),
        (DECIDE + "d", "if not forces:", "'decided'"),
        (DECIDE, "condition = ~layout.exists", "changes nothing"),
    ],
)
def test_change_that_does_not_fit_is_refused(monkeypatch, place, line, why):
    monkeypatch.setitem(BROKEN, "made-up", {place: [f"- {line}", f"+ {line}  # the same"]})
    with pytest.raises(ValueError) as caught, broken("made-up"):
        pass
    assert str(caught.value) == f"made-up: {place}: {why}"


@pytest.mark.parametrize("block", ["# named: no change", "# no name\nplace\n- a\n+ b", "place"])
def test_block_that_is_neither_a_variant_nor_a_section_is_refused(block):
    with pytest.raises(ValueError, match="neither a variant nor a section"):
        list(_variants(f"# the first\n\n{block}"))
