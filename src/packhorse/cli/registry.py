"""The table of commands. Each module is loaded when its command is called, so that none pays for the others."""

from __future__ import annotations

from cyclopts import App, Group, Parameter

from packhorse.version import VERSION

RUNNING, JOBS, LOOKING = (Group.create_ordered(name) for name in ("Running", "Jobs", "Looking after it"))

app = App(
    "packhorse",
    help="Carries long jobs: from a pressed button to a finished file.",
    version=VERSION,
    default_parameter=Parameter(negative=(), show_default=False),
    help_format="plaintext",
    exit_on_error=False,
    print_error=False,
    verbose=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
    group_commands=Group("Options", sort_key=9),
)

COMMANDS = (
    (RUNNING, "init", "packhorse.cli.commands.init:init", "Write a small project that runs, with a test."),
    (
        RUNNING,
        "dev",
        "packhorse.cli.commands.dev:dev",
        "Run server and worker here, and restart them when the code changes.",
    ),
    (RUNNING, "serve", "packhorse.cli.commands.processes:serve", "Run the server."),
    (RUNNING, "worker", "packhorse.cli.commands.processes:worker", "Run a worker."),
    (JOBS, "submit", "packhorse.cli.commands.submit:submit", "Submit a job."),
    (JOBS, "jobs", "packhorse.cli.commands.jobs:jobs", "List jobs, newest first."),
    (JOBS, "show", "packhorse.cli.commands.jobs:show", "Show a job, or follow it until it has ended."),
    (JOBS, "logs", "packhorse.cli.commands.jobs:logs", "Print what a job's stages have printed."),
    (JOBS, "cancel", "packhorse.cli.commands.job_actions:cancel", "Cancel a job, or many."),
    (
        JOBS,
        "retry",
        "packhorse.cli.commands.job_actions:retry",
        "Run a job again, from the stage that failed, or many.",
    ),
    (JOBS, "delete", "packhorse.cli.commands.job_actions:delete", "Delete an ended job with its files, or many."),
    (JOBS, "result", "packhorse.cli.commands.results:result", "Download a job's result."),
    (
        JOBS,
        "artifacts",
        "packhorse.cli.commands.results:artifacts",
        "List the files a job's stages have made, or download one.",
    ),
    (JOBS, "promote", "packhorse.cli.commands.jobs:promote", "Copy a job's result to a place where it stays."),
    (JOBS, "pipelines", "packhorse.cli.commands.jobs:pipelines", "List what can be submitted."),
    (
        JOBS,
        "tokens",
        "packhorse.cli.commands.tokens:app",
        "Let somebody without a key see one job: create, list, revoke.",
    ),
    (LOOKING, "top", "packhorse.cli.commands.top:top", "Watch queues, workers, running jobs and failures."),
    (LOOKING, "stats", "packhorse.cli.commands.stats:stats", "Show what there is, and how it went."),
    (LOOKING, "workers", "packhorse.cli.commands.stats:workers", "List the workers, and those that were lost."),
    (
        LOOKING,
        "queues",
        "packhorse.cli.commands.queues:queues",
        "List the queues: what waits, who serves them, what is paused.",
    ),
    (LOOKING, "pause", "packhorse.cli.commands.queues:pause", "Start nothing more from a queue."),
    (LOOKING, "resume", "packhorse.cli.commands.queues:resume", "Go on with a queue."),
    (
        LOOKING,
        "schedules",
        "packhorse.cli.commands.schedules:app",
        "Run jobs by the clock: list, edit, pause, run, look back.",
    ),
    (
        LOOKING,
        "failures",
        "packhorse.cli.commands.failures:app",
        "Show what went wrong, in groups, and retry or dismiss it.",
    ),
    (LOOKING, "keys", "packhorse.cli.commands.keys:app", "Make, list, rotate and revoke keys."),
    (LOOKING, "audit", "packhorse.cli.commands.keys:audit", "Show who did what with which key."),
    (
        LOOKING,
        "webhooks",
        "packhorse.cli.commands.webhooks:app",
        "Tell another server of ended jobs: list, add, remove, test.",
    ),
    (LOOKING, "doctor", "packhorse.cli.commands.doctor:doctor", "Check store, files and workers; needs no server."),
    (
        LOOKING,
        "completion",
        "packhorse.cli.commands.completion:completion",
        "Print what makes bash, zsh or fish complete this.",
    ),
    (LOOKING, "config", "packhorse.cli.commands.config:config", "Show every setting and where its value comes from."),
)

for place, (group, name, where, meaning) in enumerate(COMMANDS):
    app.command(where, name=name, help=meaning, group=group, sort_key=place)
app.command("packhorse.cli.commands.completion:names", name="names", help="Names for completion.", show=False)
