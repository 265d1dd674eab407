"""Parses and evaluates conditions, updates and projections against one row, as DynamoDB does.

It refuses only those invalid expressions that a correct caller may produce. It does not check for reserved words,
redundant parentheses, the order of the bounds of BETWEEN, and the length and depth of expressions.

`expressions_of` is the entrance: it returns the parsed expressions of a request. `documents` has the operations on
values; `table` and `pages` decide which rows the expressions are applied to.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, NoReturn

from dev.simulation.documents import (
    Path,
    appended,
    begins_with,
    calculated,
    combined,
    contains,
    drop,
    is_type,
    projected,
    put,
    size,
    taken_out,
    value_at,
)
from dev.simulation.values import (
    COMPARISONS,
    SETS,
    Item,
    UnfitError,
    Value,
    added,
    canonical_item,
    copy_item,
    copy_value,
    invalid,
    subtracted,
)

Values = Mapping[str, Value]
"""Values of a request's placeholders, by placeholder."""
Test = Callable[[Mapping[str, Value], Values], bool]
"""A parsed condition: whether a row satisfies it, given the values of the placeholders."""
Reading = Callable[[Mapping[str, Value], Values], Value | None]
"""A parsed operand: its value for a row, given the values of the placeholders; None if there is none."""


# -- parsed expressions -------------------------------------------------------------------------
#
# Closures. They depend on the text, the names and the kinds of the values alone, not on the values. So a template
# that is sent again and again with other values is parsed once.


class Conjunct(NamedTuple):
    """A comparison of an attribute with values that must hold for the whole condition to hold.

    Attributes:
        operator: The operator, such as ``<``, or the name of a function.
        name: Name of the attribute.
        placeholders: Placeholders of the values.
    """

    operator: str
    name: str
    placeholders: list[str]


class Condition(NamedTuple):
    """A condition of a write, a filter, or a condition on keys.

    Attributes:
        holds: Returns whether the condition holds for a row and values.
        conjuncts: Comparisons that must hold in any case; those below OR and NOT are not among them.
        operators: All operators and functions in it.
        names: Names of all attributes in it.
    """

    holds: Test
    conjuncts: list[Conjunct]
    operators: list[str]
    names: frozenset[str]


class Update(NamedTuple):
    """The changes of an update, in the order in which they are made.

    Attributes:
        changes: The paths to set, with their new values. ADD and DELETE are among them; a value of None removes the
            path.
        removed: The paths to remove.
        paths: All of these paths.
        names: Names of the attributes that are changed.
        nested: Names of the attributes of which only a part is changed.
    """

    changes: list[tuple[Path, Reading]]
    removed: list[Path]
    paths: list[Path]
    names: frozenset[str]
    nested: list[str]


NO_UPDATE = Update([], [], [], frozenset(), [])


class Expressions(NamedTuple):
    """The parsed expressions of one request; None, or `NO_UPDATE`, for those that it does not have."""

    condition: Condition | None
    update: Update
    filter: Condition | None
    key_condition: Condition | None
    projection: list[Path] | None


_PARAMETERS = (
    "ConditionExpression",
    "UpdateExpression",
    "FilterExpression",
    "KeyConditionExpression",
    "ProjectionExpression",
)
_NAMES, _VALUES = "ExpressionAttributeNames", "ExpressionAttributeValues"
_ABOUT_EXPRESSIONS = frozenset({*_PARAMETERS, _NAMES, _VALUES})
_NO_EXPRESSIONS = Expressions(None, NO_UPDATE, None, None, None)


def expressions_of(request: Mapping[str, Any]) -> tuple[Expressions, Values]:
    """Return the parsed expressions of a request, and the values of their placeholders in canonical form."""
    if _ABOUT_EXPRESSIONS.isdisjoint(request):
        return _NO_EXPRESSIONS, {}
    given, names = request.get(_VALUES), request.get(_NAMES)
    values = {} if given is None else canonical_item(given)
    return (
        _expressions(
            tuple([request.get(parameter) for parameter in _PARAMETERS]),
            None if names is None else tuple(names.items()),
            None if given is None else tuple([(name, *value) for name, value in values.items()]),
        ),
        values,
    )


