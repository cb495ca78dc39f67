"""`packhorse tokens`: for the person who waits for one job, and has no key."""

from __future__ import annotations

from cyclopts import App

from packhorse.cli import output
from packhorse.cli.job_ref import resolve_job
from packhorse.cli.options import JobId, Remote
from packhorse.client import Json

app = App("tokens", help="Make, list and revoke tokens of one job.")


@app.command
def create(job: JobId, /, *, expires: str | None = None, remote: Remote = Remote()) -> None:
    """Make a token that can read and cancel this job, and the address of a page with it. Both are printed once.

    Parameters
    ----------
    job
        Its id, or the beginning of it; or the end, of one of the newest 200.
    expires
        After how long it ends, as 1d.
    """
    with remote.client() as client:
        job = resolve_job(client, job)
        made = client.token(job, expires_in=expires)
        made = {**made, "url": f"{client.url}/p/{made['key']}"}
    if remote.json:
        output.document(made)
        return
    output.message(f"Token {made['key_id']} is for job {job} only, until {made['ends_at']}. Keep it safe:")
    output.plain(made["key"])
    output.message(f"The page for the person who waits: {made['url']}")


@app.command(name="list")
def list_tokens(job: JobId, /, *, remote: Remote = Remote()) -> None:
    """List the tokens that were given out for a job.

    Parameters
    ----------
    job
        Its id, or the beginning of it; or the end, of one of the newest 200.
    """
    with remote.client() as client:
        found = client.tokens(resolve_job(client, job))
    if remote.json:
        output.document({"items": found, "next": None})
    elif found:
        output.table(("token", "created", "ends"), map(_row, found))
    else:
        output.message(f"There are no tokens. Make one with: packhorse tokens create {job}")


@app.command
def revoke(job: JobId, token: str, /, *, remote: Remote = Remote()) -> None:
    """End a token now. What is open with it is cut within a second.

    Parameters
    ----------
    job
        The id of the job, or the beginning of it; or the end, of one of the newest 200.
    token
        The id of the token.
    """
    with remote.client() as client:
        ended = client.revoke(resolve_job(client, job), token)
    if remote.json:
        output.document(ended)
    else:
        output.message(f"Token {ended['key_id']} has ended.")


def _row(token: Json) -> tuple[object, ...]:
    return token["key_id"], token["created_at"], token["ends_at"] or ""
