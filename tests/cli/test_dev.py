"""`packhorse dev`: it keeps server and worker running, with the newest code, and takes all along when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from packhorse.cli.commands import processes
from packhorse.cli.commands.processes import find_app, with_dev_port
from packhorse.cli.options import SAMPLE
from packhorse.client import LOCAL, Client, Json
from packhorse.client.server import Server
from packhorse.errors import BlockedAddress, PackhorseError, SeveralApps
from packhorse.settings import DEV_FILE, LOOPBACK, Settings, dev_allow, dev_url, keep_dev_url, load
from tests.cli.conftest import Tell
from tests.cli.house import LONGEST, Dev, House, is_running, until
from tests.servers.web import Web, web_aside

APP = """
from packhorse import App

app = App("{name}")


@app.job
def {name}() -> str:
    return "{name}"
"""


def has(client: Client, pipeline: str) -> bool:
    try:
        return any(each["name"] == pipeline for each in client.pipelines())
    except PackhorseError:
        return False


def greeted(dev: Dev) -> Json:
    job = dev.client.submit("greet", {"name": "ann"}, user="ann")
    ended: Json = dev.client.wait(job["job_id"], LONGEST)
    return ended


def changed(dev: Dev, old: str, new: str) -> None:
    """New code, and a worker that runs it."""
    before = dev.child("worker")
    dev.app.write_text(dev.app.read_text().replace(old, new))
    until(lambda: dev.child("worker") not in (before, None))


def killed(dev: Dev, role: str) -> None:
    """Dead, and replaced."""
    old = dev.child(role)
    assert old is not None
    old.kill()
    until(lambda: dev.child(role) not in (old, None))


def test_secrets_can_be_used_without_setting_anything_up(shared: Dev) -> None:
    job = shared.client.submit("unlock", {"key": "canary-0123"}, user="ann")
    done = shared.client.wait(job["job_id"], LONGEST)

    assert (job["parameters"], done["result"]) == ({"key": "••••"}, 11)


def told_of_jobs(dev: Dev, receiver: Web) -> bool:
    """After one more job: the server knows a new webhook after a second."""
    greeted(dev)
    return any(each.json["type"] == "job.completed" for each in receiver.asked)


def test_a_webhook_can_call_this_machine_and_nothing_else_inside(shared: Dev) -> None:
    for host in ("127.0.0.1", "localhost"):
        with web_aside() as receiver:
            url = receiver.url.replace("127.0.0.1", host)
            webhook = shared.client.add_webhook(f"{url}/hook")["webhook_id"]
            tried = shared.client.test_webhook(webhook)
            until(partial(told_of_jobs, shared, receiver))
            shared.client.remove_webhook(webhook)
            assert tried["delivered"]
    with pytest.raises(BlockedAddress, match="private"):
        shared.client.add_webhook("https://10.0.0.1/hook")

    doctor = {each["name"]: each for each in shared.run("doctor", "--json").json}
    [line] = [line for line in shared.run("config").out.splitlines() if "PACKHORSE_OUTBOUND_ALLOW " in line]
    in_dev = doctor["webhook addresses in dev"]
    assert (in_dev["value"], in_dev["is_ok"]) == (LOOPBACK, True)
    assert "webhook addresses" not in doctor
    assert f"packhorse dev adds {LOOPBACK}" in line


def test_what_the_settings_allow_stays_allowed_in_dev() -> None:
    assert dev_allow(Settings(outbound_allow="10.1.0.0/16")) == f"10.1.0.0/16,{LOOPBACK}"
    assert load(env={"PACKHORSE_OUTBOUND_ALLOW": dev_allow(Settings())}).settings.outbound_allow == LOOPBACK


@pytest.mark.parametrize("store", ["postgresql://db/jobs", "redis://cache"])
def test_a_store_of_several_machines_gets_no_webhooks_to_this_one(store: str) -> None:
    assert dev_allow(Settings(store=store, outbound_allow="10.1.0.0/16")) == "10.1.0.0/16"


def test_the_only_file_that_makes_an_app_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flows.py").write_text(APP.format(name="one"))
    (tmp_path / "test_flows.py").write_text(APP.format(name="two"))
    (tmp_path / "client.py").write_text("from flows import app\n")

    assert find_app(tmp_path) == "flows.py"
    assert "running flows.py" in capsys.readouterr().out


def test_without_a_file_it_says_that_it_runs_the_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_app(tmp_path) == SAMPLE
    said = capsys.readouterr().out
    assert "built-in sample" in said
    assert "packhorse dev FILE.py" in said


def test_several_files_that_make_an_app_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(APP.format(name=name))

    with pytest.raises(SeveralApps, match=r"one\.py, two\.py"):
        find_app(tmp_path)


def test_a_killed_worker_and_a_killed_server_are_replaced(shared: Dev) -> None:
    killed(shared, "worker")
    killed(shared, "serve")
    until(shared.answers)

    job = greeted(shared)

    assert job["status"] == "completed"
    assert shared.said("exited with status -9")


def test_commands_in_its_folder_find_it_at_any_port(shared: Dev, tmp_path: Path) -> None:
    found = shared.run("pipelines", "--json")

    assert (found.code, "greet" in [each["name"] for each in found.json["items"]]) == (0, True)
    assert dev_url(shared.folder) == shared.url
    assert dev_url(tmp_path) == ""


def test_an_address_that_a_killed_dev_has_left_is_not_used(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    keep_dev_url("http://127.0.0.1:1", tmp_path)
    mine = dev_url(tmp_path)
    (tmp_path / DEV_FILE).write_text(f"{ended.pid} http://127.0.0.1:1\n")

    assert (mine, dev_url(tmp_path)) == ("http://127.0.0.1:1", "")


def test_new_jobs_run_the_new_code_and_a_running_one_keeps_the_old(shared: Dev, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    running = shared.client.submit("wait", {"flag": str(flag)}, user="ann")
    until(Path(f"{flag}.awaited").exists)

    changed(shared, 'VERSION = "one"', 'VERSION = "one and a half"')
    changed(shared, 'VERSION = "one and a half"', 'VERSION = "two"')
    until(lambda: shared.said("flow.py changed: new stages run the new code"))
    (shared.folder / "notes.py").write_text("not code of the app")
    new = greeted(shared)
    flag.touch()
    old = shared.client.wait(running["job_id"], LONGEST)

    assert new["result"]["version"] == "two"
    assert (old["status"], old["result"], old["retry_count"]) == ("completed", "one", 0)


def test_code_that_cannot_be_loaded_is_told_and_the_worker_stays(shared: Dev) -> None:
    before = greeted(shared)  # in a process that has the code
    worker = shared.child("worker")

    shared.app.write_text(shared.app.read_text() + "\noops(\n")
    until(lambda: shared.said("dev restarts the worker when the file can be loaded again."))
    after = greeted(shared)

    assert before["status"] == after["status"] == "completed"
    assert shared.child("worker") == worker
    assert shared.said("flow.py cannot be loaded: SyntaxError")
    changed(shared, "oops(", "")


def test_a_broken_save_fails_no_job_even_when_its_process_has_gone(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PACKHORSE_SLOTS=1\n")
    dev = Dev(tmp_path)
    try:
        flag = tmp_path / "flag"
        first = dev.client.submit("wait", {"flag": str(flag)}, user="ann")["job_id"]
        until(Path(f"{flag}.awaited").exists)
        dev.app.write_text(dev.app.read_text() + "\noops(\n")
        until(lambda: dev.said("dev restarts the worker when the file can be loaded again."))
        dev.client.cancel(first)
        dev.client.wait(first, LONGEST)

        second = dev.client.submit("greet", {"name": "ann"}, user="ann")["job_id"]
        until(lambda: dev.said("the app cannot be loaded; new stages wait"))
        dev.app.write_text(dev.app.read_text().replace("oops(", ""))
        job = dev.client.wait(second, LONGEST)

        assert (job["status"], job["retry_count"]) == ("completed", 0)
    finally:
        dev.end()


def test_ctrl_c_ends_all_it_started(dev: Dev, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    dev.client.submit("wait", {"flag": str(flag)}, user="ann")
    until(Path(f"{flag}.awaited").exists)
    tree = psutil.Process(dev.process.pid).children(recursive=True)

    dev.process.send_signal(signal.SIGINT)
    code = dev.process.wait(LONGEST)

    assert code == 0
    assert not (tmp_path / DEV_FILE).exists()
    assert len(tree) >= 4  # server, worker, guard, and the process with the stage
    until(lambda: not any(map(is_running, tree)))


def test_what_it_started_does_not_outlive_its_kill(dev: Dev) -> None:
    tree = psutil.Process(dev.process.pid).children(recursive=True)

    os.kill(dev.process.pid, signal.SIGKILL)

    assert len(tree) >= 3  # server, worker, guard
    assert until(lambda: not any(map(is_running, tree)))


def test_a_server_that_cannot_run_like_this_ends_it(house: House) -> None:
    dev = house.start("dev", "--port", str(house.port), env={"PACKHORSE_HOST": "0.0.0.0"})

    code = dev.wait(LONGEST)

    assert code == 2
    assert house.said("packhorse would be open to everybody")


def test_each_of_several_apps_gets_a_worker(house: House) -> None:
    for name in ("one", "two"):
        (house.folder / f"{name}.py").write_text(APP.format(name=name))
    house.start("dev", "one.py", "two.py", "--port", str(house.port))

    with Client(f"http://127.0.0.1:{house.port}") as client:
        until(lambda: has(client, "one") and has(client, "two"))
        jobs = [client.submit(name, {}, user="ann") for name in ("one", "two")]
        ended = [client.wait(job["job_id"], LONGEST) for job in jobs]

    assert [job["result"] for job in ended] == ["one", "two"]


def test_production_and_development_have_a_port_each_and_prefixes_keep_them_apart(house: House) -> None:
    """As the settings say where nobody says otherwise; that two prefixes share a server is shown with Redis itself."""
    unset = load(env={}, folder=house.folder).settings
    production, development = (
        load({"env": each}, env={}, folder=house.folder).settings for each in ("production", "development")
    )

    assert (unset.port, production.port, development.port) == (3002, 3002, 3003)
    assert LOCAL.endswith(f":{development.port}")
    assert (unset.prefix, production.prefix, development.prefix) == ("packhorse:", "prod:", "dev:")


@pytest.mark.parametrize(
    ("env", "port"),
    [({}, 3003), ({"PACKHORSE_ENV": "development"}, 3003), ({"PACKHORSE_PORT": "3002"}, 3002)],
)
def test_dev_changes_the_port_only(tmp_path: Path, env: dict[str, str], port: int) -> None:
    others = load(env=env, folder=tmp_path)

    assert with_dev_port(others).settings == replace(others.settings, port=port)


def test_dev_does_not_serve_production_without_keys(tell: Tell, tmp_path: Path) -> None:
    refused = tell("dev", env={"PACKHORSE_ENV": "production"})

    assert (refused.code, list(tmp_path.iterdir())) == (2, [])
    assert "packhorse dev does not run with PACKHORSE_ENV=production" in refused.err
    assert "packhorse serve" in refused.err


def test_what_dev_starts_has_the_environment_of_a_script_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACKHORSE_ENV", raising=False)
    started: list[Mapping[str, str]] = []
    prefixes: list[str] = []

    async def run(self: processes.Dev) -> int:
        prefixes.append(self._settings.prefix)
        return 0

    monkeypatch.setattr(processes, "Kept", lambda *given: started.append(given[3]))
    monkeypatch.setattr(processes, "require_free_port", lambda *_: None)
    monkeypatch.setattr(processes.Dev, "run", run)

    processes.dev("one.py")

    assert prefixes == [load().settings.prefix] == ["packhorse:"]
    assert len(started) == 2
    assert not any("PACKHORSE_ENV" in each for each in started)


@pytest.mark.parametrize(
    ("environment", "dev", "url"),
    [
        ("", "", "http://127.0.0.1:3003"),
        ("", "http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("development", "", "http://127.0.0.1:3003"),
        ("production", "http://127.0.0.1:1", "http://127.0.0.1:3002"),
    ],
)
def test_commands_call_the_server_of_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str, dev: str, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACKHORSE_ENV", environment)
    if dev:
        keep_dev_url(dev)

    assert Server(None, None).url == url
