"""The Dockerfile, as far as it goes without an engine: its steps are carried out here, and what they make answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from packhorse.settings import load
from packhorse.version import VERSION
from packhorse_video import weights
from tests.cli.house import LONGEST, until
from tests.deploy.dockerfile import Stage, environment, of, only, stages
from tests.deploy.installed import LIMIT, ROOT, lend
from tests.servers.ports import free_port

PAGE, BUILD, FINAL = stages(ROOT / "Dockerfile")
APPS = sorted(path.name for path in (ROOT / "apps").iterdir() if path.is_dir())


QUEUE = {"converter": "bie", "fetch": "fetch", "speech": "speech", "video": "ocr"}
"""One that no other app has. The worker names its queues when it starts."""
VENDOR = "src/packhorse/web/static/vendor"
IGNORED = [
    Path(line).name
    for line in (ROOT / ".dockerignore").read_text().splitlines()
    if "/" in line and not line.startswith(("!", "#"))
]
"""Folders of what is sent that are not."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("image"))


def built(root: Path, app: str = "") -> Path:
    """What the first stage leaves for the second, with /opt and /build below a folder of ours."""
    (root / "build").mkdir(parents=True)
    for step in BUILD:
        if step.text.startswith("--from=page"):
            copied(ROOT / VENDOR, root / "build" / step.text.split()[-1])  # as `make setup` has fetched it
        elif step.name == "COPY":
            *sources, into = step.text.split()
            for source in sources:
                copied(ROOT / source, root / "build" / into)
        elif step.name == "RUN":
            carried_out(step.text, root, app)
            if "-m venv" in step.text:
                made = Path(step.text.split()[-1]).name
                lend(root / "opt" / made, root / f"lent-{made}")
                if app == "video":  # as `make setup` has fetched them
                    shutil.copytree(weights.folder(), root / "opt" / made / "share/packhorse_video", dirs_exist_ok=True)
    return root


def copied(source: Path, into: Path) -> None:
    assert ".." not in source.parts
    if source.is_dir():
        shutil.copytree(source, into, ignore=shutil.ignore_patterns(*IGNORED))
    else:
        into.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, into)


