"""Settings: which source wins, what is refused, and how values are written."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from packhorse.core.plan import Revive, Status
from packhorse.errors import SettingError
from packhorse.factory import check
from packhorse.settings import Settings, descriptions, keep_secret_key, load, printable, queues, secret_keys


def written(folder: Path, *, pyproject: str = "", env: str = "", **environments: str) -> Path:
    for name, text in environments.items():
        (folder / f".env.{name}").write_text(text)
    if pyproject:
        (folder / "pyproject.toml").write_text(f"[tool.packhorse]\n{pyproject}\n")
    if env:
        (folder / ".env").write_text(env)
    return folder


def test_every_setting_has_a_default_and_a_meaning(tmp_path: Path) -> None:
    loaded = load(env={}, folder=tmp_path)

    assert set(loaded.origins.values()) == {"default"}
    assert set(loaded.origins) == {each.name for each in fields(Settings)}
    assert all(descriptions().values())


def test_by_default_everything_is_kept_below_the_folder_we_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    settings = load(env={}).settings

    assert settings.store == f"sqlite://{tmp_path}/.packhorse/packhorse.db"
    assert settings.blobs == f"file://{tmp_path}/.packhorse/blobs"
    assert settings.scratch == f"{tmp_path}/.packhorse/scratch"


SOURCES = ["pyproject.toml", ".env", ".env.production", "environment", "flag"]


@pytest.mark.parametrize("winner", range(len(SOURCES)))
def test_a_flag_beats_the_environment_beats_the_env_files_beat_pyproject(tmp_path: Path, winner: int) -> None:
    given = SOURCES[: winner + 1]
    folder = written(
        tmp_path,
        pyproject='env = "production"\nport = 1001',
        env="PACKHORSE_PORT=1002" if ".env" in given else "",
        production="PACKHORSE_PORT=1003" if ".env.production" in given else "",
        development="PACKHORSE_PORT=1",
    )

    loaded = load(
        {"port": "1005"} if "flag" in given else {},
        env={"PACKHORSE_PORT": "1004"} if "environment" in given else {},
        folder=folder,
    )

    assert loaded.settings.port == 1001 + winner
    assert loaded.origins["port"] == SOURCES[winner]
    assert loaded.origins["host"] == "default"


def test_a_flag_that_was_not_given_says_nothing(tmp_path: Path) -> None:
    loaded = load({"port": None}, env={"PACKHORSE_PORT": "1003"}, folder=tmp_path)

    assert loaded.settings.port == 1003


@pytest.mark.parametrize("source", SOURCES)
def test_an_unknown_name_is_refused_with_where_it_stands_and_what_it_could_be(tmp_path: Path, source: str) -> None:
    folder = written(
        tmp_path,
        pyproject='leese = "1s"' if source == "pyproject.toml" else "",
        env="PACKHORSE_LEESE=1" if source == ".env" else "",
        production="PACKHORSE_LEESE=1" if source == ".env.production" else "",
    )
    flags = {"leese": "1s"} if source == "flag" else {}
    env = {"PACKHORSE_ENV": "production", **({"PACKHORSE_LEESE": "1"} if source == "environment" else {})}

    with pytest.raises(SettingError) as refused:
        load(flags, env=env, folder=folder)

    assert f"Unknown setting 'leese' ({source})" in refused.value.message
    assert refused.value.exit_code == 2


def test_a_close_name_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Did you mean lease"):
        load(env={"PACKHORSE_LEASES": "1"}, folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "65536"),
        ("port", "-1"),
        ("port", "http"),
        ("lease", "soon"),
        ("lease", "0"),
        ("lease", "-1s"),
        ("slots", "0"),
        ("slots", "many"),
        ("recycle", "0"),
        ("retries", "-1"),
        ("file_limit", "2 bananas"),
        ("queues", "onnx=0"),
        ("queues", "onnx=two"),
        ("queues", "a b=1"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingError, match=name):
        load({name: value}, env={}, folder=tmp_path)


def test_dot_env_is_read_as_a_shell_would_write_it(tmp_path: Path) -> None:
    text = "# a comment\n\nexport PACKHORSE_HOST='0.0.0.0'\nPACKHORSE_APP = \"flow.py\"\nOTHER=1\nnonsense\n"

    settings = load(env={}, folder=written(tmp_path, env=text)).settings

    assert (settings.host, settings.app) == ("0.0.0.0", "flow.py")


def test_pyproject_may_use_its_own_types_and_dashes(tmp_path: Path) -> None:
    folder = written(tmp_path, pyproject='port = 4000\nfile-limit = "1GB"\nlease = 2.5\nqueues = {onnx = 2, bie = 1}')

    settings = load(env={}, folder=folder).settings

    assert (settings.port, settings.file_limit, settings.lease) == (4000, 1024**3, 2.5)
    assert settings.queues == {"onnx": 2, "bie": 1}


def test_a_pyproject_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.packhorse\n")

    with pytest.raises(SettingError, match=r"pyproject\.toml is not valid TOML"):
        load(env={}, folder=tmp_path)


def test_the_rest_of_pyproject_and_of_the_environment_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.other]\nleese = 1\n')

    loaded = load(env={"PATH": "/bin", "PACK": "1"}, folder=tmp_path)

    assert set(loaded.origins.values()) == {"default"}


def test_durations_and_sizes_are_written_with_their_unit(tmp_path: Path) -> None:
    flags = {"lease": "1.5m", "grace": "250ms", "keep": "2d", "file_limit": "1MiB"}

    settings = load(flags, env={}, folder=tmp_path).settings

    assert (settings.lease, settings.grace, settings.keep, settings.file_limit) == (90, 0.25, 172_800, 1024**2)


def test_a_queue_without_a_number_has_one_slot() -> None:
    assert queues("onnx=2, bie,") == {"onnx": 2, "bie": 1}
    assert queues("") == {}


def test_a_secret_key_that_is_too_short_is_refused_without_being_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as refused:
        load(env={"PACKHORSE_SECRET_KEY": "hunter2"}, folder=tmp_path)

    assert "hunter2" not in str(refused.value) + str(refused.value.facts)
    assert "at least 32 characters" in str(refused.value)


def test_what_may_be_called_besides_the_public_is_hosts_and_networks(tmp_path: Path) -> None:
    allowed = load(env={"PACKHORSE_OUTBOUND_ALLOW": "hooks.internal, 10.1.0.0/16"}, folder=tmp_path).settings

    with pytest.raises(SettingError, match="neither a host nor a network"):
        load(env={"PACKHORSE_OUTBOUND_ALLOW": "10.1.0.0/99"}, folder=tmp_path)

    assert allowed.outbound_allow == "hooks.internal, 10.1.0.0/16"


def test_how_long_jobs_are_kept_is_said_per_status_or_for_all(tmp_path: Path) -> None:
    env = {"PACKHORSE_KEEP": "3d", "PACKHORSE_KEEP_FAILED": "30d", "PACKHORSE_PENDING": "2h"}

    found = load(env=env, folder=tmp_path).settings.defaults

    assert (found.keep, found.kept, found.pending) == (3 * 86_400.0, {Status.FAILED: 30 * 86_400.0}, 7_200.0)


def test_a_deployment_may_revive_what_its_pipelines_say_nothing_about(tmp_path: Path) -> None:
    env = {"PACKHORSE_REVIVE_CODES": "HTTP_500, TIMEOUT", "PACKHORSE_REVIVE_BUDGET": "5"}

    found = load(env=env, folder=tmp_path).settings.defaults.revive

    assert found == Revive(("HTTP_500", "TIMEOUT"), budget=5)
    assert load(env={}, folder=tmp_path).settings.defaults.revive.codes == ()
    for name, value in (("REVIVE_CODES", "no code"), ("REVIVE_TIMES", "0"), ("ALERT_COMMAND", "say 'what")):
        with pytest.raises(SettingError):
            load(env={f"PACKHORSE_{name}": value}, folder=tmp_path)


def test_a_kept_secret_key_is_found_by_who_has_set_none(tmp_path: Path) -> None:
    keep_secret_key(tmp_path)
    kept = load(env={}, folder=tmp_path)
    keep_secret_key(tmp_path)

    assert len(kept.settings.secret_key) >= 32
    assert kept.origins["secret_key"] == ".packhorse/secret-key"
    assert load(env={}, folder=tmp_path).settings.secret_key == kept.settings.secret_key
    assert (tmp_path / ".packhorse" / "secret-key").stat().st_mode & 0o777 == 0o600
    assert load(env={"PACKHORSE_SECRET_KEY": "x" * 32}, folder=tmp_path).settings.secret_key == "x" * 32


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", []),
        ("a" * 40, ["a" * 40]),
        ("a" * 40 + "\n", ["a" * 40 + "\n"]),
        (f"{'a' * 40}, {'b' * 32}", ["a" * 40, "b" * 32]),
        ("a passphrase of people, who write commas", ["a passphrase of people, who write commas"]),
    ],
)
def test_several_secret_keys_are_a_list_and_a_passphrase_with_a_comma_is_one(text: str, keys: list[str]) -> None:
    assert secret_keys(text) == keys
    assert load({"secret_key": text}, env={}).settings.secret_key == text


@pytest.mark.parametrize(
    ("environment", "prefix", "port"),
    [("", "packhorse:", 3002), ("development", "dev:", 3003), ("Production", "prod:", 3002)],
)
def test_the_environment_sets_the_default_prefix_and_port(
    tmp_path: Path, environment: str, prefix: str, port: int
) -> None:
    loaded = load(env={"PACKHORSE_ENV": environment}, folder=tmp_path)

    assert (loaded.settings.prefix, loaded.settings.port) == (prefix, port)
    assert loaded.origins["prefix"] == (f"default in {environment.lower()}" if environment else "default")


def test_an_explicit_prefix_and_port_win_over_those_of_the_environment(tmp_path: Path) -> None:
    folder = written(tmp_path, pyproject='env = "production"\nprefix = "packhorse:"\nport = 80')

    settings = load(env={}, folder=folder).settings

    assert (settings.env, settings.prefix, settings.port) == ("production", "packhorse:", 80)


def test_an_environment_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"Setting env \(environment\) cannot be 'staging': it must be development or"
    ):
        load(env={"PACKHORSE_ENV": "staging"}, folder=tmp_path)


def test_the_file_of_an_environment_cannot_choose_another(tmp_path: Path) -> None:
    folder = written(tmp_path, development="PACKHORSE_ENV=production")

    with pytest.raises(SettingError, match=r"\.env\.development is read because the environment is development"):
        load({"env": "development"}, env={}, folder=folder)


REDIS_VARIABLES = {"REDIS_URL": "redis://localhost:6379", "REDIS_PASSWORD": "p@ss/word", "REDIS_DB": "2"}


@pytest.mark.parametrize("store", ["", "sqlite:////srv/jobs.db", "redis://other"])
def test_variables_of_redis_are_ignored_unless_the_store_is_redis_without_an_address(
    tmp_path: Path, store: str
) -> None:
    given = {"PACKHORSE_STORE": store} if store else {}

    loaded = load(env={**given, **REDIS_VARIABLES}, folder=tmp_path)

    assert loaded.settings.store == (store or load(env={}, folder=tmp_path).settings.store)
    assert loaded.borrowed == frozenset()


def test_redis_is_found_by_its_usual_variables_and_their_origin_is_told(tmp_path: Path) -> None:
    folder = written(
        tmp_path,
        env="PACKHORSE_STORE=redis\nREDIS_URL=redis://production:6379\nREDIS_DB=2\nREDIS_PASSWORD=other",
        development="REDIS_URL=redis://localhost:6379",
    )

    loaded = load({"env": "development"}, env={"REDIS_PASSWORD": "p@ss/word"}, folder=folder)

    assert loaded.settings.store == "redis://:p%40ss%2Fword@localhost:6379?db=2"
    assert loaded.origins["store"] == (
        ".env, with REDIS_DB (.env), REDIS_PASSWORD (environment), REDIS_URL (.env.development)"
    )
    assert "p%40ss" not in printable(loaded.settings)["store"]
    assert loaded.borrowed == set(REDIS_VARIABLES)


@pytest.mark.parametrize(
    ("variables", "store"),
    [
        ({"REDIS_URL": "redis://a:6379", "REDIS_DB": "0"}, "redis://a:6379"),
        ({"REDIS_URL": "redis://a/3", "REDIS_DB": "3"}, "redis://a/3"),
        ({"REDIS_URL": "redis://ann:x@a", "REDIS_PASSWORD": "x"}, "redis://ann:x@a"),
        ({"REDIS_URL": "redis://ann@a", "REDIS_PASSWORD": "x"}, "redis://ann:x@a"),
        ({"REDIS_URL": "unix:///run/redis.sock", "REDIS_DB": "1"}, "unix:///run/redis.sock?db=1"),
        ({"REDIS_URL": "redis+sentinel://a,b/main", "REDIS_DB": "1"}, "redis+sentinel://a,b/main?db=1"),
    ],
)
def test_password_and_database_are_added_to_the_address(tmp_path: Path, variables: dict[str, str], store: str) -> None:
    loaded = load(env={"PACKHORSE_STORE": "redis", **variables}, folder=tmp_path)

    assert loaded.settings.store == store
    check(loaded.settings)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "REDIS_URL must be such as redis://localhost:6379. It is not set"),
        ({"REDIS_URL": "localhost:6379"}, "It is 'localhost:6379'"),
        ({"REDIS_URL": "redis://:one@a", "REDIS_PASSWORD": "two"}, "different passwords"),
        ({"REDIS_URL": "redis://a/1", "REDIS_DB": "2"}, "names the database 1, and REDIS_DB is 2"),
        ({"REDIS_URL": "redis://a", "REDIS_DB": "two"}, "REDIS_DB must be a number"),
    ],
)
def test_variables_of_redis_that_contradict_each_other_are_refused(
    tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingError) as refused:
        load(env={"PACKHORSE_STORE": "redis", **variables}, folder=tmp_path)

    assert message in str(refused.value)
