"""Test pipelines on a bench: they run inline, with the real lifecycle, without a server, processes or waiting.

The pytest fixture ``packhorse`` gives each test a `Bench` of its own::

    def test_a_flaky_stage_is_retried(packhorse: Bench) -> None:
        packhorse.fail(bie, times=2)

        job = packhorse.run(convert, Convert(model=File("m.onnx")), user="ann")

        assert job.status == "completed"
        assert job.attempts_of(bie) == 3

Real: submitting, the lifecycle, a SQLite store, a folder of objects, the encoding of parameters and results, and the
code that runs an attempt. Not real: the processes. Stages run in the process of the test, one at a time. So nothing
ends a stage that hangs, memory limits are not enforced, and stages that wait for each other wait for ever.

The fixture ``crash_lab`` runs pipelines on real workers and kills those at every point, to show which stages do
something twice.
"""

from packhorse.testing.bench import Bench
from packhorse.testing.crash_lab import CrashLab, CrashReport, CrashRun
from packhorse.testing.job import BenchJob

__all__ = ["Bench", "BenchJob", "CrashLab", "CrashReport", "CrashRun"]