def carried_out(command: str, root: Path, app: str) -> None:
    """Without an index: whatever is pinned has to be here already, at that version."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PACKHORSE_", "PYTHON"))}
    env |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "APP": app}
    ran = subprocess.run(
        command.replace("/opt/", f"{root}/opt/"),
        shell=True,
        cwd=root / "build",
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"


@contextmanager
def started(
    image: Path, folder: Path, *command: str, app: str = "", **env: str
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """ENTRYPOINT and a command, in the environment that the image says, and that environment."""
    said = {name: value.replace("/opt/", f"{image}/opt/") for name, value in environment(FINAL, app).items()}
    said["PATH"] = said["PATH"].replace("$PATH", os.environ["PATH"])
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "PYTHON"))}
    whole = clean | said | env
    entry = only(FINAL, "ENTRYPOINT").words
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([*entry, *command], cwd=folder, env=whole, stdout=log, stderr=log)
    try:
        yield process, whole
    finally:
        process.terminate()
        process.wait(LONGEST)


def is_healthy(env: dict[str, str]) -> bool:
    """As the HEALTHCHECK has it."""
    [_, words] = only(FINAL, "HEALTHCHECK").text.split("CMD ", 1)
    command = re.findall(r'"((?:[^"\\]|\\.)*)"', words)
    return subprocess.run(command, env=env, capture_output=True, timeout=LIMIT).returncode == 0


def test_nothing_is_installed_or_built_with_what_is_not_pinned() -> None:
    for step in of(BUILD, "RUN"):
        if "pip install" in step.text and "wheels/" not in step.text:
            assert "--require-hashes" in step.text
        if "pip wheel" in step.text:
            assert {"--no-build-isolation", "--no-index"} <= set(step.text.split())


@pytest.mark.release
def test_its_steps_make_an_environment_with_our_commands(image: Path) -> None:
    told = subprocess.run([image / "opt/packhorse/bin/packhorse", "--version"], capture_output=True, text=True)
    where = subprocess.run(
        [image / "opt/packhorse/bin/python", "-c", "import packhorse; print(packhorse.__file__)"],
        cwd=image,
        capture_output=True,
        text=True,
    )

    assert told.stdout.strip() == VERSION
    assert where.stdout.startswith(str(image))


@pytest.mark.release
def test_the_server_it_starts_answers_is_healthy_and_ends_when_told(image: Path, tmp_path: Path) -> None:
    port = free_port()
    command = only(FINAL, "CMD").words
    loopback = {"PACKHORSE_HOST": "127.0.0.1", "PACKHORSE_PORT": str(port)}

    with started(image, tmp_path, *command, **loopback) as (process, env):
        before = is_healthy(env | {"PACKHORSE_PORT": str(free_port())})
        until(lambda: is_healthy(env))
        answer = httpx2.get(f"http://127.0.0.1:{port}/readyz")
        process.send_signal(getattr(signal, only(FINAL, "STOPSIGNAL").text))
        code = process.wait(LONGEST)
        after = is_healthy(env)

    assert (before, after, code) == (False, False, 0)
    assert answer.status_code == 200


@pytest.mark.release
def test_a_worker_of_it_is_healthy_where_its_numbers_are(image: Path, tmp_path: Path) -> None:
    loopback = {"PACKHORSE_HOST": "127.0.0.1", "PACKHORSE_METRICS_PORT": str(free_port())}

    with started(image, tmp_path, "worker", "packhorse.sample", **loopback) as (process, env):
        until(lambda: is_healthy(env))
        process.terminate()
        code = process.wait(LONGEST)

    assert code == 0


@pytest.mark.release
@pytest.mark.parametrize("app", APPS)
def test_with_an_app_it_has_that_app_and_a_worker_runs_it(tmp_path: Path, app: str) -> None:
    image = built(tmp_path / "image", app)
    installed = {path.name.partition("-")[0] for path in image.glob("opt/packhorse/lib/*/site-packages/*.dist-info")}
    loopback = {"PACKHORSE_HOST": "127.0.0.1", "PACKHORSE_METRICS_PORT": str(free_port())}

    with started(image, tmp_path, "worker", app=app, **loopback) as (process, env):
        until(lambda: is_healthy(env))
        process.terminate()
        code = process.wait(LONGEST)

    assert code == 0
    assert {name for name in installed if name.startswith("packhorse")} == {"packhorse", f"packhorse_{app}"}
    assert f"{QUEUE[app]}=" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("app", APPS)
def test_each_app_has_a_lock_with_what_it_needs(app: str) -> None:
    names = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
    pinned = dict(names.findall((ROOT / f"requirements/image-{app}.txt").read_text()))
    tested = dict(names.findall((ROOT / "requirements/dev.txt").read_text()))
    every = dict(names.findall((ROOT / "requirements/image.txt").read_text()))
    project = tomllib.loads((ROOT / f"apps/{app}/pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=]", each)[0] for each in project["dependencies"]} - {"packhorse"}

    assert needed | every.keys() <= pinned.keys()
    assert pinned == {name: tested[name] for name in pinned}


def test_it_runs_as_nobody_in_particular() -> None:
    [made] = of(FINAL, "RUN")
    user = only(FINAL, "USER").text

    assert made.text.startswith("useradd --system")
    assert made.text.endswith(f" {user}")
    assert FINAL.index(only(FINAL, "USER")) > FINAL.index(made)
    assert not [step for step in FINAL[FINAL.index(only(FINAL, "USER")) :] if step.name in ("RUN", "COPY")]


def test_its_settings_exist_and_its_ports_are_ours() -> None:
    settings = load(env=environment(FINAL), folder=ROOT / "deploy").settings

    assert (settings.host, settings.app) == ("0.0.0.0", "")
    assert environment(FINAL, "speech")["PACKHORSE_APP"] == "packhorse_speech:app"
    assert only(FINAL, "EXPOSE").text == str(settings.port)


def test_what_it_copies_is_what_is_sent_to_the_engine() -> None:
    sent = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    steps = [step for step in of(PAGE, "COPY") + of(BUILD, "COPY") if "--from" not in step.text]
    copied = {source for step in steps for source in step.text.split()[:-1]}

    assert copied == sent


def test_the_page_gets_what_it_gets_in_a_clone(tmp_path: Path) -> None:
    """Node is not asked: what `package.json` copies is copied here, from the packages that `make setup` has fetched."""
    package = json.loads((ROOT / "package.json").read_text())
    [fetched] = [step.text for step in of(PAGE, "RUN")]
    makefile = (ROOT / "Makefile").read_text()
    [copy] = [step.text for step in of(BUILD, "COPY") if "--from=page" in step.text]
    env = {"PATH": os.environ["PATH"], "VENDOR": str(tmp_path), "npm_package_config_icons": package["config"]["icons"]}

    subprocess.run(package["scripts"]["vendor"], shell=True, cwd=ROOT, env=env, check=True, timeout=LIMIT)

    assert re.findall(r"npm (?:ci|run) [^&]*[^& ]", fetched) == re.findall(r"^\t.*(npm (?:ci|run) .*)$", makefile, re.M)
    assert "VENDOR=/page/vendor npm run" in fetched
    assert f"PAGE := {VENDOR}\n" in makefile
    assert 'VENDOR="$(CURDIR)/$@" npm run' in makefile
    assert contents(tmp_path) == contents(ROOT / VENDOR)
    assert copy.split() == ["--from=page", "/page/vendor", VENDOR]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.release
def test_the_page_is_in_what_its_steps_make(image: Path) -> None:
    [static] = image.glob("opt/packhorse/lib/python*/site-packages/packhorse/web/static")

    assert (static / "page.css").is_file()
    assert [path.name for path in (static / "vendor").iterdir()]


@pytest.mark.parametrize("stage", [PAGE, BUILD, FINAL], ids=["page", "build", "final"])
def test_no_registry_is_named(stage: Stage) -> None:
    image = only(stage, "FROM").text.split()[0]

    assert "/" not in image
    assert image in ("python:${PYTHON}-slim", "node:${NODE}-slim")


def test_it_installs_what_the_tests_run_with() -> None:
    """The versions are those of the lock that this environment was made from."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements/image.txt").read_text(), re.MULTILINE))
    tested = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE))

    assert {"litestar", "asyncpg", "redis", "obstore"} <= pinned.keys()
    assert "pytest" not in pinned
    assert pinned == {name: tested[name] for name in pinned}
