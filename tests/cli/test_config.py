"""`packhorse config`: every value with where it came from."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from packhorse.settings import Settings
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


def test_it_names_every_setting_with_its_meaning(tell: Tell) -> None:
    said = tell("config")

    for each in fields(Settings):
        assert f"PACKHORSE_{each.name.upper()} " in said.out
        assert each.metadata["description"] in said.out


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
