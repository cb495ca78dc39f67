"""Random plans: the shapes people draw, and any other graph that may run."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.conditions import equals
from packhorse.core.plan import Need, Plan, StagePlan, Status, Tolerance, check_plan
from packhorse.errors import InvalidInput
from tests.core.plans import APART, CHAIN, DIAMOND, FAN, NESTED, ONE, SPEC, each, gather, needs, plan, stage

WIDEST = 2
DEADLINE = 1_000.0
RUN_TIMEOUT = 400.0
KEEP = {Status.COMPLETED: 5_000.0, Status.FAILED: 6_000.0, Status.CANCELLED: 7_000.0}


conditions = st.none() | st.sampled_from([equals("platform", "520"), equals("platform", "720")])
tolerances = st.none() | st.sampled_from([Tolerance(1), Tolerance(share=0.5), Tolerance(share=1.0)])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """With and without a slot and a run timeout, up to two retries per stage, up to one or two elements."""
    shape = draw(st.sampled_from([ONE, CHAIN, APART, DIAMOND, FAN, NESTED]) | graphs())
    stages = [replace(s, retries=draw(st.integers(0, 2)), elements=draw(st.integers(1, WIDEST))) for s in shape.stages]
    stages = [replace(s, tolerate=draw(tolerances)) if s.over is not None else s for s in stages]
    stages = [replace(s, when=draw(conditions), optional=draw(optional(s))) for s in stages]
    made = plan(*stages, slot=draw(st.none() | st.just("slot")), deadline=DEADLINE, keep=KEEP)
    made = replace(made, run_timeout=draw(st.none() | st.just(RUN_TIMEOUT)))
    made = replace(made, on_conflict=draw(st.sampled_from(["refuse", "queue", "replace"])))
    check_plan(made)
    assume(may_start(made))
    return made


def optional(stage: StagePlan) -> st.SearchStrategy[tuple[str, ...]]:
    return st.sampled_from([(), tuple(need.parameter for need in stage.needs if need.how != "each")])


def may_start(plan: Plan) -> bool:
    """Whether a job of it is not refused because nothing in it would run."""
    try:
        lifecycle.submit(plan, SPEC, job_id="j", user="ann", now=0.0)
    except InvalidInput:
        return False
    return True


@st.composite
def graphs(draw: st.DrawFn) -> Plan:
    runs_over: dict[str, bool] = {}
    stages = []
    for i in range(draw(st.integers(1, 4))):
        needed: list[Need] = []
        over = draw(st.none() | st.sampled_from(list(runs_over))) if runs_over else None
        for name, has_elements in runs_over.items():
            if name == over:
                needed.append(each(name))
            elif draw(st.booleans()):
                needed.append(gather(name) if has_elements else needs(name))
        runs_over[f"s{i}"] = over is not None
        stages.append(stage(f"s{i}", *needed))
    return plan(*stages)
