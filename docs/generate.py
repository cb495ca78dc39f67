"""Writes docs/reference from the code: settings, errors, routes, commands, public names. A test compares the two."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import packhorse.testing
from packhorse import define, errors
from packhorse.cli.registry import COMMANDS
from packhorse.core import lifecycle
from packhorse.core.error_codes import CODES
from packhorse.core.models import Spec
from packhorse.core.plan import Plan, StagePlan
from packhorse.define.options import ElementOptions, PipelineOptions, RunOptions, StageOptions
from packhorse.define.submit import SubmitOptions
from packhorse.errors import PackhorseError
from packhorse.http.problems import error_to_json
from packhorse.http.routes.events import TYPES, UNNUMBERED
from packhorse.schemas.jobs import job_to_json
from packhorse.settings import descriptions, load
from packhorse.web.app import build

FOLDER = Path(__file__).parent / "reference"
HERE = str(Path.cwd())
START = "/srv/app"
"""Stands for the folder in which packhorse is started: what is shown can be pasted."""


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    return {
        "settings.md": settings(),
        "errors.md": all_errors(),
        "codes.md": all_codes(),
        "http.md": http(),
        "commands.md": commands(),
        "python.md": python(),
    }


def settings() -> str:
    rows = [(f"`{name}`", _default(name), meaning) for name, meaning in descriptions().items()]
    return _page(
        "Settings",
        "From flags, the environment, `.env.<environment>` (`PACKHORSE_ENV` names it), `.env`, or `[tool.packhorse]` "
        "in pyproject.toml (there in lower case, without the prefix), in this order of precedence. Times are `250ms`, "
        "`90s`, `10m`, `24h`, `7d`; sizes `256KB`, `2GB`. packhorse rejects unknown names. `packhorse config` shows "
        "each value and where it came from. "
        "Defaults below "
        f"`{START}` are below the folder in which packhorse is started.",
        _table(("setting", "default", "meaning"), rows),
    )


def _default(name: str) -> str:
    """Where the default depends on the machine, the words for it."""
    field = name.removeprefix("PACKHORSE_").lower()
    if field == "slots":
        return "the number of cores"
    value = getattr(load(env={}, folder=FOLDER).settings, field)
    text = _as_written(value)
    return f"`{text.replace(HERE, START)}`" if text else ""


def _as_written(value: Any) -> str:
    if isinstance(value, dict | tuple | None):
        return ",".join(value or ())
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def all_errors() -> str:
    rows = [
        (f"`{cls.type()}`", str(cls.status), str(cls.exit_code), _sentence(cls), cls.hint)
        for cls in _classes(PackhorseError)
    ]
    return _page(
        "Errors",
        "Over HTTP each is a problem (RFC 9457) whose `type` is `urn:packhorse:` and the word below; in Python the "
        "class of that name in `packhorse.errors`; on the command line a sentence, the hint, and the exit code.",
        _table(("type", "HTTP", "exit", "sentence", "hint"), rows),
    )


def all_codes() -> str:
    rows = [(f"`{code}`", meaning) for code, meaning in CODES.items()]
    return _page(
        "Codes of failures",
        "The values of `error.code` of a job and `error_code` of a failure, in addition to codes that a stage "
        "chooses. They are "
        "stable: you can alert on them, filter by them, and name them in `Revive`.",
        _table(("code", "meaning"), rows),
    )


def _classes(cls: type[PackhorseError]) -> Iterator[type[PackhorseError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _classes(child)


def _sentence(cls: type[PackhorseError]) -> str:
    return (inspect.getdoc(cls) or "").splitlines()[0]


PREFACE = """Submit in JSON, or as a form if there are files:

```sh
curl http://127.0.0.1:3003/api/v1/jobs -H 'Content-Type: application/json' -H 'Idempotency-Key: order-7' -d '
  {"pipeline": "greet", "user_id": "ann", "parameters": {"name": "Bob", "tags": ["a", "b"]},
   "priority": 5, "delay": "10m", "metadata": {"order": 7}}'
curl http://127.0.0.1:3003/api/v1/jobs -F pipeline=copy -F user_id=ann -F files=@a.txt -F files=@b.txt -F times=2
```

