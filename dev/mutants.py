"""Mutation testing by mutmut: all of the rules and requests, and a drawn sample of the operations (make mutants).

mutmut changes one thing of one function at a time, and runs the tests that call this function, on the simulated engine.
A change of a rule or request that no test notices must be in survivors.txt, with the reason why nothing can show it. Of the
drawn changes of operations, whose messages and real sockets are tried elsewhere, enough must be noticed. What is changed, and
by which tests it must be noticed, is in pyproject.toml.
"""

from __future__ import annotations

import argparse
import fnmatch
import random
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libcst as cst
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation import file_mutation, mutators, trampoline
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant

ALL = (
    "pynamodb_mutex._lock.protocol.*",
    "pynamodb_mutex._fair.waiting_line.*",
    "pynamodb_mutex._once.rows.*",
    "pynamodb_mutex._shared.readers.*",
    "pynamodb_mutex.*.requests.*",
)
"""Patterns of the rules and requests; all else that is changed are operations."""
ACCEPTED = Path(__file__).with_name("survivors.txt")
NOTICED = {"killed", "timeout", "caught by type check"}


def _is_computed(node: cst.CSTNode) -> bool:
    """Return whether a function is one that mutmut leaves out for its decorator: a property, or a `Lazy` template."""
    return isinstance(node, cst.FunctionDef) and any(
        isinstance(each.decorator, cst.Name)
        and each.decorator.value in {"property", "Lazy", "by_kind"}
        for each in node.decorators
    )


def _fit_mutmut() -> None:
    """Let mutmut change properties, too: most requests are templates made by one. And let it live with greenlets."""
    visitor = file_mutation.MutationVisitor
    skips, arrange = visitor._skip_node_and_children, file_mutation.function_trampoline_arrangement

    def arranged(function: cst.FunctionDef, *how: Any, **more: Any) -> Any:
        before, (first, *copies), after, names = arrange(function, *how, **more)
        if _is_computed(function):  # mutmut calls the copies as plain functions
            copies = [each.with_changes(decorators=[]) for each in copies]
        return before, [first, *copies], after, names

    # which mutant called which is not asked for; kept in context variables, it would not survive the simulation's greenlets
    trampoline.MutmutCallStack = SimpleNamespace(
        get=lambda: (None, 0), set=lambda _: None, reset=lambda _: None
    )
    # asking the environment at each call would take half of the time
    trampoline.get_mutant_under_test = lambda: trampoline._mutant_under_test or ""
    # of a text that has changed in one way, others show no more
    texts = file_mutation.mutation_operators.index((cst.BaseString, mutators.operator_string))
    file_mutation.mutation_operators[texts] = (
        cst.BaseString,
        lambda node: islice(mutators.operator_string(node), 1),
    )
    visitor._skip_node_and_children = lambda self, node: (
        not _is_computed(node) and skips(self, node)
    )
    file_mutation.function_trampoline_arrangement = arranged


def _results() -> dict[str, tuple[str, Path]]:
    """Return of each mutant what became of it, and its file."""
    found = {}
    for path in mutmut.walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for name, code in data.exit_code_by_key.items():
            found[name] = mutmut.status_by_exit_code[code], path
    return found


def _change(name: str, path: Path) -> str:
    """Return what a mutant changes: its function, the lines without it and those with it."""
    lines = get_diff_for_mutant(name, path=path).splitlines()
    changed = [each for each in lines if each[:1] in {"-", "+"} and each[:3] not in {"---", "+++"}]
    function = (
        name.rpartition("__mutmut_")[0].replace("ǁ", ".").replace(".x.", ".").replace(".x_", ".")
    )
    return "\n".join([function, *(f"{each[0]} {each[1:].strip()}" for each in changed)])


def _idle() -> list[str]:
    """Return the patterns, those above and in pyproject.toml, that fit no module any more."""
    files = [path.as_posix() for path in mutmut.walk_mutatable_files()]
    modules = [file.removesuffix("py").replace("/", ".") for file in files]
    names = dict.fromkeys(config().only_mutate, files) | dict.fromkeys(ALL, modules)
    return [pattern for pattern, found in names.items() if not fnmatch.filter(found, pattern)]


def _accepted() -> set[str]:
    """Return the changes in the file of accepted survivors: blocks of lines, each after the reason for it."""
    blocks = ACCEPTED.read_text(encoding="utf-8").split("\n\n")
    lines = [[line for line in block.splitlines() if line[:1] != "#"] for block in blocks]
    return {"\n".join(each) for each in lines if each}


def main() -> int:
    """Run the mutants; fail if one of the rules survived that is not accepted, or too many of the operations did."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--sample", type=int, default=300, help="mutants of operations (300)")
    parser.add_argument(
        "--at-least", type=float, default=85, help="percent of those that must be noticed (85)"
    )
    parser.add_argument("--jobs", type=int, help="mutants at a time")
    parser.add_argument("only", nargs="*", default=ALL, help="patterns of mutants, in place of all")
    options = parser.parse_args()
    if idle := _idle():
        parser.error(f"no module fits {', '.join(idle)}")
    print(f"seed {options.seed}")
    _fit_mutmut()
    mutmut._run(options.only, options.jobs)
    rules = {name for pattern in ALL for name in fnmatch.filter(_results(), pattern)}
    if options.sample:
        operations = sorted(_results().keys() - rules)
        drawn = random.Random(options.seed).sample(operations, options.sample)
        mutmut._run(drawn, options.jobs)
    results = {name: each for name, each in _results().items() if each[0] != "not checked"}
    unnoticed = {n: _change(n, path) for n, (s, path) in results.items() if s not in NOTICED}
    accepted = _accepted()
    unexplained = {n: change for n, change in unnoticed.items() if change not in accepted}
    print("\n\n".join(["", *sorted(set(unexplained.values())), ""]))
    print(", ".join(f"{n} {s}" for s, n in Counter(s for s, _ in results.values()).items()))
    of_rules, of_operations = rules & unexplained.keys(), unexplained.keys() - rules
    tried = len(results.keys() - rules)
    noticed = 100 * (1 - len(of_operations) / tried) if tried else 100.0
    print(f"{len(unnoticed) - len(unexplained)} survivors are accepted")
    print(
        f"{len(of_rules)} of rules and requests are not; {noticed:.1f} % of {tried} changes of operations were noticed"
    )
    return 1 if of_rules or noticed < options.at_least else 0


if __name__ == "__main__":
    sys.exit(main())
