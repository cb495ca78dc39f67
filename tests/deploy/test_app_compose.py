"""The compose files of the apps, without an engine: each with each store is merged, checked, and one of them run."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from typing import Any

import pytest
import redis
import yaml

from packhorse.cli.registry import app as command_line
from packhorse.client import Client
from packhorse.define.options import seconds
from packhorse.errors import PackhorseError
from packhorse.factory import check, redis_prefix
from packhorse.settings import Settings, load
from tests.cli.house import LONGEST, House, until
from tests.deploy.dockerfile import environment, only, stages
from tests.deploy.installed import ROOT
from tests.deploy.test_image import APPS
from tests.servers import postgres, seaweed
from tests.servers.ports import free_port
from tests.servers.valkey import Valkey

FOLDER = ROOT / "deploy" / "compose"
STORES = {"postgresql": "postgres", "redis": "redis"}
"""The service of each store."""
SECRETS = {"STORE_PASSWORD": "p" * 32, "S3_SECRET_KEY": "s" * 32, "PACKHORSE_SECRET_KEY": "k" * 32}
FINAL = stages(ROOT / "Dockerfile")[-1]
EACH = [(app, store) for app in APPS for store in STORES]


def read(name: str) -> dict[str, Any]:
    text = re.sub(r"\$\{(\w+):\?\}", lambda found: SECRETS[found[1]], (FOLDER / f"{name}.yaml").read_text())
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def merged(first: Any, second: Any) -> Any:
    """As `-f one -f two` does it: mappings by name."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second if second is not None else first
    return {name: merged(first.get(name), second.get(name)) for name in first | second}


def variables(services: dict[str, Any], name: str, app: str) -> dict[str, str]:
    """Of a container: those of the image, and those of the service."""
    found: dict[str, str] = environment(FINAL, app) | services[name]["environment"]
    return found


def settings(services: dict[str, Any], name: str, app: str) -> Settings:
    return load(env=variables(services, name, app), folder=ROOT / "deploy").settings


def test_there_is_a_file_for_each_app_and_each_store() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*APPS, *STORES}


@pytest.mark.parametrize(("app", "store"), EACH)
def test_an_app_with_a_store_is_a_whole_deployment(app: str, store: str) -> None:
    compose = merged(read(app), read(store))
    services = compose["services"]
    api, worker = (settings(services, name, app) for name in ("api", "worker"))

    check(api)
    check(worker)

    waits = {STORES[store], "s3"}
    assert services.keys() == {"api", "worker", *waits}
    assert (api.store, api.blobs, api.secret_key) == (worker.store, worker.blobs, worker.secret_key)
    assert STORES[store] in api.store
    assert redis_prefix(api) == ("prod:" if store == "redis" else None)
    assert api.port == 3002
    assert all(set(services[name]["depends_on"]) == waits for name in ("api", "worker"))
    assert all(services[name]["healthcheck"]["test"][0] == "CMD" for name in waits)
    assert {mount.split(":")[0] for name in waits for mount in services[name]["volumes"]} == compose["volumes"].keys()
    assert SECRETS["STORE_PASSWORD"] in services[STORES[store]]["environment"].values()


@pytest.mark.parametrize("app", APPS)
def test_an_app_has_an_image_of_its_own_and_its_worker_runs_it(app: str) -> None:
    compose = read(app)
    services = compose["services"]
    module, _, attribute = settings(services, "worker", app).app.partition(":")

    assert compose["name"] == f"packhorse-{app}"
    for name in ("api", "worker"):
        assert services[name]["build"] == {"context": "../..", "args": {"APP": app}}
        assert services[name]["image"] == f"packhorse-{app}"
        assert seconds(services[name]["stop_grace_period"]) > load(env={}).settings.drain + load(env={}).settings.grace
        command, *_ = command_line.parse_args(services[name]["command"], print_error=False, exit_on_error=False)
        assert command.__module__.startswith("packhorse.cli.commands.")
    assert (FOLDER / "../.." / "Dockerfile").resolve() == ROOT / "Dockerfile"
    assert hasattr(importlib.import_module(module), attribute)
    assert services["api"]["ports"] == ["127.0.0.1:3002:3002"]