In a form, each parameter is a part with the name of the parameter. You can also send all parameters as JSON in one part
named `parameters`.

- A file is a part with a file name. To send several files, repeat the part.
- For a text parameter, the part is the text itself. For any other type it is JSON (`times=2`, `shout=true`).
- For a list parameter, repeat the part for each element (`tags=a`, `tags=b`), or send one part with a JSON array
  (`tags=["a", "b"]`).

Instead of a file you can send the text `job:{id}/artifacts/{name}`, in JSON or as a part without a file name. The
server copies that artifact of an earlier job, if you may read it. If `PACKHORSE_INPUT_FOLDERS` is set, you can also
send an absolute path or `s3://BUCKET/KEY` below one of its places: the server copies that file. Any other path gets
422. The schema of a pipeline says which files it accepts (`x-accept`, `x-max-bytes`), and under
which name it also takes a path (`x-path-name`); for any other file the response is 415 or 413 and names the parameter.

You can leave out `pipeline` if there is only one. You can send `pipeline` and `user_id` in the query instead of the
body; then the server checks the user's slot, and responds with 409, before it reads the body. For an unknown name, the
response lists the known names.

- `Idempotency-Key`: if the same client repeats a request with the same key, the response is the first job, as long as
  that job is kept. A different request with the same key gets 422. The server checks the key before the slot.
- `Prefer: wait=30`: the response comes when the job has ended (200), or after 30 seconds (202). The maximum is
  `PACKHORSE_WAIT_LIMIT`.
- `If-None-Match` with the `ETag` of an unchanged job gets 304.
- `Retry-After` is sent with 409 (the user's slot is taken), 502 (files cannot be stored) and 503 (the store does not
  answer). After 502 and 503, no job was created.
