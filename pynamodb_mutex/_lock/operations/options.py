"""Validated options of a mutex, and checks of the arguments of the calls that take them.

Each check raises TypeError or ValueError with a message for the user, before any request is sent. Keys are checked
in `dynamodb.keys`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from pynamodb_mutex._lock.dynamodb.layout import serialize_attributes, serialize_data
from pynamodb_mutex._lock.protocol.claim import SHORTEST_LEASE
from pynamodb_mutex._lock.protocol.messages import shown

if TYPE_CHECKING:
    from typing import ParamSpec

    from pynamodb.models import Model
    from typing_extensions import Self

    from pynamodb_mutex._lock.dynamodb.keys import RawItem

    P = ParamSpec("P")


K = TypeVar("K")

_ALONE = ("fair", "data", "attributes", "delete_on_release", "reentrant", "hold_at_least")
"""Options that a lock which others share cannot have."""

FOREVER = -1.0
"""The timeout that stands for no timeout, as in `threading`."""

LONGEST_DURATION = 100 * 365.25 * 86400.0
"""The longest duration, in seconds: 100 years.

The end of such a lease, and the TTL of a row that is kept for as long after it, are dates before the year 10000, which
Python can represent; and a thread can wait for it (`threading.TIMEOUT_MAX` is 292 years).
"""


class LockOptions:
    """The options of one lock, as `Mutex.for_key` takes them, and the row of its claim.

    Immutable. If the user did not give an option, the class has its default.

    Attributes:
        key: The lock's key; for a row's lock the row's name.
        range_key: The range key that the caller gave; None for none, or the default.
        data: The payload as JSON; None to leave the stored one.
    """

    key: str
    row: RawItem
    model: type[Model]
    range_key: Any = None
    # waiting
    timeout: float = FOREVER
    poll: tuple[float, float] = (0.05, 1.0)
    fair: object = False
    # lease and loss
    lease: float = 30.0
    auto_renew: bool = True
    max_hold: float | None = None
    on_danger: Callable[[Any], object] | None = None
    on_lost: Callable[[Any], object] | None = None
    # the row
    owner: str | None = None
    data: str | None = None
    attributes: dict[str, Any] | None = None
    must_exist: bool = False
    delete_on_release: bool = False
    # special kinds
    reentrant: bool = False
    hold_at_least: float | None = None
    shared: bool = False

    def __init__(
        self,
        key: str,
        row: RawItem,
        model: type[Model],
        range_key: Any = None,
        **given: Any,
    ) -> None:
        vars(self).update(given, key=key, row=row, model=model, range_key=range_key)

    def replace(self, **changed: Any) -> LockOptions:
        """Return the same options but for some."""
        return LockOptions(**{**vars(self), **changed})

    @property
    def name(self) -> str:
        """What messages and signals call the lock: its key, and its range key if the caller gave one."""
        return self.key if self.range_key is None else f"{self.key} {self.range_key}"

    def check_several(self) -> None:
        """Raise TypeError for an option that several locks at once cannot have: an order of arrival, and readers."""
        if self.fair:
            raise TypeError("fair=True is for one key of a lock table: several have no common line")
        if self.shared:
            raise TypeError("shared=True is for one key: acquire the shared locks one by one")

    def seconds_to_wait(self, blocking: bool, timeout: float | timedelta | None) -> float:
        """Return the seconds for which a call of `Mutex.acquire` waits: 0 if it does not, infinity if without limit.

        Args:
            blocking: Whether to wait at all.
            timeout: Seconds to wait, -1 for ever; None for the timeout of these options.

        Raises:
            TypeError: For a timeout that is not a number.
            ValueError: For a timeout with ``blocking=False``, or a negative one other than -1.
        """
        if not blocking and timeout is not None and timeout != FOREVER:
            msg = "can't specify a timeout for a non-blocking call"
            raise ValueError(msg)
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        if not blocking:
            return 0.0
        return math.inf if seconds == FOREVER else seconds


OPTIONS = tuple(LockOptions.__annotations__)[4:]
"""Names of the options: without the row, the model and the keys."""


def checked(model: type[Model], options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options that a caller gave, and return them as `LockOptions` stores them.

    Raises:
        TypeError: For a value of a wrong type, or an option that another one excludes.
        ValueError: For a value that no lock can have.
    """
    if options.get("shared") is True:
        for name in _ALONE:
            if options.get(name):
                msg = f"{name} is for a lock that is held alone: leave it out, or shared=True"
                raise TypeError(msg)
    given = {name: _checked(model, name, value) for name, value in options.items()}
    if given.get("must_exist") and given.get("delete_on_release"):
        raise TypeError("must_exist=True needs the row that delete_on_release=True deletes")
    return given


