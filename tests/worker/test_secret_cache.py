from __future__ import annotations

from packhorse.worker.process import MOMENT, SecretCache
from tests.contract.stores import Clock


def test_the_secrets_of_a_call_are_known_while_it_runs_and_a_moment_longer() -> None:
    clock = Clock(50.0)
    remembered = SecretCache(clock)

    running = remembered.words([("hunter",), ("hunter22", "hunter"), ()])
    remembered.add(("hunter22",))
    clock.forward(MOMENT / 2)
    remembered.add(("swordfish",))
    ended = remembered.words([()])
    clock.forward(MOMENT / 2)
    later = remembered.words([])
    clock.forward(MOMENT / 2)

    assert running == ("hunter22", "hunter")
    assert ended == ("swordfish", "hunter22")
    assert later == ("swordfish",)
    assert remembered.words([]) == ()
