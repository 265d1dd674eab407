"""A mutex on whichever of several keys is free first."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from pynamodb_mutex._acquire import Acquisition
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._group import read_rows
from pynamodb_mutex._hold import Hold
from pynamodb_mutex._keys import check_key, key_of
from pynamodb_mutex._messages import shown, shown_all
from pynamodb_mutex._process import current_process
from pynamodb_mutex._repeat import persist
from pynamodb_mutex._terms import made
from pynamodb_mutex._waiting import LocalQueue
from pynamodb_mutex._wanted import Wanted
from pynamodb_mutex.mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex._process import Process
    from pynamodb_mutex._store import Store
    from pynamodb_mutex._terms import Options, Terms
    from pynamodb_mutex._waiting import Alarm, Steps
    from pynamodb_mutex.models import LockItem
    from pynamodb_mutex.mutex import OnLost

MOST = 100
"""Rows that DynamoDB reads in one request."""

_MOST_SHOWN = 3
"""Keys that a message spells out."""


class AnyQueue(LocalQueue[Wanted, Hold]):
    """Who of this process waits for any of the same keys. Many may hold one: none is the holder.

    Who holds a key is noted in the queue of that key, for those who want no other.
    """

    def note(self, holder: Hold) -> None:
        """Take note of a holder. The lock is held."""
        holder.wanted.key_queue.took(holder)

    def is_gone(self, holder: Hold) -> bool:
        """Forget a holder; return whether its key is nobody's here now. The lock is held."""
        queue = holder.wanted.key_queue
        was_the_holder = queue.holder is holder
        queue.left(holder)
        return was_the_holder


class AnyWanted(Wanted):
    """An acquisition of any of several keys that is asked for.

    Attributes:
        each: The same of each single key.
    """

    def __init__(
        self,
        terms: Terms,
        alternatives: Sequence[Terms],
        store: Store,
        process: Process,
        on_lost: OnLost,
    ) -> None:
        keys = frozenset(each.key for each in alternatives)
        super().__init__(terms, store, process, on_lost, process.queue(store, keys, AnyQueue))
        self.each = {
            each.key: Wanted(each, store, process, on_lost, self.queue) for each in alternatives
        }

    def at(self, other: Wanted) -> Wanted:
        """Return what is wanted of the row that another of the same queue holds."""
        return self.each[other.terms.key]


class AnyAcquisition(Acquisition):
    """An attempt to get one of several locks, until a deadline."""

    wanted: AnyWanted

    def __init__(self, wanted: AnyWanted, deadline: float) -> None:
        super().__init__(wanted, deadline)
        self._attempts = [Acquisition(each, deadline, self.effort) for each in wanted.each.values()]
        self._looked = False

    @property
    def blocker(self) -> Acquisition:
        """The attempt to get the lock whose claim ends first, as far as they were seen."""
        return min(self._attempts, key=self._free_at)

    @property
    def holder(self) -> Claim | None:
        """The claim on that lock."""
        return self.blocker.holder

    def _free_at(self, attempt: Acquisition) -> float:
        return attempt.watch.free_at(self.wanted.store.server.bounds)

    def _frees_at(self) -> float:
        return min(map(self._free_at, self._attempts))

    def _stalled_holder(self, alarm: Alarm) -> Wanted | None:
        """Return one of the holders, if a wait keeps all of them from giving the locks back."""
        stalled = None
        for wanted in self.wanted.each.values():
            stalled = wanted.stalled_holder(alarm)
            if stalled is None:
                break
        return stalled

    def look(self) -> Steps[Hold | None]:
        """Take one that is free, as far as one can see; by one request as a rule."""
        # at random, or all that come at once would try the same
        attempts = random.sample(self._attempts, len(self._attempts))
        # unless somebody in line has found them all held
        if not self._looked and self.wanted.queue.in_the_way is None:
            attempts.sort(key=_is_held_here)
            first = attempts.pop(0)
            hold = yield from first.look()
            if hold is not None or not attempts:
                self._looked = True
                return hold
        self._check_process()
        claims, received = yield from self._reading(
            # the first is consistent, for nobody shall wait for an unlocked key
            lambda: _read(
                self.wanted.store,
                [each.wanted.terms for each in attempts],
                consistent=not self._looked,
            )
        )
        self._looked = True
        for attempt, claim in zip(attempts, claims, strict=True):
            attempt.watch.see(claim, received)
        for attempt in attempts:
            if received >= self._free_at(attempt):
                hold = yield from attempt.take()
                if hold is not None:
                    return hold
        return None


