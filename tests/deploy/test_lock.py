"""`make setup` and `make lock` ask an index for the packages of others, never for the ones of this repository."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.deploy.installed import LIMIT, ROOT

PROJECTS = [ROOT / "pyproject.toml", *sorted((ROOT / "apps").glob("*/pyproject.toml"))]
OWN = {tomllib.loads(path.read_text())["project"]["name"] for path in PROJECTS}
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))
VERSIONS = ("18.999", "999")
"""What the index of the tests has of every package: one of them is allowed by every range we have."""


class Index(ThreadingHTTPServer):
    """A package index that has whatever it is asked for, and remembers the names."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        *_, name = self.path.rstrip("/").split("/")
        if name.endswith(".metadata"):
            project, version, *_ = name.split("-")
            self._answer("text/plain", f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
            return
        self.server.asked.add(name)
        wheels = [f"{name.replace('-', '_')}-{version}-py3-none-any.whl" for version in VERSIONS]
        links = [
            f'<a href="/files/{wheel}#sha256={"0" * 64}" data-core-metadata="true">{wheel}</a><br>' for wheel in wheels
        ]
        self._answer("text/html", f"<!doctype html><html><body>{''.join(links)}</body></html>")

    def _answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[Index]:
    with Index() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def commands(target: str) -> list[str]:
    """The lines that `make` would run, whatever is already there."""
    ran = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_lock_of_this_environment_asks_an_index_for_the_packages_of_others_only(
    index: Index, tmp_path: Path
) -> None:
    [command] = [line for line in commands("lock") if "-o requirements/dev.txt" in line]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    env |= {"UV_DEFAULT_INDEX": index.url, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_NO_CONFIG": "1"}
    into = tmp_path / "dev.txt"

    locked = subprocess.run(
        command.replace("requirements/dev.txt", str(into)),
        shell=True,
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert locked.returncode == 0, locked.stderr
    assert index.asked & OWN == set()
    assert {"litestar", "asyncpg", "av", "espeakng-loader", "onnxslim", "pillow", "pytest"} <= index.asked
    assert set(re.findall(r"^([\w.-]+)==", into.read_text(), re.MULTILINE)) == index.asked


def test_every_lock_leaves_the_packages_of_this_repository_out() -> None:
    left_out = (ROOT / "requirements/local.in").read_text().splitlines()
    locks = [line for line in commands("lock") if "pip compile" in line]

    assert {name for name in left_out if not name.startswith("#")} == OWN
    assert all("--excludes requirements/local.in" in line for line in locks)


def test_setup_installs_the_packages_of_this_repository_without_an_index() -> None:
    [command] = [line for line in commands("setup") if "-e ./" in line]

    assert {"--offline", "--no-deps", "--no-build-isolation"} <= set(command.split())
    assert re.findall(r"-e \./(\S*)", command) == [
        "" if path.parent == ROOT else f"{path.parent.relative_to(ROOT)}/" for path in PROJECTS
    ]


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_a_lock_names_no_registry_and_no_package_of_this_repository(path: Path) -> None:
    text = path.read_text()

    assert "://" not in text
    assert OWN & set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE)) == set()
    assert text.count("--hash=sha256:") >= len(re.findall(r"^\S+==", text, re.MULTILINE)) > 0
