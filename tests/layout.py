"""Check the layout of src/packhorse: sizes of folders, module names, the store contract, forwarding methods.

`make check` runs it as `python -m tests.layout`. Each rule has a `limit` that fails the check and a `target` that the
project works towards. A limit above its target is a ratchet: lower it when the count falls, never raise it. The limit
of lines is what the tree has: only a new feature raises it, by what it needs, and its commit says so.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src/packhorse"

AGREED_NOUNS = frozenset(
    {"batching", "feed", "formatting", "gc_tuning", "keyring", "seed", "setting", "string", "thing"}
)
"""Names that end like a gerund or a participle and are the common noun for what the module holds."""

BAGS = frozenset({"common", "helper", "helpers", "misc", "util", "utils"})

_RENAMED = """
    alarms answers api_calls bucket callers card concurrent differences door duty earlier errands facts figures
    garbage gate given group handle heir journey kernel kept link many messenger mistakes neighbours overseer
    patience plain presence readable redelivery resident reviver scribe secrecy settle shapes shown sparks spellings
    strays tags targets terms timetable told tools troubles trust upkeep vitals wire words
"""
OLD_NAMES = frozenset(_RENAMED.split())
"""Module names that were replaced because a reader had to learn them."""


class Rule(NamedTuple):
    what: str
    limit: int
    target: int
    fix: str


RULES: Mapping[str, Rule] = {
    "modules": Rule("modules", 290, 264, "merge a small module into its neighbour"),
    "lines": Rule("lines of Python", 58_000, 49_900, "delete what nothing needs, and merge what exists twice"),
    "folder": Rule("Python files in one folder", 22, 22, "make subfolders, or merge small modules"),
    "contract": Rule("methods in the store contract", 53, 53, "write it as a collection on top of the records"),
    "names": Rule("banned module names", 0, 0, "use the noun that FastAPI, Django or Celery would use"),
    "forwards": Rule("forwarding methods outside the store class", 0, 0, "call the function where it is needed"),
    "store forwards": Rule("forwarding methods in one store class", 0, 0, "write the body into the method"),
    "docstrings": Rule("modules whose first line says nothing", 0, 0, "start it with a docstring: what it is for"),
}


class Finding(NamedTuple):
    """What one rule counted, and where."""

    number: int
    places: tuple[str, ...]


Method = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    path: Path
    tree: ast.Module
    lines: int


def parse(source: Path) -> list[Module]:
    return [
        Module(path.relative_to(source), ast.parse(text), len(text.splitlines()))
        for path in sorted(source.rglob("*.py"))
        for text in (path.read_text(),)
    ]


def measure(source: Path) -> dict[str, Finding]:
    modules = parse(source)
    folders = _folders(modules)
    contract = _contract(modules)
    names = [str(each.path) for each in modules if is_banned(each.path.stem)]
    outside: list[str] = []
    inside: Counter[str] = Counter()
    for module, name in _forwards(modules):
        if _is_store_class(module.path):
            inside[str(module.path)] += 1
        else:
            outside.append(f"{module.path}: {name}")
    silent = [str(each.path) for each in modules if each.tree.body and not _first_line(each.tree)]
    return {
        "modules": Finding(len(modules), ()),
        "lines": Finding(sum(each.lines for each in modules), ()),
        "folder": Finding(
            folders[0][0], tuple(f"{folder}: {n}" for n, folder in folders if n > RULES["folder"].target)
        ),
        "contract": Finding(len(contract), tuple(contract)),
        "names": Finding(len(names), tuple(names)),
        "forwards": Finding(len(outside), tuple(outside)),
        "store forwards": Finding(max(inside.values(), default=0), tuple(f"{path}: {n}" for path, n in inside.items())),
        "docstrings": Finding(len(silent), tuple(silent)),
    }


def _first_line(tree: ast.Module) -> str:
    return (ast.get_docstring(tree, clean=False) or "").split("\n")[0].strip()


def is_banned(name: str) -> bool:
    """Whether a module may not have this name: a gerund, a participle, a bag of anything, or one that was replaced."""
    if name in AGREED_NOUNS:
        return False
    return name in BAGS or name in OLD_NAMES or name.endswith(("ing", "ed"))


def _folders(modules: list[Module]) -> list[tuple[int, str]]:
    """Python files per folder, the fullest first."""
    return sorted(
        ((n, str(folder)) for folder, n in Counter(each.path.parent for each in modules).items()), reverse=True
    )


def _contract(modules: list[Module]) -> list[str]:
    """Public methods of the protocol `Store`, with those of the protocols it is put together from."""
    classes = {
        each.name: each
        for module in modules
        if module.path.parent == Path("store")
        for each in module.tree.body
        if isinstance(each, ast.ClassDef)
    }
    names: set[str] = set()
    waiting, seen = ["Store"], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in classes:
            continue
        seen.add(name)
        names |= {each.name for each in _public_methods(classes[name])}
        waiting += [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
    return sorted(names)


def _public_methods(where: ast.ClassDef) -> Iterator[Method]:
    for each in where.body:
        if isinstance(each, Method) and not each.name.startswith("_"):
            yield each


def _is_store_class(path: Path) -> bool:
    """The one module per engine that may pass calls on: it shows where each part of the contract is implemented."""
    return path.name == "store.py" and path.parent.parent == Path("store")


def _forwards(modules: list[Module]) -> Iterator[tuple[Module, str]]:
    for module in modules:
        if module.path.parts[0] != "store":
            continue
        for each in ast.walk(module.tree):
            if isinstance(each, ast.ClassDef):
                yield from (
                    (module, f"{each.name}.{method.name}") for method in _public_methods(each) if is_forward(method)
                )


def is_forward(method: Method) -> bool:
    """Whether the whole body is one call of a function elsewhere, with the method's own parameters, unchanged.

    These are: `await self._read(module.name, key)`, `self._write(lambda db: module.name(db, key, self.now()))`,
    `module.name(self._link, key)`, and `self._other.name(key)` in a method that has the same name. What passes
    anything else adds something, and a method without parameters or with a decorator is not looked at.
    """
    body = [each for each in method.body if not _is_docstring(each)]
    arguments = method.args
    names = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} - {"self"}
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr) or method.decorator_list or not names:
        return False
    value = body[0].value
    if isinstance(value, ast.Await):
        value = value.value
    return isinstance(value, ast.Call) and _passes_on(value, names, method.name)


def _passes_on(call: ast.Call, names: set[str], method: str) -> bool:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    match call.func:
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self")), attr=name) if name != method:
            return False
        case ast.Attribute(value=ast.Name(id="self")) if not values or not _is_function(values[0]):
            return False
        case ast.Attribute(value=ast.Name() | ast.Attribute()):
            return all(_is_passed(each, names, method) for each in values)
        case _:
            return False


def _is_function(value: ast.expr) -> bool:
    """A function of another module, or a lambda around one."""
    match value:
        case ast.Attribute(value=ast.Name(id=name)):
            return name != "self"
        case _:
            return isinstance(value, ast.Lambda)


def _is_passed(value: ast.expr, names: set[str], method: str) -> bool:
    match value:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(value=ast.Name()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self")), args=[], keywords=[]):
            return True
        case ast.Lambda(args=arguments, body=ast.Call() as call):
            return _passes_on(call, names | {each.arg for each in arguments.args}, method)
        case _:
            return False


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def failures(found: Mapping[str, Finding], rules: Mapping[str, Rule]) -> list[str]:
    return [
        f"{rule.what}: {found[name].number} (limit {rule.limit}). To fix it, {rule.fix}."
        + "".join(f"\n    {place}" for place in found[name].places)
        for name, rule in rules.items()
        if found[name].number > rule.limit
    ]


def table(found: Mapping[str, Finding], rules: Mapping[str, Rule]) -> list[str]:
    rows = [f"{'':42} {'count':>7} {'limit':>7} {'target':>7}"]
    for name, rule in rules.items():
        rows.append(f"{rule.what:42} {found[name].number:>7,} {rule.limit:>7,} {rule.target:>7,}")
    return rows


def main() -> int:
    found = measure(SOURCE)
    print(*table(found, RULES), sep="\n")
    wrong = failures(found, RULES)
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