@functools.lru_cache(maxsize=1024)
def _expressions(
    texts: tuple[str | None, ...],
    names: tuple[tuple[str, str], ...] | None,
    kinds: tuple[tuple[str, str], ...] | None,
) -> Expressions:
    """Parse the expressions of a request.

    Args:
        texts: The expressions in the order of `_PARAMETERS`; None for those that it does not have.
        names: The names of attributes, by placeholder; None if the request has none.
        kinds: The kinds of the values, by placeholder; None if the request has none.
    """
    for parameter, given, sign in ((_NAMES, names, "#"), (_VALUES, kinds, ":")):
        if given is None:
            continue
        if not any(texts):
            raise invalid(f"{parameter} can only be specified when using expressions")
        if not given:
            raise invalid(f"{parameter} must not be empty")
        for placeholder, _ in given:
            if not re.fullmatch(rf"{sign}\w+", placeholder):
                raise invalid(
                    f'{parameter} contains invalid key: Syntax error; key: "{placeholder}"'
                )
    placeholders = Placeholders(dict(names or ()), dict(kinds or ()))
    condition, update, filtering, on_key, projection = (
        None if text is None else Parser(f"Invalid {parameter}: ", text, placeholders)
        for parameter, text in zip(_PARAMETERS, texts, strict=True)
    )
    read = Expressions(
        None if condition is None else condition.condition(),
        NO_UPDATE if update is None else update.update(),
        None if filtering is None else filtering.condition(),
        None if on_key is None else on_key.condition(),
        None if projection is None else projection.projection(),
    )
    for parameter, given in ((_NAMES, names), (_VALUES, kinds)):
        unused = [each for each, _ in given or () if each not in placeholders.used]
        if unused:
            raise invalid(
                f"Value provided in {parameter} unused in expressions: keys: {{{', '.join(unused)}}}"
            )
    return read


class Placeholders:
    """The placeholders of a request.

    Attributes:
        names: Names of attributes, by placeholder.
        kinds: Kinds of values, by placeholder.
        used: The placeholders that some expression has used; DynamoDB refuses a request with others.
    """

    def __init__(self, names: Mapping[str, str], kinds: Mapping[str, str]) -> None:
        self.names = names
        self.kinds = kinds
        self.used: set[str] = set()


# -- the parser ---------------------------------------------------------------------------------

_TOKEN = re.compile(r"\s*(?:([#:]?\w+)|(<>|<=|>=|[-=<>+(),.\[\]]))\s*")
_ORDERED = frozenset({"S", "N", "B"})
_KINDS = frozenset({"S", "N", "B", "SS", "NS", "BS", "M", "L", "BOOL", "NULL"})


_FUNCTIONS: dict[str, tuple[Callable[[Value | None, Value | None], bool], frozenset[str]]] = {
    "attribute_type": (is_type, frozenset({"S"})),
    "begins_with": (begins_with, frozenset({"S", "B"})),
    "contains": (contains, _KINDS),
}
"""Functions of two operands in conditions, and the kinds that a placeholder may have as the second operand."""


def _applied(
    test: Callable[[Value | None, Value | None], bool], one: Reading, other: Reading
) -> Test:
    return lambda item, values: test(one(item, values), other(item, values))


# explicit loops: `any` and `all` with a generator take twice the time, and this is called for each request


def _any_of(parts: Sequence[Test]) -> Test:
    def holds(item: Mapping[str, Value], values: Values) -> bool:
        for part in parts:  # noqa: SIM110 - see above
            if part(item, values):
                return True
        return False

    return holds


def _all_of(parts: Sequence[Test]) -> Test:
    def hold(item: Mapping[str, Value], values: Values) -> bool:
        for part in parts:  # noqa: SIM110 - see above
            if not part(item, values):
                return False
        return True

    return hold


def _written(path: Path) -> str:
    """Write a path as DynamoDB does."""
    steps = [f"[{step}]" if isinstance(step, int) else step for step in path]
    return f"[{', '.join(steps)}]"


class _Operand(NamedTuple):
    """A parsed operand.

    Attributes:
        read: Returns its value.
        path: Its path, if it is one.
        placeholder: Its placeholder, if it is one.
        kind: The kind of its value, if that is the same for each row; else None.
    """

    read: Reading
    path: Path | None = None
    placeholder: str | None = None
    kind: str | None = None


