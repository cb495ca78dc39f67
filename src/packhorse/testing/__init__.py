"""Testing pipelines: a bench on which they run inline, on the real lifecycle, without server, process or waiting.

The pytest fixture ``packhorse`` gives each test a `Bench` of its own::

    def test_a_flaky_stage_is_tried_again(packhorse: Bench) -> None:
        packhorse.fail(bie, times=2)

        job = packhorse.run(convert, Convert(model=File("m.onnx")), user="ann")

        assert job.status == "completed"
        assert job.attempts_of(bie) == 3

What is real: admission, the lifecycle, a SQLite store, a folder of objects, the encoding of parameters and results, and
the code that carries an attempt. What is not: the processes. Stages run in the test's own, one at a time, so nothing
ends one that hangs, limits of memory are not looked at, and stages that wait for each other wait for ever.
"""

from packhorse.testing.bench import Bench
from packhorse.testing.job import BenchJob

__all__ = ["Bench", "BenchJob"]
