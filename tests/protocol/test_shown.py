"""How messages show text from outside: short, harmless, on one line."""

from pynamodb_mutex._lock.protocol.messages import one_line, shown, shown_all, shown_owner


def test_long_text_loses_its_middle():
    assert shown("x" * 78) == repr("x" * 78)
    cut = shown("begin" + "x" * 74 + "end")
    assert (len(cut), cut[:7], cut[-5:], cut.count("...")) == (80, "'beginx", "xend'", 1)


def test_text_does_nothing_to_a_terminal():
    assert shown("a\nb\x1b") == r"'a\nb\x1b'"
    assert one_line("a \n b\x1b\t c") == r"a b\x1b c"


def test_of_several_the_first_three_are_shown():
    assert shown_all(["a", "b", "c"]) == "'a', 'b', 'c'"
    assert shown_all(["a", "b", "c", "d"]) == "'a', 'b', 'c', ... (4 in all)"


def test_holder_without_a_label_is_called_unnamed():
    assert [shown_owner(owner) for owner in ("she", "", None)] == [
        "'she'",
        *["an unnamed owner"] * 2,
    ]
