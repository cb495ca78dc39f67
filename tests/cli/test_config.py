"""`packhorse config`: every value with where it came from."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from packhorse.define.options import seconds as read_seconds
from packhorse.settings import Settings, env_texts, load
from tests.cli.conftest import Tell


def test_each_source_beats_the_one_before_and_says_so(tell: Tell) -> None:
    Path("pyproject.toml").write_text("[tool.packhorse]\nhost='h1'\nport=1\nlease=1\ngrace=1\n")
    Path(".env").write_text("PACKHORSE_PORT=2\nPACKHORSE_LEASE=2\nPACKHORSE_GRACE=2\n")
    env = {"PACKHORSE_LEASE": "3", "PACKHORSE_GRACE": "3"}

    said = tell("config", "--json", "--grace", "4s", env=env)

    found = {each["name"]: (each["value"], each["origin"]) for each in said.json}
    assert found["PACKHORSE_HOST"] == ("h1", "pyproject.toml")
    assert found["PACKHORSE_PORT"] == (2, ".env")
    assert found["PACKHORSE_LEASE"] == (3.0, "environment")
    assert found["PACKHORSE_GRACE"] == (4.0, "flag")
    assert found["PACKHORSE_DRAIN"] == (30.0, "default")


def test_it_says_which_variables_and_files_the_address_of_redis_comes_from(tell: Tell) -> None:
    Path(".env").write_text("PACKHORSE_STORE=redis\nREDIS_PASSWORD=accusys\n")
    Path(".env.development").write_text("REDIS_URL=redis://localhost:6379\n")

    said = tell("config", "--json", env={"PACKHORSE_ENV": "development", "REDIS_DB": "0"})

    found = {each["name"]: (each["value"], each["origin"]) for each in said.json}
    assert found["PACKHORSE_STORE"] == (
        "redis://:***@localhost:6379",
        ".env, with REDIS_DB (environment), REDIS_PASSWORD (.env), REDIS_URL (.env.development)",
    )
    assert found["PACKHORSE_PREFIX"] == ("dev:", "default in development")
    assert found["PACKHORSE_PORT"] == (3003, "default in development")
    assert "accusys" not in said.out


def test_it_names_every_setting_with_its_meaning(tell: Tell) -> None:
    said = tell("config")

    for each in fields(Settings):
        assert f"PACKHORSE_{each.name.upper()} " in said.out
        assert each.metadata["description"] in said.out


def test_values_are_printed_as_people_write_them_and_can_be_used_again(tell: Tell) -> None:
    lines = [line.split() for line in tell("config").out.splitlines()]
    found = {line[0]: line[1] for line in lines if line[-1:]}

    assert found["PACKHORSE_AUDIT_AGE"] == "365d"
    assert found["PACKHORSE_FILE_LIMIT"] == "2GiB"
    assert found["PACKHORSE_LEASE"] == "15s"
    assert found["PACKHORSE_AUDIT_KEEP"] == "100_000"
    assert found["PACKHORSE_BACKOFF"] == "1s"
    same = Settings()
    texts = {name: text for name, text in env_texts(same).items() if text}
    assert load(env=texts, folder=Path("/nowhere")).settings == same


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250ms"), (90, "90s"), (5400, "90m"), (1.5, "1500ms"), (0.0005, "0.5ms")]
)
def test_a_duration_is_printed_in_the_largest_unit_that_is_exact(seconds: float, text: str) -> None:
    assert env_texts(Settings(lease=seconds))["PACKHORSE_LEASE"] == text
    assert read_seconds(text) == seconds


def test_a_flag_is_checked_like_any_setting(tell: Tell) -> None:
    said = tell("config", "--queue", "onnx=0")

    assert said.code == 2
    assert "Setting queues (flag) cannot be 'onnx=0'" in said.err


def test_secrets_are_not_printed(tell: Tell) -> None:
    env = {
        "PACKHORSE_STORE": "postgresql://me:hidden/1@host/db?password=hidden&sslmode=hidden",
        "PACKHORSE_BLOBS": "s3://key:hidden@bucket/x?region=eu&secret=hidden&endpoint=http://127.0.0.1:1",
        "PACKHORSE_S3_ACCESS_KEY": "me",
        "PACKHORSE_S3_SECRET_KEY": "hidden",
    }

    for flags in ((), ("--json",)):
        said = tell("config", *flags, env=env)

        assert "hidden" not in said.out + said.err
        assert "s3://key:***@bucket/x?region=eu&secret=***&endpoint=http://127.0.0.1:1" in said.out.replace("\n", "")


def test_a_secret_does_not_show_in_the_settings_themselves() -> None:
    assert "hidden" not in repr(Settings(s3_secret_key="hidden"))
