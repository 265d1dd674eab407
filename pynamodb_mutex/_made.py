"""Locks are made by methods of their classes, with options: what is called by mistake is refused by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pynamodb_mutex._terms import check_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import ParamSpec

    from typing_extensions import Self

    P = ParamSpec("P")

K = TypeVar("K")


class Made:
    """An object that is not made by calling its class."""

    _made_by: ClassVar[str] = "{}.for_key(...)"
    """What to call instead; the braces stand for the class."""

    _makers: ClassVar[frozenset[str]] = frozenset()
    """The methods that make an object of this very class, or of its kind. Others are inherited only."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Refuse: what the class itself is made from is the library's own matter.

        Raises:
            TypeError: Always; it names what to call.
        """
        msg = f"{cls.__name__}(...) makes no lock: call {cls._made_by.format(cls.__name__)}"
        raise TypeError(msg)

    @classmethod
    def _called(cls, name: str, options: Mapping[str, object]) -> None:
        """Refuse a call of a method that makes no object of this class, or an unknown option.

        Raises:
            TypeError: If it is one. It names the method that was called, not one that this calls.
        """
        if name not in cls._makers:
            other = next(
                each for each in cls.__mro__[::-1] if name in vars(each).get("_makers", ())
            )
            msg = (
                f"{cls.__name__}.{name}() makes no {cls.__name__}: "
                f"call {cls._made_by.format(cls.__name__)} for one, or {other.__name__}.{name}(...)"
            )
            raise TypeError(msg)
        check_options(f"{cls.__name__}.{name}", options)


def made(kind: Callable[P, K], *args: P.args, **kwargs: P.kwargs) -> K:
    """Return an object of such a class: the library's own way to make one."""
    maker: Any = kind
    new: K = object.__new__(maker)
    maker.__init__(new, *args, **kwargs)
    return new