def _checked(model: type[Model], name: str, value: Any) -> Any:  # noqa: C901, PLR0911 - a case for each kind of option
    """Check one option, and return it as `LockOptions` stores it."""
    match name:
        case "lease":
            return check_lease(value)
        case "timeout":
            return FOREVER if value is None else check_timeout(value)
        case "poll":
            return _checked_poll(value)
        case "auto_renew" | "must_exist" | "delete_on_release" | "reentrant" | "shared":
            check_bool(name, value)
        case _ if value is None:
            return None
        case "max_hold" | "hold_at_least":
            return _positive(name, value)
        case "on_danger" | "on_lost":
            check_callable(name, value)
        case "owner":
            check_owner(value)
        case "data":
            return serialize_data(model, value)
        case "attributes":
            serialize_attributes(model, value)  # refuses wrong ones now
            return dict(value)
    return value


def _positive(name: str, value: object) -> float:
    seconds = check_duration(name, as_seconds(value))
    if seconds <= 0:
        msg = f"{name} must be above 0 seconds, or None, not {seconds}"
        raise ValueError(msg)
    return seconds


def _checked_poll(poll: object) -> tuple[float, float]:
    if not isinstance(poll, tuple) or len(poll) != 2:  # noqa: PLR2004 - a pair
        msg = f"poll is a tuple of the shortest and the longest wait, not {shown(poll)}"
        raise TypeError(msg)
    shortest, longest = (check_duration("poll", as_seconds(wait)) for wait in poll)
    if not 0 < shortest <= longest:
        msg = f"poll needs 0 < shortest <= longest seconds, not {(shortest, longest)}"
        raise ValueError(msg)
    return shortest, longest


def check_options(called: str, options: Iterable[str]) -> None:
    """Raise TypeError for an option that no lock has, as Python does for an unknown argument.

    ``called`` is the function that the user called, for the message.
    """
    for name in options:
        if name not in OPTIONS:
            msg = f"{called}() got an unexpected keyword argument {name!r}"
            raise TypeError(msg)


def check_several(called: str, keys: object) -> None:
    """Raise TypeError for a single key where several are expected: Python would iterate over the letters of a str.

    ``called`` is the function that the user called, for the message.
    """
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        msg = f"{called} takes several keys, as in {called}(['a', 'b']), not {shown(keys)}"
        raise TypeError(msg)


class Made:
    """Base class of objects that the user makes by a method, such as `Mutex.for_key`, and not by calling their class."""

    _made_by: ClassVar[str] = "{}.for_key(...)"
    """The call that makes one, for messages; the braces stand for the name of the class."""

    _makers: ClassVar[frozenset[str]] = frozenset()
    """Names of the methods that make an object of this very class, or of its kind.

    A subclass also inherits the methods that make objects of its base class; `_called` refuses these.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Raise TypeError, with the call to use: the constructor's arguments are private to the library, see `made`."""
        msg = f"{cls.__name__} has no public constructor: call {cls._made_by.format(cls.__name__)}"
        raise TypeError(msg)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: an acquisition belongs to one process."""
        made_by = self._made_by.format(type(self).__name__)
        raise TypeError(f"{self!r} cannot be pickled: make it where it is used, by {made_by}")

    @classmethod
    def _called(cls, name: str, options: Iterable[str]) -> None:
        """Refuse a call of an inherited method that makes no object of this class, or with an unknown option.

        Raises:
            TypeError: The message has ``name``, the method that the user called, not one that it calls.
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
    """Return a new object of a class that cannot be called, a subclass of `Made`. For the library itself."""
    maker: Any = kind
    new: K = object.__new__(maker)
    maker.__init__(new, *args, **kwargs)
    return new


