"""Schedules on the page: made, edited with a look before, rolled back, paused and run, as a person does it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from packhorse.client import Client
from tests.http.conftest import run
from tests.http.processes import Place, Server, until
from tests.tiers import sampled
from tests.web import mending
from tests.web.browser import check_access, person
from tests.web.hostile import ALL, CORPUS, check_harmless


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = Place(tmp_path_factory.mktemp("schedules"), app=mending.__file__, secret_key="s" * 40)
    with run(place) as server:
        yield server


def made(client: Client, id: str, **changes: object) -> None:
    given = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "pipeline": "greet", "parameters": {"name": "Ann"}}
    client.put_schedule(id, **{**given, "user": "ann", "reason": "first", **changes})  # type: ignore[arg-type]


def parameter(page: Page, name: str) -> Locator:
    """The input of a parameter."""
    return page.locator(f"#parameters-of [name='parameter:{name}']")


def as_json(page: Page) -> None:
    page.get_by_role("button", name="Edit as JSON").click()
    expect(page.get_by_label("Parameters")).to_be_visible()


def saved(page: Page) -> None:
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Save").click()


def test_one_is_made_and_looked_at_before_it_is_saved(page: Page, client: Client) -> None:
    page.goto("/schedules")
    page.get_by_role("link", name="New schedule").click()
    page.get_by_label("Name", exact=True).fill("weekdays")
    page.get_by_label("Cron expression").fill("0 9 * * 1-5")
    page.get_by_label("Time zone").fill("Asia/Tokyo")
    page.get_by_label("Pipeline").select_option("greet")
    page.get_by_label("User").fill("ann")
    parameter(page, "name").fill("Ben")
    page.get_by_label("Labels").fill("team=edge")
    page.get_by_label("Reason").fill("they asked for it")
    page.get_by_role("button", name="Preview").click()

    expect(page.get_by_text("Monday to Friday at 09:00, Asia/Tokyo")).to_be_visible()
    expect(page.locator(".moments li")).to_have_count(10)
    expect(page.get_by_role("region", name="Parameters as JSON")).to_contain_text('"name": "Ben"')
    assert [each["schedule_id"] for each in client.schedules() if each["schedule_id"] == "weekdays"] == []
    check_access(page)

    page.get_by_role("button", name="Save").click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("weekdays")
    expect(page.locator(".said")).to_have_text("Saved as version 1.")
    kept = client.schedule("weekdays")
    assert (kept["cron"], kept["zone"], kept["labels"]) == ("0 9 * * 1-5", "Asia/Tokyo", {"team": "edge"})
    assert (kept["parameters"], kept["user_id"], kept["active"]) == ({"name": "Ben"}, "ann", True)
    assert client.schedule_versions("weekdays")["items"][0]["reason"] == "they asked for it"


def test_an_edit_shows_what_would_be_different_and_only_then_is_made(page: Page, client: Client) -> None:
    made(client, "edited")
    page.goto("/schedules/edited")
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Cron expression").fill("0 4 * * *")
    parameter(page, "times").fill("2")
    page.get_by_role("button", name="Preview").click()

    rows = page.get_by_role("region", name="Differences").locator("tbody tr")
    expect(rows).to_have_text([re.compile(r"parameters\.times\s*–\s*2"), re.compile("cron.*30 2.*0 4", re.DOTALL)])
    assert client.schedule("edited")["version"] == 1

    page.get_by_role("button", name="Back to editing").click()
    expect(page.get_by_label("Cron expression")).to_have_value("0 4 * * *")
    page.get_by_label("Reason").fill("later is better")
    saved(page)

    expect(page.locator(".lead")).to_have_text("every day at 04:00, Europe/Berlin")
    expect(page.locator("#version-2")).to_contain_text("later is better")
    assert client.schedule("edited")["parameters"] == {"name": "Ann", "times": 2}


def test_another_pipeline_shows_its_own_parameters_and_keeps_what_both_have(page: Page, client: Client) -> None:
    page.goto("/schedules/new")
    page.get_by_label("Name", exact=True).fill("moved")
    parameter(page, "name").fill("Ann")

    page.get_by_label("Pipeline").select_option("log_in")
    expect(page.get_by_role("group", name="Parameters of log_in")).to_be_visible()
    check_access(page)
    expect(parameter(page, "name")).to_have_value("Ann")
    expect(page.get_by_label("Name", exact=True)).to_have_value("moved")
    parameter(page, "password").fill("canary-0123456789")
    as_json(page)
    expect(page.get_by_label("Parameters")).to_have_value(re.compile('"name": "Ann"'))
    page.get_by_role("button", name="Edit as a form").click()
    expect(parameter(page, "name")).to_have_value("Ann")


def test_a_mistake_in_a_parameter_is_told_beside_it_without_javascript(
    browser: Browser, running: Server, client: Client
) -> None:
    made(client, "strict", parameters={"name": "Ann", "times": 2})
    with person(browser, running.url, java_script_enabled=False) as page:
        page.goto("/schedules/strict/edit")
        expect(parameter(page, "times")).to_have_value("2")
        page.locator("form.form").evaluate("(form) => { form.noValidate = true }")
        parameter(page, "times").fill("2.5")
        page.get_by_role("button", name="Preview").click()
        expect(parameter(page, "times")).to_have_accessible_description(re.compile("integer"))
        expect(parameter(page, "times")).to_have_value("2.5")

        parameter(page, "times").fill("3")
        saved(page)

    assert client.schedule("strict")["parameters"] == {"name": "Ann", "times": 3}


def test_of_two_who_edit_at_once_the_second_sees_both_and_decides(
    page: Page, browser: Browser, running: Server, client: Client
) -> None:
    made(client, "contested")
    page.goto("/schedules/contested/edit")
    with person(browser, running.url) as other:
        other.goto("/schedules/contested/edit")
        other.get_by_label("Cron expression").fill("0 6 * * *")
        other.get_by_label("Reason").fill("mine was first")
        saved(other)
        expect(other.locator(".lead")).to_have_text("every day at 06:00, Europe/Berlin")

    page.get_by_label("Time zone").fill("UTC")
    page.get_by_role("button", name="Preview").click()

    expect(page.get_by_role("alert")).to_contain_text("mine was first")
    expect(page.get_by_role("region", name="Their changes").locator("tbody")).to_contain_text("0 6 * * *")
    expect(page.get_by_role("region", name="Your changes to their version").locator("tbody")).to_contain_text(
        "30 2 * * *"
    )
    check_access(page)
    assert client.schedule("contested")["version"] == 2

    page.get_by_role("button", name="Continue with yours").click()
    expect(page.get_by_label("Time zone")).to_have_value("UTC")
    page.get_by_label("Cron expression").fill("0 6 * * *")
    saved(page)

    expect(page.locator(".lead")).to_have_text("every day at 06:00, UTC")
    assert client.schedule("contested")["version"] == 3


def test_a_save_is_refused_too_if_somebody_was_faster_after_the_look(page: Page, client: Client) -> None:
    made(client, "late")
    page.goto("/schedules/late/edit")
    page.get_by_role("button", name="Preview").click()
    client.pause_schedule("late", "not now")

    page.get_by_role("button", name="Save").click()

    expect(page.get_by_role("alert")).to_contain_text("paused by local: not now")
    assert client.schedule("late")["version"] == 2


@pytest.mark.parametrize(
    ("label", "typed", "told"),
    sampled(
        [
            ("Cron expression", "99 * * * *", "Invalid cron expression: minute must be 0–59"),
            ("Time zone", "Mars/Olympus", "Unknown time zone"),
            ("Parameters", "{", "Not valid JSON"),
            ("Parameters", "[1]", "must be an object"),
            ("Parameters", '{"name": 7}', "name: "),
            ("Catch up if it is newer than", "soon", "not a duration"),
            ("Labels", "edge", "NAME=VALUE"),
        ]
    ),
)
def test_a_mistake_is_told_beside_its_field_and_what_was_typed_stays(
    page: Page, client: Client, label: str, typed: str, told: str
) -> None:
    if not [each for each in client.schedules() if each["schedule_id"] == "mistaken"]:
        made(client, "mistaken")
    page.goto("/schedules/mistaken/edit")
    if label == "Parameters":
        as_json(page)
    field = page.get_by_label(label)
    field.fill(typed)
    page.get_by_label("Reason").fill("to see it refused")
    page.get_by_role("button", name="Preview").click()

    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_value(typed)
    expect(field).to_have_accessible_description(re.compile(re.escape(told)))
    expect(page.get_by_label("Reason")).to_have_value("to see it refused")
    check_access(page)


def test_all_mistakes_are_told_at_once(page: Page, client: Client) -> None:
    if not [each for each in client.schedules() if each["schedule_id"] == "mistaken"]:
        made(client, "mistaken")
    page.goto("/schedules/new")
    page.get_by_label("Pipeline").select_option("greet")
    as_json(page)
    page.get_by_label("Name", exact=True).fill("mistaken")
    wrong = {"Cron expression": "99 * * * *", "Time zone": "Mars/Olympus", "Catch up if it is newer than": "soon"}
    for label, typed in {**wrong, "Parameters": '{"times": "x"}'}.items():
        page.get_by_label(label).fill(typed)
    page.get_by_role("button", name="Preview").click()

    for label in ("Name", *wrong, "Parameters"):
        expect(page.get_by_label(label, exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Parameters")).to_have_accessible_description(re.compile("name: This is required"))
    page.get_by_label("Parameters").fill("{")
    page.get_by_label("Labels").fill("edge")
    page.get_by_role("button", name="Preview").click()
    for label in (*wrong, "Labels"):
        expect(page.get_by_label(label)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Parameters")).to_have_accessible_description(re.compile("Not valid JSON: [^;]*$"))
    check_access(page)


def test_what_needs_a_file_is_not_offered_and_it_is_said_why(page: Page) -> None:
    page.goto("/schedules/new")

    field = page.get_by_label("Pipeline")
    assert "stamp" not in field.locator("option").all_inner_texts()
    assert "greet" in field.locator("option").all_inner_texts()
    expect(field).to_have_accessible_description(re.compile("they need files: stamp"))


def test_a_new_one_does_not_take_the_place_of_another(page: Page, client: Client) -> None:
    made(client, "taken")
    page.goto("/schedules/new")
    page.get_by_label("Name", exact=True).fill("taken")
    page.get_by_label("Cron expression").fill("0 9 * * *")
    page.get_by_label("Pipeline").select_option("greet")
    page.get_by_label("User").fill("ann")
    parameter(page, "name").fill("Ben")

    page.get_by_role("button", name="Preview").click()

    expect(page.get_by_label("Name", exact=True)).to_have_accessible_description(re.compile("already"))
    assert client.schedule("taken")["version"] == 1


def test_versions_are_compared_and_rolled_back_to(page: Page, client: Client) -> None:
    made(client, "back")
    made(client, "back", cron="0 4 * * *", reason="second", version=1)
    made(client, "back", cron="0 5 * * *", reason="third", version=2)
    page.goto("/schedules/back/history")
    check_access(page)
    page.get_by_label("Compare version").fill("1")
    page.get_by_role("button", name="Compare").click()

    expect(page).to_have_url(re.compile(r"/diff\?old=1&new=3$"))
    expect(page.get_by_role("region", name="Differences").locator("tbody")).to_contain_text("30 2 * * *")
    check_access(page)
    page.get_by_role("link", name="Roll back to version 1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Roll back to version 1?")
    expect(page.get_by_role("region", name="Differences").locator("tbody")).to_contain_text("0 5 * * *")
    page.get_by_label("Reason").fill("it was better")
    page.get_by_role("button", name="Roll back").click()

    expect(page.locator(".said")).to_have_text("Rolled back.")
    expect(page.locator("#version-4")).to_contain_text("it was better")
    assert client.schedule("back")["cron"] == "30 2 * * *"


def test_one_is_paused_with_a_reason_and_resumed_in_the_list(page: Page, client: Client) -> None:
    made(client, "switched")
    page.goto("/schedules/switched")
    page.get_by_label("Reason").fill("the source is moved")
    page.get_by_role("button", name="Pause").click()

    expect(page.locator("h1 .status")).to_have_text("paused")
    assert client.schedule_versions("switched")["items"][0]["reason"] == "the source is moved"

    page.goto("/schedules")
    page.get_by_role("button", name="Resume: switched").click()

    expect(page.locator("#schedule-switched .status")).to_have_text("active")
    expect(page).to_have_url(re.compile("/schedules$"))
    assert client.schedule("switched")["active"]


def test_a_run_is_seen_to_end_without_a_reload(page: Page, client: Client) -> None:
    made(client, "ran")
    page.goto("/schedules/ran")
    page.get_by_role("button", name="Run now").click()
    page.evaluate("window.mark = 1")

    row = page.get_by_role("region", name="Table of runs").locator("tbody tr")
    expect(row.locator(".status")).to_have_text("completed")
    assert page.evaluate("window.mark") == 1
    [ended] = client.schedule_runs("ran")["items"]
    expect(row.get_by_role("link", name=ended["job_id"][-8:], exact=True)).to_have_attribute(
        "href", f"/jobs/{ended['job_id']}"
    )
    expect(row.get_by_role("link", name="Result of")).to_have_attribute("href", ended["output_url"])
    expect(row).to_contain_text(ended["trace_id"])
    check_access(page)

    page.goto("/schedules")
    spark = page.locator("#schedule-ran .spark")
    expect(spark).to_have_attribute("aria-label", "The only run: completed")
    expect(spark.locator("rect.of-completed title")).to_contain_text("completed in")


def test_one_is_deleted_after_a_question_and_still_to_be_found(page: Page, client: Client) -> None:
    made(client, "ended")
    page.goto("/schedules/ended")
    page.get_by_role("link", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Delete?")
    assert client.schedule("ended")["deleted_at"] is None
    page.get_by_label("Reason").fill("nobody needs it")
    page.get_by_role("button", name="Delete").click()

    expect(page.locator("h1 .status")).to_have_text("deleted")
    expect(page.get_by_role("button", name="Run now")).to_have_count(0)
    page.goto("/schedules")
    expect(page.locator("#schedule-ended")).to_have_count(0)
    page.get_by_role("link", name="Including deleted").click()
    expect(page.locator("#schedule-ended .status")).to_have_text("deleted")


def test_what_differs_from_the_code_is_shown_and_reset(page: Page, client: Client) -> None:
    until(lambda: [each for each in client.schedules() if each["schedule_id"] == "declared"])
    page.goto("/schedules/declared/edit")
    page.get_by_label("Cron expression").fill("0 7 * * *")
    saved(page)

    drift = page.get_by_role("region", name="Differences from the code")
    expect(drift.locator("tbody tr")).to_have_text(re.compile(r"cron\s*0 5 \* \* \*\s*0 7 \* \* \*"))
    page.get_by_role("link", name="Reset to the code").click()
    expect(page.get_by_role("region", name="Differences").locator("tbody")).to_contain_text("0 5 * * *")
    page.get_by_role("button", name="Reset to the code").click()

    expect(page.locator(".lead")).to_have_text("every day at 05:00, UTC")
    expect(drift).to_have_count(0)


def test_times_that_the_clock_skips_or_shows_twice_are_marked(page: Page, client: Client) -> None:
    made(client, "clocks", cron="30 2 28-31 3 *", parameters={"name": "Ann"})
    page.goto("/schedules/clocks")

    expect(page.locator(".moments .is-moved").first).to_contain_text("does not exist on this day")


def test_a_secret_is_never_shown_and_stays_if_its_dots_do(page: Page, client: Client) -> None:
    secret = "canary-0123456789"
    made(client, "secret", pipeline="log_in", parameters={"name": "ann", "password": secret})
    seen = []
    for path in ("", "/edit", "/history"):
        page.goto(f"/schedules/secret{path}")
        seen.append(page.content())
    page.goto("/schedules/secret/edit")
    page.get_by_label("Cron expression").fill("0 4 * * *")
    page.get_by_role("button", name="Preview").click()
    seen.append(page.content())
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Run now").click()

    expect(page.get_by_role("region", name="Table of runs").locator(".status")).to_have_text("completed")
    [ended] = client.schedule_runs("secret")["items"]
    assert client.wait(ended["job_id"])["result"] == len("ann") + len(secret)
    assert [secret in each for each in seen] == [False] * 4


def test_it_is_edited_with_the_keyboard_alone(page: Page, client: Client) -> None:
    made(client, "typed")
    page.goto("/schedules/typed")
    page.get_by_role("link", name="Edit").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Cron expression").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("0 8 * * *")
    page.keyboard.press("Enter")  # sends the form
    save = page.get_by_role("button", name="Save")
    expect(save).to_be_visible()
    for _ in range(40):
        page.keyboard.press("Tab")
        if save.evaluate("(button) => button === document.activeElement"):
            break
    page.keyboard.press("Enter")

    expect(page.locator(".lead")).to_have_text("every day at 08:00, Europe/Berlin")


def test_what_somebody_has_written_is_only_text(page: Page, client: Client) -> None:
    made(client, "hostile", user=ALL[:100], parameters={"name": ALL}, labels={"<b>": ALL[:60]}, reason=ALL)
    made(client, "hostile", user=ALL[:100], parameters={"name": f"{ALL}!"}, reason=ALL, version=1)

    page.goto("/schedules")
    check_harmless(page, ALL[:100])
    for path in ("", "/history", "/diff?old=1&new=2"):
        page.goto(f"/schedules/hostile{path}")
        check_harmless(page, *CORPUS)
    page.goto("/schedules/hostile/edit")
    page.get_by_label("Reason").fill(ALL)
    parameter(page, "name").fill(CORPUS[0])
    page.get_by_role("button", name="Preview").click()
    check_harmless(page, *CORPUS)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#version-3")).to_be_visible()
    check_harmless(page, *CORPUS)


@pytest.mark.parametrize("name", sampled(CORPUS))
def test_a_name_that_cannot_be_one_is_refused_as_text(page: Page, name: str) -> None:
    page.goto("/schedules/new")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Cron expression").fill("0 9 * * *")
    parameter(page, "name").fill("Ann")
    page.get_by_role("button", name="Preview").click()

    expect(page.get_by_role("alert")).to_be_visible()
    check_harmless(page, name)


PATHS = ("", "/seen", "/seen/edit", "/seen/history", "/seen/rollback?to=1", "/seen/delete", "/new")


@pytest.fixture(scope="module")
def seen(running: Server) -> None:
    with Client(running.url) as client:
        made(client, "seen")
        made(client, "seen", cron="0 4 * * *", reason="second " * 20, version=1)
        client.run_schedule("seen")
        until(lambda: client.schedule_runs("seen")["items"][0]["status"] == "completed")


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize("theme", sampled(["light", "dark"]))
def test_every_page_can_be_used_by_everybody(browser: Browser, running: Server, theme: str) -> None:
    with person(browser, running.url, color_scheme=theme) as page:
        for path in PATHS:
            page.goto(f"/schedules{path}")
            check_access(page)


@pytest.mark.usefixtures("seen")
def test_every_page_fits_a_narrow_screen(browser: Browser, running: Server) -> None:
    with person(browser, running.url, viewport={"width": 360, "height": 740}) as page:
        for path in PATHS:
            page.goto(f"/schedules{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
            check_access(page)