- After `DELETE` of an ended job, every request for it gets 404. The next clean-up deletes its files. For an active job
  the response is 409: cancel it first."""

EVENTS = """`GET /api/v1/jobs/{job_id}/events` is a stream of server-sent events that ends when the run has ended. Their
data is JSON. Numbered events are part of the job's history: the number is their `id`, and their data has `n`, `type`
and `at` in addition to the fields below. To continue after a lost connection, send the last number as
`Last-Event-ID` or `after`. `element` is only there for stages that run once per element. The server sends a comment
(`: ping`) every 15 seconds, so that clients and proxies do not time out."""


def http() -> str:
    calls, queries = [], []
    api = build(load(env={}, folder=FOLDER).settings).openapi_schema
    shapes = api.components.to_schema()["schemas"]
    for path, item in sorted((api.paths or {}).items()):
        for method in ("get", "head", "post", "put", "delete"):
            operation = getattr(item, method)
            if operation is not None:
                call = f"`{method.upper()} {path}`"
                said = (operation.description or operation.summary or "").strip().splitlines()
                refused = ", ".join(status for status in operation.responses if status not in EVERYWHERE)
                calls.append((call, said[0] if said else "", refused))
                queries += [
                    (call, *_parameter(each, shapes)) for each in operation.parameters or () if each.param_in != "path"
                ]
    events = [(f"`{name}`", "" if name in UNNUMBERED else "yes", told) for name, told in TYPES.items()]
    return "\n\n".join(
        [
            "# HTTP",
            "`/openapi.json` of a running server describes every request, response and error in full. Every "
            "call can get "
            "400, 403, 422, 500 or 503; the table lists the other statuses.",
            _table(("call", "what", "statuses"), calls),
            "## Submitting",
            PREFACE,
            "The response to a submit, with status 202:",
            f"```json\n{_example()}\n```",
            "An error (RFC 9457):",
            f"```json\n{_problem()}\n```",
            "## Query parameters and headers",
            _table(("call", "name", "type", "default"), queries),
            "## Events",
            EVENTS,
            _table(("type", "numbered", "data"), events) + "\n",
        ]
    )


EVERYWHERE = ("400", "403", "422", "500", "503")


def _parameter(each: Any, shapes: dict[str, Any]) -> tuple[str, str, str]:
    schema = each.schema.to_schema()
    kinds = [shapes.get(part.get("$ref", "").rpartition("/")[2], part) for part in schema.get("oneOf", [schema])]
    words = [
        ", ".join(kind["enum"]) if "enum" in kind else kind["type"] for kind in kinds if kind.get("type") != "null"
    ]
    bounds = [f"{name} {schema[key]:g}" for name, key in (("from", "minimum"), ("to", "maximum")) if key in schema]
    where = " (header)" if each.param_in == "header" else ""
    default = schema.get("default")
    return f"`{each.name}`{where}", " ".join(words + bounds), "" if default is None else f"`{json.dumps(default)}`"


def _example() -> str:
    plan = Plan("greet", (StagePlan("greet"),))
    spec = Spec(b'{"name": "Bob", "tags": ["a", "b"]}', metadata={"order": 7})
    change = lifecycle.submit(
        plan, spec, job_id=SOME_JOB, user="ann", now=1_767_225_600.0, priority=5, delay=600.0, trace_id="5f" * 16
    )
    return json.dumps(job_to_json(change.after, spec, {}, {}), indent=2)


def _problem() -> str:
    return json.dumps(error_to_json(errors.SlotTaken(active_job_id=SOME_JOB)), indent=2)


SOME_JOB = "019b76da-a800-7c2e-9c0f-6b1f0a4c2d11"


GIVEN = ("Pipeline", "Function", "JobSnapshot")
"""What the public names hand out."""

MEANT = {
    "App": ("name", "pipeline", "job", "schedule", "close"),
    "Choices": (),
    "JobSnapshot": ("id", "status", "progress", "error", "result"),
    "Pipeline": ("stage", "submit", "a_submit", "find", "a_find"),
    "Function": ("submit", "a_submit", "find", "a_find", "using"),
}
"""Where not all that has a public name is meant for everybody, what is."""

HANDED = ("Context", "JobHandle", "Params", "BenchJob", *GIVEN)
"""What nobody makes by calling it."""

OPTIONS = {
    "Options of a pipeline": (RunOptions, PipelineOptions),
    "Options of a stage": (StageOptions,),
    "Options of a stage with elements": (ElementOptions,),
    "Options of a submit": (SubmitOptions,),
}


ABOUT = """The names that `from packhorse import …` provides, the options, and the tools for tests. `@app.job` takes the
options of a stage and of a pipeline together. A `Duration` is `250ms`, `90s`, `10m`, `24h`, `7d`, or seconds; a `Size`
is `256KB`, `2GB`, or bytes."""


def python() -> str:
    parts = [
        "# Python",
        ABOUT,
        *(_described(getattr(packhorse, name)) for name in packhorse.__all__),
        *(f"## {title}\n\n{_options(each)}" for title, each in OPTIONS.items()),
        "# Types that they return",
        *(_described(getattr(define, name)) for name in GIVEN),
        "# packhorse.testing",
        _said(packhorse.testing),
        *(_described(getattr(packhorse.testing, name)) for name in packhorse.testing.__all__),
    ]
    return "\n\n".join(parts) + "\n"


def _described(thing: Any) -> str:
    name = thing.__name__
    made = "" if name in HANDED else "```python\n" + "\n".join(_signatures(name, thing)) + "\n```"
    init = vars(thing).get("__init__") if inspect.isclass(thing) and made else None
    members = "\n".join(_members(thing)) if inspect.isclass(thing) else ""
    return "\n\n".join(
        filter(None, [f"## {name}", made, _said(thing), getattr(init, "__doc__", "") and _said(init), members])
    )


def _members(thing: Any) -> Iterator[str]:
    annotated = _attributes(thing)
    own = [name for name in vars(thing) if not name.startswith("_") and name not in annotated]
    for name in MEANT.get(thing.__name__, [*annotated, *own]):
        yield _member(name, inspect.getattr_static(thing, name, None), annotated)


def _member(name: str, value: Any, annotated: dict[str, tuple[str, str]]) -> str:
    value = getattr(value, "__func__", value)
    if inspect.isfunction(value):
        return _item(" or ".join(f"`{each}`" for each in _signatures(name, value)), _said(value))
    if name in annotated:
        kind, said = annotated[name]
        return _item(f"`{name}: {kind}`", said)
    getter = getattr(value, "fget", None) or getattr(value, "func", None)
    kind = f": {_type(inspect.signature(getter).return_annotation)}" if getter is not None else ""
    return _item(f"`{name}{kind}`", _said(getter))


def _item(code: str, said: str) -> str:
    return f"- {code}" + (f": {' '.join(said.split())}" if said else "")


def _said(thing: Any) -> str:
    """Its docstring, in Markdown's own quotes."""
    return (inspect.getdoc(thing) or "").replace("``", "`").replace("::\n", ":\n") if thing is not None else ""


