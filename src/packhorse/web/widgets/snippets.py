"""A job as a command that would submit it again: for a shell, for Python and for our own command line.

There is no key in any of them: a person has it in ``PACKHORSE_KEY``, as they need it everywhere.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]


def commands(job: Json, at: str, *, has_keys: bool) -> dict[str, str]:
    """By the name that a person chooses from. ``at`` is where the server is."""
    return {"curl": _curl(job, at, has_keys), "Python": _python(job, at), "CLI": _cli(job, at)}


def _curl(job: Json, at: str, has_keys: bool) -> str:
    words = ["curl"]
    if has_keys:
        words.append('-H "Authorization: Bearer $PACKHORSE_KEY"')
    values, files = _divided(job)
    if files:
        words += [f"--form-string {_quoted(f'{name}={job[name]}')}" for name in ("pipeline", "user_id")]
        words += [f"--form-string {_quoted(f'parameters={_json(values)}')}"] if values else []
        words += [f"-F {_quoted(f'{name}=@{_escaped(each)}')}" for name, each in files]
    else:
        asked = {"pipeline": job["pipeline"], "user_id": job["user_id"], "parameters": values}
        words += ["-H 'Content-Type: application/json'", f"-d {_quoted(_json(asked))}"]
    return " \\\n  ".join([*words, _quoted(f"{at}/api/v1/jobs")])


def _python(job: Json, at: str) -> str:
    values, files = _divided(job)
    given = [repr(job["pipeline"]), repr(values)]
    if files:
        named = {name: job["parameters"][name] for name, _ in files}
        given.append(f"files={named!r}")
    given.append(f"user={job['user_id']!r}")
    return (
        "from packhorse.client import Client\n\n"
        f"with Client({at!r}) as client:\n"
        f"    job = client.submit({', '.join(given)})\n"
        '    print(client.wait(job["job_id"])["result"])\n'
    )


def _cli(job: Json, at: str) -> str:
    values, files = _divided(job)
    words = [f"PACKHORSE_URL={_quoted(at)} packhorse submit {_quoted(job['pipeline'])}"]
    words.append(_quoted(f"--user={job['user_id']}"))
    words += [_quoted(f"{name}=@{each}") for name, each in files]
    words += [_quoted(f"{name}={_word(value)}") for name, value in values.items() if value is not None]
    return " \\\n  ".join([*words, "--wait"])


def _divided(job: Json) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The values, and the files by the names they came with."""
    files = [(each["parameter"], each["filename"]) for each in job["inputs"]]
    names = {name for name, _ in files}
    return {name: value for name, value in job["parameters"].items() if name not in names}, files


def _word(value: Any) -> str:
    if not isinstance(value, str):
        return _json(value)
    return f"@{value}" if value.startswith("@") else value


def _escaped(name: str) -> str:
    """A name for curl, to which a comma and a semicolon would mean something."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_quoted = shlex.quote