def check_bool(name: str, value: object) -> None:
    """Raise TypeError for an option that is neither True nor False, such as ``"no"``, which would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")


def check_callable(name: str, value: object) -> None:
    """Raise TypeError for an option that the library is to call, and cannot."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {value!r}")


def check_owner(owner: object, name: str = "owner") -> None:
    """Refuse an owner, or another text of that name, that cannot be stored in a row.

    Raises:
        TypeError: If it is not a str.
        ValueError: If it is empty, or cannot be encoded in UTF-8.
    """
    if not isinstance(owner, str):
        msg = f"{name} must be a str, not {shown(owner)}"
        raise TypeError(msg)
    if not owner or any("\ud800" <= character <= "\udfff" for character in owner):
        msg = f"{name} must be a label of at least one character, in UTF-8, not {shown(owner)}"
        raise ValueError(msg)


def as_seconds(duration: Any) -> Any:
    """Return a timedelta in seconds, and anything else as it is, to be checked."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def check_number(name: str, value: object) -> float:
    """Return a number of seconds.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        msg = f"{name} must be a number of seconds, not {shown(value)}"
        raise TypeError(msg)
    if isinstance(value, float) and not math.isfinite(value):
        msg = f"{name} must be a finite number of seconds, not {shown(value)}"
        raise ValueError(msg)
    return value


def check_duration(name: str, value: object) -> float:
    """Return a duration in seconds, of at most 100 years. It may be negative.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is longer, or infinite or NaN.
    """
    seconds = check_number(name, value)
    if abs(seconds) > LONGEST_DURATION:
        msg = f"{name} must be at most {LONGEST_DURATION:.0f} seconds, which are 100 years, not {shown(value)}"
        raise ValueError(msg)
    return seconds


def check_retention(retention: object) -> None:
    """Refuse a retention, the seconds for which DynamoDB keeps a row after its claim ended, unless it is a duration from 0 on.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is negative, infinite, NaN or over 100 years.
    """
    if check_duration("retention", retention) < 0:
        msg = f"retention must not be negative, got {retention}"
        raise ValueError(msg)


def check_lease(lease: object) -> float:
    """Return a lease in seconds, which must be long enough to be renewed in time.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is too short, infinite, NaN or over 100 years.
    """
    value = check_duration("lease", as_seconds(lease))
    if value < SHORTEST_LEASE:
        msg = f"a lease under {SHORTEST_LEASE} s cannot be renewed in time, got {lease}"
        raise ValueError(msg)
    return value


def check_timeout(timeout: object) -> float:
    """Return a timeout in seconds, which must be one that `threading.Lock.acquire` would accept.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is negative and not -1, or infinite, NaN or over 100 years.
    """
    value = check_duration("timeout", as_seconds(timeout))
    if value < 0 and value != FOREVER:
        msg = f"timeout must be -1 (wait for ever), or not negative, got {timeout}"
        raise ValueError(msg)
    return value


def check_at_least(at_least: object, lease: float) -> float:
    """Return the ``at_least`` of `ensure_held` in seconds, which must be less than the lease.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is not from 0 to below the lease.
    """
    value = check_number("at_least", as_seconds(at_least))
    if not 0 <= value < lease:
        msg = f"at_least must be from 0 to below the lease, {lease}, not {at_least}"
        raise ValueError(msg)
    return value