def _signatures(name: str, thing: Any) -> list[str]:
    """Every way to call it. A coroutine says so."""
    before = "async " if inspect.iscoroutinefunction(thing) else ""
    found = (f"{before}{name}{_signature(each)}" for each in typing.get_overloads(thing) or [thing])
    return list(dict.fromkeys(found))


def _signature(thing: Any) -> str:
    found = inspect.signature(thing)
    parts: list[str] = []
    seen: set[Any] = set()
    for each in found.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not seen & {each.KEYWORD_ONLY, each.VAR_POSITIONAL}:
            parts.append("*")
        seen.add(each.kind)
        stars: dict[Any, str] = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}
        star = stars.get(each.kind, "")
        kind = "" if each.annotation is each.empty else f": {_type(each.annotation)}"
        default = "" if each.default is each.empty else f" = {each.default!r}"
        parts.append(f"{star}{each.name}{kind}{default}")
    back = (
        ""
        if inspect.isclass(thing) or found.return_annotation is found.empty
        else f" -> {_type(found.return_annotation)}"
    )
    return f"({', '.join(parts)}){back}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _options(parts: Sequence[Any]) -> str:
    return _table(
        ("option", "type", "meaning"),
        [(f"`{name}`", f"`{kind}`", said) for part in parts for name, (kind, said) in _attributes(part).items()],
    )


def _attributes(thing: Any) -> dict[str, tuple[str, str]]:
    """Type and docstring of what is annotated in a class. Only its source has the docstrings."""
    try:
        [found] = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    except (OSError, TypeError):
        return {}
    attributes: dict[str, tuple[str, str]] = {}
    last = None
    for node in getattr(found, "body", ()):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            last = node.target.id
            attributes[last] = (ast.unparse(node.annotation), "")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last is not None:
            attributes[last] = (attributes[last][0], " ".join(str(node.value.value).replace("``", "`").split()))
            last = None
        else:
            last = None
    return attributes


def commands() -> str:
    rows = [(f"`packhorse {name}`", meaning) for _, name, _, meaning in COMMANDS]
    return _page(
        "Commands",
        "`packhorse COMMAND --help` lists the options. Exit codes: 0 success, 1 the job failed, 2 wrong usage, "
        "3 refused, "
        "4 the job was cancelled, 5 server or store unreachable. `--json` prints what the API returns.\n\n"
        'To complete commands, options and their values in your shell: for bash, add `eval "$(packhorse '
        'completion bash)"` '
        "to `~/.bashrc`; for zsh, write `packhorse completion zsh` to a file `_cyclopts_packhorse` in a folder of "
        "`$fpath`; for fish, write `packhorse completion fish` to `~/.config/fish/completions/packhorse.fish`.",
        _table(("command", "what"), rows),
    )


def _page(title: str, about: str, table: str) -> str:
    return f"# {title}\n\n{about}\n\n{table}\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
