"""`packhorse submit`: parameters and files in, a job out, and its result if asked to wait.

`NAME=VALUE` words become parameters: each value as what the pipeline's JSON Schema says it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import CycloptsError, Parameter

from packhorse.cli import follow
from packhorse.cli import output as printing
from packhorse.cli.commands.results import check_target, save_result
from packhorse.cli.commands.submit_lines import submit_lines
from packhorse.cli.options import Remote, Whole
from packhorse.client import Client, Json
from packhorse.core import json
from packhorse.define.files import ACCEPT
from packhorse.define.options import seconds
from packhorse.define.validation import list_some, unknown_pipeline
from packhorse.errors import Forbidden, InvalidInput

Schema = Mapping[str, Any]


MOST = 16 * 1024 * 1024  # largest file, in bytes, that is sent as text: a guard against naming a large file by mistake


def submit(
    pipeline: str,
    /,
    *values: Annotated[str, Parameter(name="NAME=VALUE")],
    user: str | None = None,
    priority: Whole = 0,
    delay: str | None = None,
    at: str | None = None,
    debounce: str | None = None,
    key: str | None = None,
    by_path: bool = False,
    wait: bool = False,
    output: str | None = None,
    lines: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,  # - is standard input
    remote: Remote = Remote(),
) -> int:
    """Submit a job.

    Args:
        pipeline: Name of the pipeline. List them with: packhorse pipelines
        values: Parameters. For a file parameter, write NAME=@PATH or NAME=PATH. For any other parameter, NAME=@PATH
            sends the text in that file, and NAME=@@TEXT sends a text that begins with @. Repeat a name to pass a list.
        user: User that the job belongs to.
        priority: Jobs with a higher priority start first.
        delay: Start the job no earlier than this long from now, such as 10m.
        debounce: Wait this long, such as 10s, for another submit with the same --key, which replaces this one.
        at: Start the job no earlier than at this time, such as 2026-01-31T12:00:00+01:00.
        key: Idempotency key. A second submit with the same key returns the first job.
        by_path: Send the paths of files instead of the files. The server reads them itself, if PACKHORSE_INPUT_FOLDERS
            allows it. A file in a bucket, NAME=s3://BUCKET/KEY, is always read by the server.
        wait: Show progress until the job ends. Exit code: 0 completed, 1 failed, 4 cancelled.
        output: Wait for the result and write it to this file, or into this folder if the name ends with a slash.
        lines: Submit many jobs: a file with one JSON object per line, such as {"parameters": {"size": 3}}, or - for
            standard input. A line can also have user_id, priority, delay, at, metadata and idempotency_key; --user,
            --priority, --delay and --at are for lines without. Prints a line per job. Exit code: 3 if any was rejected.
    """
    wait_before = _seconds(delay)
    if lines is not None:
        if values or key is not None or debounce is not None or by_path or wait or output is not None:
            options = "--key, --debounce, --by-path, --wait or --output"
            message = f"--lines takes no NAME=VALUE, {options}: each line describes its job."
            raise CycloptsError(msg=message, command_chain=["submit"])
        shared = {"user_id": user, "priority": priority, "delay": wait_before, "at": at}
        return submit_lines(lines, pipeline, {name: value for name, value in shared.items() if value}, remote)
    words = group_words(values, "submit")
    to = None if output is None else check_target(output)
    with remote.client() as client:
        with prefer_scope_error(client, "submit"):
            parameters, files = parameters_from(words, schema_of(client, pipeline), by_path=by_path)
        job = client.submit(
            pipeline, parameters, files=files, user=user, priority=priority, delay=wait_before, at=at,
            debounce=debounce or 0, key=key,
        )  # fmt: skip
        if wait or to is not None:
            return _wait_and_report(client, job, to, remote)
    remote.print_one(job, job["job_id"])
    if not remote.json:
        printing.message(f"Follow it with: packhorse show {job['job_id']} --follow")
    return 0


def _wait_and_report(client: Client, job: Json, output: Path | None, remote: Remote) -> int:
    found = follow.follow_job(client, job["job_id"], is_new=True)
    if found is None:
        return follow.DETACHED
    code = follow.report_end(found, is_saved=output is not None)
    if remote.json:
        printing.document(found)
    if code == 0 and output is not None:
        save_result(client, job["job_id"], output, remote)
    elif code == 0 and not remote.json:
        printing.plain(job["job_id"])
    return code


@contextmanager
def prefer_scope_error(client: Client, scope: str) -> Iterator[None]:
    """Raises Forbidden instead of InvalidInput if the key lacks the scope: better input would not help."""
    try:
        yield
    except InvalidInput:
        allowed = client.me()["allowed"]
        if scope in allowed:
            raise
        message = f"This needs a key with the scope {scope}. This key has: {', '.join(sorted(allowed))}."
        raise Forbidden(message, scope=scope) from None


def schema_of(client: Client, pipeline: str) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {each["name"]: each["schema"] for each in client.pipelines()}
    if pipeline not in found:
        raise unknown_pipeline(pipeline, found)
    return found[pipeline]


def _seconds(delay: str | None) -> float:
    try:
        return 0.0 if delay is None else seconds(delay)
    except ValueError as error:
        raise CycloptsError(msg=f"--delay: {error}", command_chain=["submit"]) from error


def parameters_from(
    given: Mapping[str, list[str]], schema: Schema, *, by_path: bool = False
) -> tuple[dict[str, Any], dict[str, Path | list[Path]]]:
    """Values, and files. A value that does not fit its type stays text: the server then reports the error."""
    values: dict[str, Any] = {}
    files: dict[str, Path | list[Path]] = {}
    for name, texts in given.items():
        kinds = list(_kinds(schema.get("properties", {}).get(name, {}), schema.get("$defs", {})))
        lists = [kind.get("items") or {"type": "any"} for kind in kinds if kind.get("type") == "array"]
        items = [item for each in lists for item in _kinds(each, schema.get("$defs", {}))]
        if any(map(_is_file, [*items, *kinds])) and (by_path or all(map(_is_reference, texts))):
            values[name] = texts if any(map(_is_file, items)) else _only(name, texts)
        elif any(map(_is_file, items)):
            files[name] = [_path(text) for text in texts]
        elif any(map(_is_file, kinds)):
            files[name] = _path(_only(name, texts))
        else:
            if any(map(_names_file, texts)) and not _takes(schema, name):
                raise InvalidInput(f"There is no parameter {name!r}. Parameters: {_usage(schema)}.", field=name)
            said = [_text(name, text, schema) for text in texts]
            is_elements = items and not (len(said) == 1 and _is_array(said[0]))
            values[name] = [_value(text, items) for text in said] if is_elements else _value(_only(name, said), kinds)
    return values, files


def group_words(words: Sequence[str], *command: str) -> dict[str, list[str]]:
    """The values of each name, from NAME=VALUE words."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise CycloptsError(msg=f"{word!r} is not NAME=VALUE or NAME=@PATH.", command_chain=[*command])
        found[name].append(value)
    return found


