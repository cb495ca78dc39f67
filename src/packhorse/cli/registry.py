"""The table of commands. Each module is loaded when its command is called, so that none pays for the others."""

from __future__ import annotations

from cyclopts import App, Group, Parameter

from packhorse.version import VERSION

RUNNING, JOBS, LOOKING = (Group.create_ordered(name) for name in ("Running", "Jobs", "Looking after it"))

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
    (RUNNING, "dev", "processes:dev", "Run server and worker here, and restart them when the code changes."),
    (RUNNING, "serve", "processes:serve", "Run the server."),
    (RUNNING, "worker", "processes:worker", "Run a worker."),
    (JOBS, "submit", "submit:submit", "Submit a job."),
    (JOBS, "jobs", "jobs:jobs", "List jobs, newest first."),
    (JOBS, "show", "jobs:show", "Show a job, or follow it until it has ended."),
    (JOBS, "explain", "jobs:explain", "Say why a job is not running now, and how long it may take."),
    (JOBS, "logs", "jobs:logs", "Print what a job's stages have printed."),
    (JOBS, "cancel", "job_actions:cancel", "Cancel a job, or many."),
    (JOBS, "retry", "job_actions:retry", "Run a job again, from the stage that failed, or many."),
    (JOBS, "delete", "job_actions:delete", "Delete an ended job with its files, or many."),
    (JOBS, "result", "results:result", "Download a job's result."),
    (JOBS, "artifacts", "results:artifacts", "List the files a job's stages have made, or download one."),
    (JOBS, "promote", "jobs:promote", "Copy a job's result to a place where it stays."),
    (JOBS, "pipelines", "jobs:pipelines", "List what can be submitted."),
    (JOBS, "tokens", "keys:tokens", "Let somebody without a key see one job: create, list, revoke."),
    (LOOKING, "top", "top:top", "Watch queues, workers, running jobs and failures."),
    (LOOKING, "stats", "operations:stats", "Show what there is, and how it went."),
    (LOOKING, "workers", "operations:workers", "List the workers, and those that were lost."),
    (LOOKING, "queues", "operations:queues", "List the queues: what waits, who serves them, what is paused."),
    (LOOKING, "pause", "operations:pause", "Start nothing more from a queue."),
    (LOOKING, "resume", "operations:resume", "Resume a queue."),
    (LOOKING, "schedules", "schedules:app", "Run jobs on a schedule: list, edit, pause, run, show runs."),
    (LOOKING, "failures", "failures:app", "Show what went wrong, in groups, and retry or dismiss it."),
    (LOOKING, "keys", "keys:app", "Make, list, rotate and revoke keys."),
    (LOOKING, "sessions", "keys:sessions", "List the browsers that are logged in, and log one out."),
    (LOOKING, "audit", "keys:audit", "Show who did what with which key."),
    (LOOKING, "webhooks", "webhooks:app", "Tell another server of ended jobs: list, add, remove, test."),
    (LOOKING, "doctor", "installation:doctor", "Check store, files and workers; needs no server."),
    (LOOKING, "adopt", "installation:adopt", "Make this store the owner of the files; needs no server."),
    (LOOKING, "completion", "completion:completion", "Print what makes bash, zsh or fish complete this."),
    (LOOKING, "config", "installation:config", "Show every setting and where its value comes from."),
)
"""Group, name, module and function in `commands`, and what it is for."""

for place, (group, name, where, meaning) in enumerate(COMMANDS):
    app.command(f"packhorse.cli.commands.{where}", name=name, help=meaning, group=group, sort_key=place)
app.command("packhorse.cli.commands.completion:names", name="names", help="Names for completion.", show=False)
