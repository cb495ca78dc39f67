"""An app whose jobs fail until somebody has mended what is wrong, with a schedule that its code declares."""

from __future__ import annotations

from pathlib import Path

from packhorse import App, File, Permanent, Secret

app = App("mending")


@app.job(retries=0)
def mend(cure: str, message: str = "It is broken.") -> str:
    """Fails as long as there is no file of that name."""
    if not Path(cure).exists():
        raise Permanent(message, code="BROKEN")
    return "mended"


@app.job
def greet(name: str, times: int = 1) -> str:
    return f"Hello {name}! " * times


@app.job
def log_in(name: str, password: Secret) -> int:
    return len(name) + len(password.reveal())


@app.job
def stamp(letter: File) -> int:
    return len(letter.read_bytes())


app.schedule("declared", greet, {"name": "code"}, cron="0 5 * * *", user="ann")