def _only(name: str, given: list[str]) -> str:
    if len(given) > 1:
        raise InvalidInput(f"{name} takes one value, but was given {len(given)} times.", field=name)
    return given[0]


def _path(text: str) -> Path:
    return Path(text.removeprefix("@")).expanduser()


def _names_file(text: str) -> bool:
    return text.startswith("@") and not text.startswith("@@")


def _takes(schema: Schema, name: str) -> bool:
    return name in schema.get("properties", {}) or schema.get("additionalProperties") is not False


def _usage(schema: Schema, *, only_files: bool = False) -> str:
    """The parameters, and for files what they accept: ``archive (file: .zip), size``."""
    shown = []
    for name, part in schema.get("properties", {}).items():
        kinds = list(_kinds(part, schema.get("$defs", {})))
        kinds += [item for kind in kinds for item in _kinds(kind.get("items", {}), schema.get("$defs", {}))]
        file = next(filter(_is_file, kinds), None)
        if file is not None:
            accepted = " or ".join(file.get(ACCEPT, ()))
            shown.append(f"{name} (file: {accepted})" if accepted else f"{name} (file)")
        elif not only_files:
            shown.append(name)
    return list_some(shown)


def _text(name: str, text: str, schema: Schema) -> str:
    """The text itself; after ``@``, the content of that file. ``@@`` stands for a leading ``@``."""
    if not _names_file(text):
        return text.removeprefix("@")
    path = _path(text)
    try:
        if path.stat().st_size > MOST:
            raise InvalidInput(f"{path} is too large to be sent as a text.", field=name)
        return path.read_text("utf-8")
    except FileNotFoundError:
        literal = f"{name}=@{text}"
        raise InvalidInput(f"There is no file {path}. To send the text itself, write {literal}", field=name) from None
    except UnicodeDecodeError:
        files = _usage(schema, only_files=True)
        message = f"{name} takes a text, but {path} is not a text file. Parameters that take a file: {files}."
        raise InvalidInput(message, field=name) from None
    except OSError as error:
        raise InvalidInput(f"{name}: {path} cannot be read: {error.strerror or error}.", field=name) from error


def _value(text: str, kinds: Sequence[Schema]) -> Any:
    """Text if it may be text; else JSON."""
    if not kinds or any(_is_text(kind) for kind in kinds):
        return text
    try:
        return json.decode(text.lower() if text.lower() in ("true", "false") else text)
    except msgspec.DecodeError:
        return text


def _is_array(text: str) -> bool:
    try:
        return isinstance(json.decode(text), list)
    except msgspec.DecodeError:
        return False


def _kinds(schema: Schema, defs: Schema) -> Iterator[Schema]:
    """What a value may be: the branches of unions, with references followed."""
    while "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    branches = [branch for key in ("anyOf", "oneOf", "allOf") for branch in schema.get(key, ())]
    for branch in branches:
        yield from _kinds(branch, defs)
    if not branches and schema:
        yield schema


def _is_file(kind: Schema) -> bool:
    return kind.get("format") == "binary"


def _is_reference(text: str) -> bool:
    """Whether it names an artifact of an earlier job or an object in a bucket. Write a path like that with ``@``."""
    return text.startswith("s3://") or (text.startswith("job:") and "/artifacts/" in text)


def _is_text(kind: Schema) -> bool:
    types = kind.get("type")
    listed = (*kind.get("enum", ()), kind.get("const"))
    return "string" in (types if isinstance(types, list) else [types]) or any(isinstance(v, str) for v in listed)
