"""One simulation: machines with real workers and callers, servers, faults from the seed, and what must hold then."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import clock
from lab.faults import KINDS, Faults, Struck
from lab.ledger import Ledger
from lab.loop import BEGIN, Loop, Machine
from lab.model_blobs import Objects
from lab.model_store import Held, Key
from lab.network import Network, Server
from lab.stages import SCHEDULE, SUBMITTED, SimChild, SimPool, describe, plans_kept_for
from packhorse import errors, host
from packhorse import log as log_module
from packhorse.blobs.base import Blobs
from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.core.plan import Plan
from packhorse.core.schedules import RUN, Run
from packhorse.define.submit import Options
from packhorse.jobs import artifacts, deployment
from packhorse.jobs.submit import NewJob
from packhorse.jobs.transact import Transactor
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.collections.workers import Machine as Usage
from packhorse.store.collections.workers import WorkerCard
from packhorse.worker import limits, pool, reporter, status, worker
from packhorse.worker.child import messages
from packhorse.worker.worker import Worker

LEASE = 4.0
SWEEP = 2.0
ORPHAN_AFTER = 600.0
KEEP = 3000.0
"""Seconds for which jobs are kept."""
QUIET = 200.0
"""Seconds after the last fault in which everything must have ended: the lease, and the work that is left."""
CLEAN = 120.0
"""Seconds in which the janitor must have cleaned up what is old enough."""
SETTLED = 5.0
"""Seconds after which a replica has what the first start of a deployment writes: its id, its pipelines."""
WORKER_FAULTS = ("worker.killed", "worker.stopped", "worker.drained", "worker.cut off")
TIMED_FAULTS = ("store.frozen", "clock.host", "clock.drift", "clock.server", "clock.glitch", "store.failover")


@dataclass(frozen=True)
class Scenario:
    """All that decides a simulation. Equal scenarios run equally, step by step."""

    seed: int
    workers: int
    jobs: tuple[int, ...]
    """Numbers of the jobs that are submitted: each has its own luck, so that others can be left out."""
    chaos: float
    """Seconds in which faults strike."""
    is_fair: bool
    rates: Mapping[str, float] = field(default_factory=dict)
    only: tuple[str, ...] | None = None
    """The places at which faults strike; None: as the rates say."""


def scenario_of(seed: int, kinds: Collection[str] = ()) -> Scenario:
    """A seed's scenario. Each has some kinds of faults and not others: too many at a time hide each other.

    ``kinds``: these faults strike, and no others.
    """
    rng = random.Random(f"scenario {seed}")
    strength = rng.choice((0.5, 1.0, 2.0))
    likely = [kind for kind, rate in KINDS.items() if rate]
    if rng.random() < 0.5:
        likely, strength = rng.sample(likely, rng.randint(1, 3)), 2.0 * strength
    rates = {kind: KINDS[kind] * strength for kind in likely if rng.random() < 0.8}
    if rng.random() < 0.8:  # it voids what is promised about the lost writes, and hides their faults
        rates.pop("store.failover", None)
    if kinds:
        rates = {kind: (KINDS[kind] or 0.05) * strength for kind in kinds}
    return Scenario(
        seed=seed,
        workers=rng.randint(2, 4),
        jobs=tuple(range(rng.randint(4, 16))),
        chaos=rng.uniform(12.0, 30.0),
        is_fair=rng.random() < 0.5,
        rates=rates,
    )


@dataclass(frozen=True)
class Outcome:
    """What a simulation found."""

    scenario: Scenario
    violations: tuple[str, ...]
    trace: str
    steps: int
    handles: int
    virtual: float
    """Seconds that passed in the simulation."""
    seconds: float
    """Seconds that it took."""
    jobs: int
    starts: int
    """Stages that were started."""
    struck: tuple[Struck, ...]

    @property
    def invariant(self) -> str:
        return self.violations[0].partition(":")[0] if self.violations else ""


class Simulation:
    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.loop = Loop(scenario.seed, is_fair=scenario.is_fair)
        clock.enter(self.loop, scenario.seed)
        log_module._luck.seed(scenario.seed)
        self._rng = random.Random(f"world {scenario.seed}")
        self._faults = Faults(scenario.seed, scenario.rates, scenario.only, lambda: self.loop.time() - BEGIN)
        self._server = Server(self.loop)
        self._objects = Objects()
        self._network = Network(self.loop, self._server, self._objects, self._faults, scenario.seed, LEASE)
        self._machines: dict[int, Machine] = {0: self.loop.server}
        self._by_worker: dict[str, Machine] = {}
        self._stops: dict[int, asyncio.Event] = {}
        self._ledger = Ledger(LEASE, self.loop.time, self._by_worker.get, self._outage)
        self._network.started_unknown = self._ledger.started_unknown
        self._folder = folder
        self._settings = Settings(
            app="lab",
            store="model:",
            blobs="model:",
            scratch=str(folder),
            lease=LEASE,
            grace=1.0,
            drain=5.0,
            slots=2,
            sweep=SWEEP,
            orphan_after=ORPHAN_AFTER,
            keep=KEEP,
        )
        self._described = describe(KEEP)
        self._plans = plans_kept_for(KEEP)
        self._is_open = asyncio.Event()
        self._callers = 0
        self._latest = 0.0
        """The latest time that the server's clock has shown, but for what was wrong for a moment."""
        self._server.made = self._made
        self._server.erased = lambda job_id, _: self._ledger.job_erased(job_id, self._latest)
        self._objects.deleted = self._deleted
        self.loop.before_step = self._before_step
        self._install()

    def _install(self) -> None:
        """Put the simulation where the real modules touch the machine they run on."""
        SimChild.world = self
        for module, name, value in (
            (worker, "Pool", SimPool),
            (worker, "new_card", self._new_card),
            (pool, "Child", SimChild),
            (status, "_machine", lambda now: Usage(now, 0.1, 2, 1, 2)),
            (host, "is_alive", self._is_alive),
            (host, "clock", self.loop.time),
            (limits, "LOOK", 0.25),  # only how often a worker looks: less of it is more of everything else
            (reporter, "PERIOD", 0.25),
        ):
            setattr(module, name, value)
        logging.disable(logging.CRITICAL)

    # Running.

    def run(self) -> Outcome:
        began = clock.real_time()
        try:
            self._start()
            self.loop.run_until(self._is_broken, self.scenario.chaos)
            self._calm()
            if self._wait_for("I13", self._is_quiet, QUIET, self._describe_unfinished):
                self._check_quiet()
                self._check_clean()
        except Exception:  # broad: a fault of the lab must not look like a run without findings
            self._ledger.fail("LAB", traceback.format_exc())
        finally:
            clock.leave()
        return Outcome(
            self.scenario,
            tuple(map(str, self._ledger.violations[:3])),
            self.loop.trace(),
            self.loop.steps,
            self.loop.handles,
            self.loop.time() - BEGIN,
            clock.real_time() - began,
            len(self._ledger.jobs),
            self._ledger.starts,
            tuple(self._faults.struck),
        )

    def _is_broken(self) -> bool:
        return bool(self._ledger.violations)

    def _wait_for(
        self, invariant: str, is_done: Callable[[], bool], seconds: float, describe: Callable[[], str]
    ) -> bool:
        """Whether it came to pass; otherwise that is a finding."""
        self.loop.run_until(lambda: bool(self._ledger.violations) or is_done(), seconds)
        if not self._is_broken() and not is_done():
            self._ledger.fail(invariant, f"not within {seconds:.0f} s: {describe()}")
        return not self._is_broken()

    def _start(self) -> None:
        for number in range(self.scenario.workers):
            self._start_worker(number)
        caller = self._new_machine("api")
        self.loop.spawn(caller, self._open(caller))
        for number in self.scenario.jobs:
            self._callers += 1
            self.loop.spawn(caller, self._call(caller, number))
        self.loop.call_on(self.loop.server, 1.0, self._tick)

    def _new_machine(self, name: str, host: str = "") -> Machine:
        machine = Machine(len(self._machines), name, host)
        machine.healthy_since = self.loop.time()
        self._machines[machine.number] = machine
        return machine

    # Workers.

    def _start_worker(self, number: int) -> None:
        machine = self._new_machine(f"worker{number}.{len(self._machines)}", f"host{number % 2}")
        self.loop.spawn(machine, self._work(machine, number))

    async def _work(self, machine: Machine, number: int) -> None:
        store, blobs = self._network.store(machine), self._network.blobs(machine)
        stop = self._stops[machine.number] = asyncio.Event()
        try:
            await deployment.claim(store, blobs, "model:")
            await Worker(store, blobs, self._settings, self._described).run(stop)
        except (errors.StoreError, errors.BlobError, errors.Conflict):  # it cannot start while they are away
            pass
        except Exception:  # broad: a worker ends by an error only if the store is away
            self._ledger.fail("I13", f"{machine} ended: {traceback.format_exc()}")
        self._end_worker(machine, number)

    def _end_worker(self, machine: Machine, number: int) -> None:
        """The process is gone. Something starts it again, as systemd would."""
        self.loop.kill(machine)
        self.loop.call_on(self.loop.server, 0.5 + 4.0 * self._rng.random(), self._start_worker, number)

    def _before_step(self, machine: Machine) -> None:
        if machine.number not in self._stops or machine.is_stopped:
            return
        struck = self._faults.strike(machine.faults, WORKER_FAULTS)
        if struck is None:
            return
        kind, severity = struck
        match kind:
            case "worker.killed":
                self._end_worker(machine, int(machine.name.removeprefix("worker").partition(".")[0]))
            case "worker.stopped":
                self.loop.stop(machine)
                self.loop.call_on(self.loop.server, (0.2 + 3.0 * severity) * LEASE, self._resume, machine)
            case "worker.drained":
                self._stops[machine.number].set()
            case "worker.cut off":
                self._network.cut_off(machine, (0.1 + 2.0 * severity) * LEASE)

    def _resume(self, machine: Machine) -> None:
        self._network.disturb(machine, 0.0)
        self.loop.resume(machine)

    def _new_card(self, queues: dict[str, int], kinds: Collection[str], scratch: Path) -> WorkerCard:
        machine = self.loop.current
        self._by_worker[machine.name] = machine
        return WorkerCard(
            id=machine.name,
            host=machine.host,
            boot=machine.host,
            pid_space="",
            pid=machine.number,
            born=float(machine.number),
            version="lab",
            queues=queues,
            scratch=str(scratch / machine.name),
            kinds=tuple(sorted(kinds)),
        )

    def _is_alive(self, pid: int, _born: float) -> bool:
        return self._machines[pid].is_alive

    def new_child(self, worker: Machine) -> Machine:
        machine = self._new_machine(f"{worker.name}.child{len(self._machines)}", worker.host)
        worker.children.append(machine)
        return machine

    def stage_began(self, child: Machine, run: messages.Run) -> None:
        self._ledger.stage_began(run.job_id, run.kind, run.element, Path(run.scratch).name, child)

    def may_kill(self, child: Machine) -> bool:
        return child.is_alive and self._faults.strike(child.faults, ("stage.killed",)) is not None

    # Servers.

    def _outage(self) -> tuple[float, float]:
        return self._server.frozen_since, self._server.frozen_until

    def _made(self, change: Change, now: float, leases: Mapping[Key, Held]) -> None:
        self._latest = max(self._latest, self._server.steady_now())
        state = self._server.state
        self._ledger.made(change, state.slots, state.slot_lines, now, leases)

    def _deleted(self, key: str) -> None:
        """Nothing that a job refers to may be deleted, unless the job is being purged."""
        parts = key.split("/")
        job = self._server.state.jobs.get(parts[1]) if parts[0] == "jobs" and len(parts) > 1 else None
        if job is not None and not job.is_purging and key in self._referenced(job.id):
            self._ledger.fail("I11", f"{key} is deleted, and {job.id} ({job.status}) refers to it")

    def _referenced(self, job_id: str) -> set[str]:
        state = self._server.state
        spec = state.specs.get(job_id)
        inputs = set() if spec is None else {each.file.key for each in spec.inputs}
        return inputs | artifacts.referenced_keys(state.results.get(job_id, {}))

    def _tick(self) -> None:
        """Once a second: faults of the servers and of clocks."""
        self.loop.call_later(1.0, self._tick)
        self._latest = max(self._latest, self._server.steady_now())
        if self.scenario.rates.get("store.failover") and self.loop.time() - BEGIN > SETTLED:
            self._server.keep_replica()
        struck = self._faults.strike(self.loop.server.faults, TIMED_FAULTS)
        if struck is None:
            return
        kind, severity = struck
        loop, server = self.loop, self._server
        match kind:
            case "store.frozen":
                self._network.freeze(0.5 + 3.0 * severity * LEASE, self._machines.values())
            case "clock.host":
                alive = [machine for machine in self._machines.values() if machine.is_alive]
                alive[int(severity * len(alive))].clock_error += (severity - 0.5) * ORPHAN_AFTER / 2
            case "clock.drift":
                server.move_clock(0.0, (severity - 0.5) / 10)
            case "clock.server":
                server.move_clock((-5.0, 10.0, 60.0, 3600.0)[int(4 * severity)], 0.0)
            case "clock.glitch":
                server.glitch = 8 * 86_400.0
                loop.call_later(0.2 + severity, setattr, server, "glitch", 0.0)
            case "store.failover":
                server.fail_over(severity)
                state = server.state
                leases = {key: held.token for key, held in state.leases.items()}
                self._ledger.forget(state.jobs, state.history, leases)
                for machine in self._machines.values():
                    self._network.disturb(machine, LEASE)

    # Callers.

    async def _call(self, machine: Machine, number: int) -> None:
        """A caller submits a job, and then cancels, retries, deletes or watches it."""
        rng = random.Random(f"caller {self.scenario.seed} {number}")
        store, blobs = self._network.store(machine), self._network.blobs(machine)
        try:
            await asyncio.sleep(rng.random() * self.scenario.chaos * 0.8)
            await self._is_open.wait()
            job = await self._submit(store, blobs, rng, number)
            if job is not None:
                await self._follow_up(store, rng, job)
        except Exception:  # broad: callers handle what the API may tell them
            self._ledger.fail("LAB", traceback.format_exc())
        finally:
            self._callers -= 1

    async def _open(self, machine: Machine) -> None:
        """A server marks its deployment before it accepts anything."""
        store, blobs = self._network.store(machine), self._network.blobs(machine)
        while not self._is_open.is_set():
            try:
                await deployment.claim(store, blobs, "model:")
                self._is_open.set()
            except (errors.StoreError, errors.BlobError, errors.Conflict):
                await asyncio.sleep(0.5)

    async def _submit(self, store: Store, blobs: Blobs, rng: random.Random, number: int) -> Job | None:
        plan: Plan = self._plans[rng.choice(SUBMITTED)]
        options = Options(
            user=f"user{rng.randrange(3)}",
            key=f"key{number}" if rng.random() < 0.6 else None,
            priority=rng.choice((0, 0, 5)),
            delay=rng.choice((0.0, 0.0, 2.0)),
        )
        given: dict[str, Any] = {"luck": rng.random(), "seconds": rng.choice((0.05, 0.5, 2.0, 5.0)), "trouble": 0.1}
        has_file = rng.random() < 0.4
        for _ in range(60):
            try:
                async with NewJob(store, blobs, self._settings) as new:
                    if has_file:
                        given["file"] = await new.upload("file", "in.bin", _once(b"input"))
                    job = await new.admit(plan, json.encode(given), options)
            except errors.UnknownOutcome:
                if options.key is None:  # it may be there: without a key, another try could make a second one
                    return None
            except (errors.SlotTaken, errors.StoreError, errors.BlobError, errors.Conflict):
                pass
            else:
                self._ledger.was_acknowledged(job.id)
                return job
            await asyncio.sleep(0.5 + rng.random())
        return None

    async def _follow_up(self, store: Store, rng: random.Random, job: Job) -> None:
        transact = Transactor(store)
        plan = rng.random()
        if plan < 0.25:
            await asyncio.sleep(4.0 * rng.random())
            after = await self._insist(transact, job.id, lambda job: lifecycle.cancel(job, now=store.now()))
            if after is not None and (after.stopping or after.status is lifecycle.CANCELLED):
                self._ledger.cancel_was_acknowledged(after)
        elif plan < 0.5:
            await self._watch(store, job.id)
            stage = rng.choice((None, "*", job.plan.stages[0].name))
            await self._insist(transact, job.id, lambda job: lifecycle.retry(job, stage=stage, now=store.now()))
        elif plan < 0.6:
            await self._watch(store, job.id)
            await self._insist(transact, job.id, lambda job: lifecycle.delete(job, now=store.now()))
        elif plan < 0.8:
            await self._watch(store, job.id)

    async def _insist(self, transact: Transactor, job_id: str, verb: Callable[[Job], Change | None]) -> Job | None:
        change_id = f"insist-{self._rng.random()}"
        while True:
            try:
                return await transact(job_id, verb, change_id=change_id)
            except errors.StoreError:
                await asyncio.sleep(0.5)
            except (errors.Refused, errors.Conflict):
                return None

    async def _watch(self, store: Store, job_id: str) -> None:
        """Until the job has ended; every event is compared with what the server made."""
        seen = 0
        while True:
            await asyncio.sleep(1.0)
            try:
                [job] = await store.get([job_id])
                found = await store.events(job_id, after=seen, limit=5)
            except errors.StoreError:
                continue
            self._ledger.was_read(job_id, seen, found)
            seen += len(found)
            if job is None or job.status.is_terminal:
                return

    # The end.

    def _calm(self) -> None:
        """The last fault was: from here on everything has to come to rest."""
        self._faults.is_over = True
        self._server.glitch = 0.0
        self._server.move_clock(0.0, 0.0)
        self._server.frozen_until = min(self._server.frozen_until, self.loop.time())
        for machine in self._machines.values():
            if machine.is_stopped:
                self._resume(machine)
        self._network.reconnect()

    def _unfinished(self) -> list[Job]:
        return [job for job in self._server.state.jobs.values() if not job.status.is_terminal]

    def _is_quiet(self) -> bool:
        state = self._server.state
        return self._callers == 0 and not self._unfinished() and not state.leases and not state.queue

    def _describe_unfinished(self) -> str:
        state = self._server.state
        jobs = [
            f"{job.id} {job.plan.pipeline} {job.status} stopping={job.stopping} "
            + ", ".join(f"{plan.name}:{stage.status}" for plan, stage in zip(job.plan.stages, job.stages, strict=True))
            for job in self._unfinished()[:3]
        ]
        return f"{self._callers} callers, {len(state.leases)} leases, {len(state.queue)} queued, {jobs}"

    def _check_quiet(self) -> None:
        state, ledger = self._server.state, self._ledger
        for job_id in ledger.acknowledged:
            is_there = job_id in state.jobs or job_id in ledger.erased
            ledger.expect(is_there, "I1", f"{job_id} was acknowledged and is gone")
        ledger.expect(not state.slots, "I5", f"after quiet, slots are held: {state.slots}")
        lines = {slot: list(line) for slot, line in state.slot_lines.items() if line}
        ledger.expect(not lines, "I5", f"after quiet, jobs wait for slots: {lines}")
        ledger.expect(not ledger.tokens, "I3", f"after quiet, tokens are valid: {ledger.tokens}")

    def _check_clean(self) -> None:
        """Let objects become old enough for the janitor, then jobs."""
        self.loop.warp(ORPHAN_AFTER + 300.0)
        if not self._wait_for("I7", self._is_tidy, CLEAN, self._describe_objects):
            return
        self._check_ticks()
        self.loop.warp(KEEP + 300.0)
        self._wait_for("I11", self._are_old_gone, CLEAN, lambda: f"{len(self._server.state.jobs)} jobs are left")
        self._wait_for("I7", self._is_tidy, CLEAN, self._describe_objects)

    def _is_tidy(self) -> bool:
        kept, wanted = self._job_objects(), self._all_referenced()
        # A fail-over may bring back a job whose files were deleted since: what was lost cannot be promised.
        return kept <= wanted if self._ledger.is_lossy else kept == wanted

    def _job_objects(self) -> set[str]:
        return {key for key in self._objects.kept if key.startswith("jobs/")}

    def _all_referenced(self) -> set[str]:
        return set().union(*(self._referenced(job_id) for job_id in self._server.state.jobs))

    def _describe_objects(self) -> str:
        kept, wanted = self._job_objects(), self._all_referenced()
        return f"orphans {sorted(kept - wanted)[:3]}, dangling {sorted(wanted - kept)[:3]}"

    def _are_old_gone(self) -> bool:
        old = self._server.now() - 3 * SWEEP
        return all(job.purge_at is None or job.purge_at > old for job in self._server.state.jobs.values())

    def _check_ticks(self) -> None:
        """Every tick has a job, or a record that says why not."""
        if any(each.kind.startswith(("clock.", "store.failover")) for each in self._faults.struck):
            return
        runs = [json.record(row.record.body, Run) for ref, row in self._server.state.records.items() if ref.kind == RUN]
        ticks = {int(run.tick): run for run in runs if run.schedule == SCHEDULE}
        if not ticks:
            return
        covered = set(ticks)
        for run in runs:
            covered |= set(range(int(run.tick), int(run.until or run.tick) + 1, 60))
        missing = set(range(min(ticks), max(ticks), 60)) - covered
        self._ledger.expect(not missing, "I8", f"ticks without a run: {sorted(missing)[:5]}")


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def simulate(scenario: Scenario) -> Outcome:
    """Run it, in a folder of its own that is removed afterwards."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="packhorse-lab-", dir=memory if memory.is_dir() else None))
    try:
        return Simulation(scenario, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