@pytest.mark.parametrize("app", APPS)
def test_its_first_lines_say_what_it_needs_and_how_to_start_it(app: str) -> None:
    head = (FOLDER / f"{app}.yaml").read_text().partition("\nname:")[0]
    asked = {
        name for each in (app, *STORES) for name in re.findall(r"\$\{(\w+)", (FOLDER / f"{each}.yaml").read_text())
    }

    assert asked == SECRETS.keys()
    assert all(name in head for name in asked)
    for store in STORES:
        assert (
            f"docker compose -f deploy/compose/{app}.yaml -f deploy/compose/{store}.yaml up --build --detach --wait"
            in head
        )
    [key] = re.findall(r"run --rm api (.*)", head)
    command_line.parse_args(key, print_error=False, exit_on_error=False)


def test_the_apps_differ_only_in_what_is_theirs() -> None:
    texts = {re.sub(rf"\b{app}\b", "APP", (FOLDER / f"{app}.yaml").read_text().partition("\nx-")[2]) for app in APPS}
    bare = {re.sub(r"replicas: \d|    # .*\n", "", text) for text in texts}

    assert len(bare) == 1


def test_the_store_of_redis_takes_its_command_and_answers_only_with_the_password() -> None:
    """valkey-cli is not here: a client sends what its health check sends."""
    service = read("redis")["services"]["redis"]
    server = Valkey(*service["command"][1:])
    server.password = service["environment"]["REDISCLI_AUTH"]
    server.start()
    try:
        with server.client(decode_responses=True) as client:
            kept = client.config_get("append*") | client.config_get("maxmemory-policy")
            assert client.execute_command(service["healthcheck"]["test"][-1]) is True
        with redis.Redis(port=server.port, protocol=2) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
    finally:
        server.remove()

    assert (kept["appendonly"], kept["appendfsync"], kept["maxmemory-policy"]) == ("yes", "always", "noeviction")


def is_healthy(env: dict[str, str]) -> bool:
    """As the HEALTHCHECK of the image has it."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', only(FINAL, "HEALTHCHECK").text.split("CMD ", 1)[1])
    return subprocess.run([sys.executable, *words[1:]], env=env, capture_output=True, timeout=LONGEST).returncode == 0


@pytest.mark.parametrize(
    ("app", "store"),
    [pytest.param(*each, marks=() if each == ("fetch", "redis") else pytest.mark.release) for each in EACH],
)
def test_what_they_describe_starts_is_healthy_and_offers_the_app(house: House, app: str, store: str) -> None:
    services = merged(read(app), read(store))["services"]
    server = Valkey("--requirepass", SECRETS["STORE_PASSWORD"])
    here = {
        "PACKHORSE_HOST": "127.0.0.1",
        "PACKHORSE_PORT": str(house.port),
        "PACKHORSE_BLOBS": f"file://{house.folder}/blobs" if app == "fetch" else seaweed.running().place(),
        "PACKHORSE_S3_ACCESS_KEY": seaweed.KEYS.access,
        "PACKHORSE_S3_SECRET_KEY": seaweed.KEYS.secret,
    }
    if store == "redis":
        server.password = SECRETS["STORE_PASSWORD"]
        server.start()
        here["REDIS_URL"] = f"redis://127.0.0.1:{server.port}"
    else:
        here["PACKHORSE_STORE"] = postgres.server().url()
    here["PATH"] = house.env["PATH"]
    api = house.env | variables(services, "api", app) | here
    worker = house.env | variables(services, "worker", app) | here | {"PACKHORSE_METRICS_PORT": str(free_port())}
    try:
        house.start(*services["api"]["command"], env=api)
        house.start(*services["worker"]["command"], env=worker)
        until(lambda: is_healthy(api) and is_healthy(worker))
        key = house.run("keys", "create", "--scope", "admin", "--name", "ops", env=api).out.split()[-1]
        with Client(house.url, key=key) as client:
            offered = until(lambda: names_of(client))
    finally:
        house.end()
        server.remove()

    assert offered == importlib.import_module(f"packhorse_{app}").app.code.pipelines.keys()


def names_of(client: Client) -> set[str]:
    try:
        return {each["name"] for each in client.pipelines()}
    except PackhorseError:
        return set()