class Parser:
    """A parser of one expression, by recursive descent.

    Args:
        prefix: Beginning of the message of a refusal.
        text: The expression.
        placeholders: The placeholders of the request; those that the expression uses are noted there.
    """

    def __init__(self, prefix: str, text: str, placeholders: Placeholders) -> None:
        self._prefix = prefix
        self._text = text
        self._placeholders = placeholders
        self._conjuncts: list[Conjunct] = []
        self._operators: list[str] = []
        self._named: set[str] = set()
        self._tokens = [*self._split(text), ""]
        self._next = 0
        if not text:
            self._refuse("The expression can not be empty;")

    def _split(self, text: str) -> Iterator[str]:
        end = 0
        while end < len(text):
            found = _TOKEN.match(text, end)
            if found is None:
                self._refuse(f"Syntax error; near: {text[end:]!r}")
            yield found[1] or found[2]
            end = found.end()

    def _refuse(self, message: str) -> NoReturn:
        raise invalid(self._prefix + message)

    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _takes(self, *tokens: str) -> str:
        """Take the next token if it is one of these, keywords in any case; return which one."""
        token = self._peek().upper()
        if token not in tokens:
            return ""
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            self._fail()

    def _fail(self) -> NoReturn:
        self._refuse(f"Syntax error; token: {self._peek() or '<EOF>'!r}, in: {self._text!r}")

    def _is_function(self, *names: str) -> bool:
        return self._peek() in names and self._peek(1) == "("

    # -- operands -------------------------------------------------------------------------------

    def _path(self) -> Path:
        path: list[str | int] = [self._name()]
        while sign := self._takes(".", "["):
            if sign == ".":
                path.append(self._name())
                continue
            if not self._peek().isdecimal():
                self._fail()
            path.append(int(self._take()))
            self._expect("]")
        self._named.add(str(path[0]))
        return tuple(path)

    def _name(self) -> str:
        token = self._peek()
        if token.startswith("#"):
            name = self._placeholders.names.get(token)
            if name is None:
                self._refuse(
                    "An expression attribute name used in the document path is not defined; "
                    f"attribute name: {token}"
                )
            self._placeholders.used.add(token)
        elif re.fullmatch(r"[A-Za-z]\w*", token):
            name = token
        else:
            self._fail()
        self._next += 1
        return name

    def _operand(self) -> _Operand:
        if self._peek().startswith(":"):
            placeholder = self._take()
            kind = self._placeholders.kinds.get(placeholder)
            if kind is None:
                self._refuse(
                    "An expression attribute value used in expression is not defined; "
                    f"attribute value: {placeholder}"
                )
            self._placeholders.used.add(placeholder)
            return _Operand(
                lambda _, values: values[placeholder], placeholder=placeholder, kind=kind
            )
        path = self._path()
        if len(path) == 1:
            name: Any = path[0]
            return _Operand(lambda item, _: item.get(name), path)
        return _Operand(lambda item, _: value_at(path, item), path)

    def _check_kinds(self, function: str, allowed: frozenset[str], *operands: _Operand) -> None:
        """Refuse operands of a kind that a function or operator never accepts, whatever the row is."""
        for operand in operands:
            if operand.kind is not None and operand.kind not in allowed:
                self._refuse(
                    "Incorrect operand type for operator or function; "
                    f"operator or function: {function}, operand type: {operand.kind}"
                )

    # -- conditions -----------------------------------------------------------------------------

    def condition(self) -> Condition:
        holds = self._either()
        if self._peek():
            self._fail()
        return Condition(holds, self._conjuncts, self._operators, frozenset(self._named))

    def _either(self) -> Test:
        known = len(self._conjuncts)
        parts = [self._both()]
        while self._takes("OR"):
            parts.append(self._both())
        if len(parts) == 1:
            return parts[0]
        self._operators.append("OR")
        # None of the comparisons below an OR has to hold. `_negated` drops those below a NOT for the same reason.
        del self._conjuncts[known:]
        return _any_of(parts)

    def _both(self) -> Test:
        parts = [self._negated()]
        while self._takes("AND"):
            parts.append(self._negated())
        if len(parts) == 1:
            return parts[0]
        return _all_of(parts)

    def _negated(self) -> Test:
        if self._takes("NOT"):
            known = len(self._conjuncts)
            part = self._negated()
            self._operators.append("NOT")
            del self._conjuncts[known:]
            return lambda item, values: not part(item, values)
        if self._takes("("):
            inner = self._either()
            self._expect(")")
            return inner
        if self._is_function("attribute_exists", "attribute_not_exists"):
            function = self._take()
            self._operators.append(function)
            exists = function == "attribute_exists"
            self._expect("(")
            path = self._path()
            self._expect(")")
            if len(path) == 1:
                name: Any = path[0]
                return lambda item, _: (name in item) is exists
            return lambda item, _: (value_at(path, item) is not None) is exists
        if self._is_function(*_FUNCTIONS):
            return self._function(self._take())
        return self._comparison()

    def _function(self, name: str) -> Test:
        self._expect("(")
        one = self._sized()
        self._expect(",")
        other = self._sized()
        self._expect(")")
        test, allowed = _FUNCTIONS[name]
        self._check_kinds(name, allowed, other)
        if name == "begins_with":
            self._check_kinds(name, allowed, one)
        self._note(name, one, other)
        return _applied(test, one.read, other.read)

    def _note(self, operator: str, first: _Operand, *others: _Operand) -> None:
        """Add a comparison to the operators and, if it compares one attribute with values, to the conjuncts."""
        if first.path is not None and any(first.path == other.path for other in others):
            self._refuse(
                "The first operand must be distinct from the remaining operands for this operator "
                f"or function; operator: {operator}, first operand: {_written(first.path)}"
            )
        self._operators.append(operator)
        paths = [each.path for each in (first, *others) if each.path is not None]
        placeholders = [each.placeholder for each in (first, *others) if each.placeholder]
        if len(paths) == 1 and len(paths[0]) == 1 and len(placeholders) == len(others):
            self._conjuncts.append(Conjunct(operator, str(paths[0][0]), placeholders))

    def _sized(self) -> _Operand:
        """Parse an operand of a condition, which may be a ``size(...)``."""
        if not self._is_function("size"):
            return self._operand()
        self._take()
        self._expect("(")
        operand = self._operand()
        self._expect(")")
        self._check_kinds("size", _KINDS - {"N", "BOOL", "NULL"}, operand)
        self._operators.append("size")
        return _Operand(lambda item, values: size(operand.read(item, values)), kind="N")

    def _comparison(self) -> Test:
        one = self._sized()
        if sign := self._takes(*COMPARISONS):
            other = self._sized()
            if sign not in {"=", "<>"}:
                self._check_kinds(sign, _ORDERED, one, other)
            self._note(sign, one, other)
            return _applied(COMPARISONS[sign], one.read, other.read)
        if self._takes("BETWEEN"):
            low = self._sized()
            self._expect("AND")
            high = self._sized()
            self._check_kinds("BETWEEN", _ORDERED, one, low, high)
            self._note("BETWEEN", one, low, high)
            at_most = COMPARISONS["<="]

            def between(item: Mapping[str, Value], values: Values) -> bool:
                value = one.read(item, values)
                return at_most(low.read(item, values), value) and at_most(
                    value, high.read(item, values)
                )

            return between
        self._expect("IN")
        self._expect("(")
        options = [self._sized()]
        while self._takes(","):
            options.append(self._sized())
        self._expect(")")
        self._note("IN", one, *options)

        def among(item: Mapping[str, Value], values: Values) -> bool:
            value = one.read(item, values)
            return value is not None and value in [option.read(item, values) for option in options]

        return among

    # -- projections ----------------------------------------------------------------------------

    def projection(self) -> list[Path]:
        paths = [self._path()]
        while self._takes(","):
            paths.append(self._path())
        if self._peek():
            self._fail()
        self._check_overlaps(paths)
        return paths

    # -- updates --------------------------------------------------------------------------------

    def update(self) -> Update:
        changes: list[tuple[Path, Reading]] = []
        removed: list[Path] = []
        seen: set[str] = set()
        while section := self._takes("SET", "REMOVE", "ADD", "DELETE"):
            if section in seen:
                self._refuse(
                    f'The "{section}" section can only be used once in an update expression;'
                )
            seen.add(section)
            while True:
                path = self._path()
                if section == "REMOVE":
                    removed.append(path)
                elif section == "SET":
                    self._expect("=")
                    changes.append((path, self._sum().read))
                else:
                    changes.append((path, self._combined(section, path)))
                if not self._takes(","):
                    break
        if self._peek() or not seen:
            self._fail()
        paths = [*(path for path, _ in changes), *removed]
        self._check_overlaps(paths)
        # Indexes mean the list as it was before the update. New elements beyond its end are appended in the order of
        # their indexes. Elements are removed from the end, so that one removal does not move the next one. Paths that
        # do not overlap or conflict can be compared: where they differ, both have a name or both an index.
        changes.sort(key=lambda change: change[0])
        removed.sort(reverse=True)
        names = frozenset(str(path[0]) for path in paths)
        nested = sorted({str(path[0]) for path in paths if len(path) > 1})
        return Update(changes, removed, paths, names, nested)

    def _combined(self, section: str, path: Path) -> Reading:
        operand = self._operand()
        if operand.placeholder is None:
            self._fail()
        placeholder = operand.placeholder
        self._check_kinds(section, SETS | {"N"} if section == "ADD" else SETS, operand)
        combine = combined if section == "ADD" else taken_out
        return lambda item, values: combine(value_at(path, item), values[placeholder])

    def _sum(self) -> _Operand:
        one = self._term()
        sign = self._takes("+", "-")
        if not sign:
            return one
        other = self._term()
        self._check_kinds(sign, frozenset({"N"}), one, other)
        calculate = added if sign == "+" else subtracted
        return _Operand(
            lambda item, values: calculated(
                calculate, one.read(item, values), other.read(item, values)
            ),
            kind="N",
        )

    def _term(self) -> _Operand:
        if self._takes("("):
            inner = self._sum()
            self._expect(")")
            return inner
        if self._is_function("if_not_exists"):
            self._take()
            self._expect("(")
            path = self._path()
            self._expect(",")
            default = self._sum().read
            self._expect(")")

            def present(item: Mapping[str, Value], values: Values) -> Value | None:
                value = value_at(path, item)
                return default(item, values) if value is None else value

            return _Operand(present)
        if self._is_function("list_append"):
            self._take()
            self._expect("(")
            one = self._sum()
            self._expect(",")
            other = self._sum()
            self._expect(")")
            self._check_kinds("list_append", frozenset({"L"}), one, other)
            return _Operand(
                lambda item, values: appended(one.read(item, values), other.read(item, values)),
                kind="L",
            )
        operand = self._operand()
        if operand.path is None:
            return operand

        def required(item: Mapping[str, Value], values: Values) -> Value:
            value = operand.read(item, values)
            if value is None:
                raise UnfitError(
                    "The provided expression refers to an attribute that does not exist in the item"
                )
            return value

        return _Operand(required)

    def _check_overlaps(self, paths: list[Path]) -> None:
        for one, other in combinations(paths, 2):
            shared = min(len(one), len(other))
            apart = next((at for at in range(shared) if one[at] != other[at]), None)
            trouble = ""
            if apart is None:
                trouble = "overlap with each other; must remove or rewrite one of these paths; "
            elif type(one[apart]) is not type(other[apart]):
                trouble = "conflict with each other; "
            if trouble:
                self._refuse(
                    f"Two document paths {trouble}path one: {_written(one)}, path two: {_written(other)}"
                )


# -- applying expressions to a row ---------------------------------------------------------------


def updated(item: Item, update: Update, values: Values) -> Item:
    """Return the row after an update. The old row stays as it is; unchanged values are shared with it."""
    # all operands are evaluated first: they mean the row as it was, whatever else the update changes
    new = [(path, operand(item, values)) for path, operand in update.changes]
    item = dict(item)
    for name in update.nested:
        if name in item:
            # `put` and `drop` change a document in place, and the old row must keep its own
            item[name] = copy_value(item[name])
    gone = update.removed
    for path, value in new:
        if value is None:
            # DELETE has left an empty set: it is removed, in the order of `removed`
            gone = sorted([*gone, path], reverse=True)
        else:
            put(item, path, value)
    for path in gone:
        drop(item, path)
    return item


def shown(item: Item, expressions: Expressions) -> Item:
    """Return a copy of the part of a row that a read returns."""
    if expressions.projection is not None:
        item = projected(item, expressions.projection)
    return copy_item(item)
