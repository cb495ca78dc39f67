"""The table of commands. Each module is loaded when its command is called, so that none pays for the others."""

from __future__ import annotations

from cyclopts import App, Group, Parameter

from packhorse.version import VERSION

RUNNING, JOBS, LOOKING = (Group.create_ordered(name) for name in ("Running", "Jobs", "Operations"))

app = App(
    "packhorse",
    help="Runs long, multi-stage jobs on user files: from a click to a finished file.",
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
    (RUNNING, "init", "installation:init", "Write a small project that runs, with a test."),
    (
        RUNNING,
        "dev",
        "processes:dev",
        "Run server and worker here; restart the worker on code changes.",
    ),
    (RUNNING, "serve", "processes:serve", "Run the server."),
    (RUNNING, "worker", "processes:worker", "Run a worker."),
    (JOBS, "submit", "submit:submit", "Submit a job."),
    (JOBS, "jobs", "jobs:jobs", "List jobs, newest first."),
    (JOBS, "show", "jobs:show", "Show a job, or follow its current run until it ends."),
    (JOBS, "explain", "jobs:explain", "Explain why a job waits, and estimate how long it takes."),
    (JOBS, "logs", "jobs:logs", "Print the log of a job's stages."),
    (JOBS, "cancel", "job_actions:cancel", "Cancel one or more jobs."),
    (JOBS, "retry", "job_actions:retry", "Retry one or more jobs, from the stage that failed."),
    (JOBS, "delete", "job_actions:delete", "Delete one or more ended jobs with their files."),
    (JOBS, "result", "results:result", "Download a job's result."),
    (JOBS, "artifacts", "results:artifacts", "List the files of a job's stages, or download one."),
    (JOBS, "promote", "jobs:promote", "Copy a job's result to permanent storage."),
    (JOBS, "pipelines", "jobs:pipelines", "List the pipelines that you can submit."),
    (JOBS, "tokens", "keys:tokens", "Create, list and revoke tokens that give access to one job."),
    (LOOKING, "top", "top:top", "Watch queues, workers, running jobs and failures."),
    (LOOKING, "stats", "operations:stats", "Show job counts and throughput."),
    (LOOKING, "workers", "operations:workers", "List the workers, including lost ones."),
    (LOOKING, "queues", "operations:queues", "List the queues: waiting tasks, workers, pauses."),
    (LOOKING, "pause", "operations:pause", "Pause a queue: start no more tasks from it."),
    (LOOKING, "resume", "operations:resume", "Resume a queue."),
    (LOOKING, "limits", "limits:app", "Show and change how many tasks run at once or start in a time."),
    (LOOKING, "schedules", "schedules:app", "Run jobs on a schedule: list, edit, pause, run, show runs."),
    (LOOKING, "failures", "failures:app", "List failures, grouped by cause, and retry or dismiss them."),
    (LOOKING, "keys", "keys:app", "Create, list, rotate and revoke keys."),
    (LOOKING, "sessions", "keys:sessions", "List the browser sessions of the web UI, or end one."),
    (LOOKING, "audit", "keys:audit", "Show who did what with which key."),
    (LOOKING, "webhooks", "webhooks:app", "Call your server when a job ends: list, add, remove, test."),
    (LOOKING, "doctor", "installation:doctor", "Check store, files and workers; needs no server."),
    (LOOKING, "adopt", "installation:adopt", "Make this store the owner of the files; needs no server."),
    (LOOKING, "completion", "completion:completion", "Print a completion script for bash, zsh or fish."),
    (LOOKING, "config", "installation:config", "Show every setting and where its value comes from."),
)
"""Group, name, module and function in `commands`, and what it is for."""

for place, (group, name, where, meaning) in enumerate(COMMANDS):
    app.command(f"packhorse.cli.commands.{where}", name=name, help=meaning, group=group, sort_key=place)
app.command("packhorse.cli.commands.completion:names", name="names", help="Names for completion.", show=False)
