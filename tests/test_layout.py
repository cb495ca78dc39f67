"""The layout check: each rule fails on a small tree that breaks it, and names the place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import layout
from tests.layout import RULES, Rule, failures, is_banned, is_forward, measure

DOC = '"""What it is for."""\n'
STRICT = {name: rule._replace(limit=rule.target) for name, rule in RULES.items()}


def tree(root: Path, **files: str) -> Path:
    """A source tree. Names are paths with `__` for `/` and no suffix."""
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def broken(root: Path, **limits: int) -> list[str]:
    rules: dict[str, Rule] = {name: rule._replace(limit=limits.get(name, rule.limit)) for name, rule in STRICT.items()}
    return failures(measure(root), rules)


def method(source: str) -> layout.Method:
    found = ast.parse(source).body[0]
    assert isinstance(found, layout.Method)
    return found


def test_small_tree_passes(tmp_path: Path) -> None:
    assert broken(tree(tmp_path, app=DOC, store__base=DOC, worker____init__="")) == []


def test_full_folder_fails_and_is_named(tmp_path: Path) -> None:
    tree(tmp_path, **{f"http__route{n}": DOC for n in range(23)}, **{f"web__page{n}": DOC for n in range(22)})

    [failure] = broken(tmp_path)

    assert failure.splitlines() == [
        "Python files in one folder: 23 (limit 22). To fix it, make subfolders, or merge small modules.",
        "    http: 23",
    ]


def test_too_many_modules_fail(tmp_path: Path) -> None:
    [failure] = broken(tree(tmp_path, a=DOC, b=DOC, c__d=DOC), modules=2)

    assert failure.startswith("modules: 3 (limit 2).")


def test_too_many_lines_fail(tmp_path: Path) -> None:
    [failure] = broken(tree(tmp_path, a=DOC + "x = 1\n" * 9), lines=9)

    assert failure.startswith("lines of Python: 10 (limit 9).")


def test_contract_counts_methods_of_inherited_protocols_once(tmp_path: Path) -> None:
    tree(
        tmp_path,
        store__base=f"""{DOC}
class Jobs(Protocol):
    async def get(self, ids): ...
    async def _private(self): ...
class Both(Jobs, Keys, Protocol): ...
class Store(Both, Jobs, Protocol):
    def now(self): ...
    async def get(self, ids): ...
class Unrelated(Protocol):
    async def other(self): ...
""",
        store__keys=f"""{DOC}
class Keys(Protocol):
    async def add_key(self, key): ...
""",
    )

    [failure] = broken(tmp_path, contract=2)

    assert failure.startswith("methods in the store contract: 3 (limit 2).")
    assert [line.strip() for line in failure.splitlines()[1:]] == ["add_key", "get", "now"]


@pytest.mark.parametrize("name", ["governing", "shared", "told", "utils", "helpers", "common", "wire"])
def test_banned_module_name_fails(tmp_path: Path, name: str) -> None:
    [failure] = broken(tree(tmp_path, **{f"core__{name}": DOC}))

    assert failure.startswith("banned module names: 1 (limit 0).")
    assert failure.endswith(f"\n    core/{name}.py")


@pytest.mark.parametrize("name", ["keyring", "batching", "feed", "models", "__init__"])
def test_common_noun_is_allowed(name: str) -> None:
    assert not is_banned(name)


FORWARDS = [
    "async def keys(self, ids): return await self._read(granting.keys, ids)",
    "async def add(self, key): await self._write(lambda db: granting.add(db, key, self.now()))",
    "async def spend(self, charges): return await self._counting.spend(charges)",
    "async def tail(self, log, *, after): 'Doc.'; return await logs.tail(self._link, log, after=after)",
]


@pytest.mark.parametrize("source", FORWARDS)
def test_forwarding_method_fails(tmp_path: Path, source: str) -> None:
    tree(tmp_path, store__sqlite__keys=f"{DOC}class Keys:\n    {source}\n")

    [failure] = broken(tmp_path)

    assert failure.startswith("forwarding methods outside the store class: 1 (limit 0).")
    assert "    store/sqlite/keys.py: Keys." in failure


@pytest.mark.parametrize(
    "source",
    [
        "async def keys(self, ids): return await self._read(granting.keys, [*ids, 1])",
        "async def keys(self, ids): return await self._records.get(KIND, ids)",
        "async def get(self, ids):\n    self._check_open()\n    return await self._link.get(ids)",
        "def later(self, row): self.waiting.append(row)",
        "def now(self): return self._clock.now()",
        "async def close(self): await self._link.close()",
        "async def keys(self, ids): return await self._find(ids)",
    ],
)
def test_method_that_does_something_is_no_forward(source: str) -> None:
    assert not is_forward(method(source))


def test_store_class_may_forward_up_to_its_limit(tmp_path: Path) -> None:
    tree(tmp_path, store__redis__store=f"{DOC}class RedisStore:\n" + "".join(f"    {each}\n" for each in FORWARDS))

    assert broken(tmp_path, **{"store forwards": 4}) == []
    [failure] = broken(tmp_path, **{"store forwards": 3})

    assert failure.startswith("forwarding methods in one store class: 4 (limit 3).")
    assert failure.endswith("\n    store/redis/store.py: 4")


@pytest.mark.parametrize("text", ["x = 1\n", '"""\nWhat it is for."""\n', "# What it is for.\nx = 1\n"])
def test_module_that_does_not_say_what_it_is_for_fails(tmp_path: Path, text: str) -> None:
    [failure] = broken(tree(tmp_path, core__plan=text))

    assert failure.startswith("modules whose first line says nothing: 1 (limit 0).")
    assert failure.endswith("\n    core/plan.py")


def test_no_limit_is_below_its_target() -> None:
    assert all(rule.limit >= rule.target for rule in RULES.values())


def test_check_prints_every_count_and_fails_when_one_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layout, "SOURCE", tree(tmp_path, core__plan=DOC))
    assert layout.main() == 0
    assert "modules                                          1" in capsys.readouterr().out

    monkeypatch.setattr(layout, "SOURCE", tree(tmp_path, core__utils=DOC * 43_001))
    monkeypatch.setattr(layout, "RULES", STRICT)
    assert layout.main() == 1
    assert "core/utils.py" in capsys.readouterr().err