def _is_held_here(attempt: Acquisition) -> bool:
    local = attempt.wanted.key_queue.holder
    return local is not None and local.held


def _read(
    store: Store, alternatives: Sequence[Terms], *, consistent: bool
) -> tuple[list[Claim], float]:
    """Read rows at once; return their claims in order, and the local time after the answer."""
    wanted = [(each.model, each.row) for each in alternatives]
    rows = read_rows(store, wanted, consistent=consistent)
    return [store.rows.claim(row) for row in rows], local_clock().now()


class AnyOf(Mutex):
    """A mutex on whichever of several keys is free first.

    All that `~pynamodb_mutex.Mutex` has, for the key that it got: `key` says which. Before the first acquisition `key`
    only describes the alternatives. Fencing tokens compare within one key.

    Threads of one process that wait for the same set of keys queue up, first come first served.
    Between processes, and between different sets of keys, nobody is promised a turn.
    """

    _made_by = "Mutex.any_of([...])"
    _makers = frozenset({"any_of"})

    def __init__(self, terms: Terms, alternatives: Sequence[Terms]) -> None:
        """Use `Mutex.any_of`."""
        super().__init__(terms)
        self._alternatives = alternatives

    @classmethod
    def of(cls, keys: Iterable[str], model: type[LockItem], options: Options) -> AnyOf:
        """See `Mutex.any_of`."""
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            msg = f"any_of takes several keys, as in any_of(['a', 'b']), not {shown(keys)}"
            raise TypeError(msg)
        unique = list(dict.fromkeys(check_key(key) for key in keys))
        if not 1 <= len(unique) <= MOST:
            msg = f"any_of takes 1 to {MOST} keys, not {len(unique)}"
            raise ValueError(msg)
        first = ", ".join(unique[:_MOST_SHOWN])
        more = f", ... ({len(unique)} keys)" if len(unique) > _MOST_SHOWN else ""
        terms, each = any_terms(unique, f"any of {first}{more}", model, options)
        return made(cls, terms, each)

    @property
    def key(self) -> str:
        """The key of the last acquisition; before the first, a description of the alternatives."""
        hold = self._mine()
        return self._terms.key if hold is None else hold.terms.key

    @property
    def keys(self) -> tuple[str, ...]:
        """The alternatives, each once."""
        return tuple(each.key for each in self._alternatives)

    def locked(self) -> bool:
        """Whether all the keys are held, by whomever; one consistent BatchGetItem.

        Raises:
            InvalidRowError: If one of the rows is not a lock's, or its lock attributes cannot be right.
            pynamodb.exceptions.GetError: If DynamoDB refuses or cannot be reached.
        """
        store = current_process().store(self._terms.model)
        claims, received = persist(lambda: _read(store, self._alternatives, consistent=True), 0.0)
        return all(claim.is_held(received, store.server.bounds) for claim in claims)

    def force_release(self) -> NoReturn:
        """Refuse: which claim is to be broken is not clear.

        Raises:
            TypeError: Always. `~pynamodb_mutex.LockItem.force_release` breaks the claim on one key.
        """
        msg = (
            f"which of {shown_all(self.keys)}? Use {self._terms.model.__name__}.force_release(key)"
        )
        raise TypeError(msg)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: an acquisition belongs to one process."""
        msg = f"a {type(self).__name__} cannot be pickled: make it where it is used"
        raise TypeError(msg)

    def _another(self) -> Mutex:
        return made(type(self), self._terms, self._alternatives)

    def _acquisition(self, deadline: float) -> Acquisition:
        process = current_process()
        store, on_lost = process.store(self._terms.model), self._teller()
        wanted = AnyWanted(self._terms, self._alternatives, store, process, on_lost)
        return AnyAcquisition(wanted, deadline)


def any_terms(
    keys: Sequence[str], name: str, model: type[LockItem], options: Options
) -> tuple[Terms, list[Terms]]:
    """Return the terms that several keys have in common, under a name for people, and those of each."""
    terms = Mutex.for_key(keys[0], model=model, **options)._terms
    each = [terms._replace(key=key, row=key_of(terms.model, key)) for key in keys]
    return terms._replace(key=name), each
