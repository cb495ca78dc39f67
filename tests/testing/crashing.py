"""Stages for the crash lab: workers load this file. ``LEDGER`` is a folder in which each effect is a file."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

from packhorse import App, Context, File, Params, needs

app = App("crashing")


class Order(Params):
    list: File


order = app.pipeline("order", Order)
once = app.pipeline("once", Order)


def note(name: str, text: str) -> None:
    (Path(os.environ["LEDGER"]) / name).write_text(text)


@order.stage(retries=1)
def charge(ctx: Context, p: Order) -> int:
    """Not safe: a second attempt charges again."""
    amount = len(p.list.read_text())
    note(str(uuid4()), f"charge {amount} for {ctx.job_id}")
    return amount


@order.stage(retries=1)
def bill(ctx: Context, p: Order, amount: int = needs(charge)) -> File:
    """Safe: a second attempt writes the same note."""
    note(f"{ctx.job_id}-bill", f"bill for {ctx.job_id}")
    path = ctx.scratch / "bill.txt"
    path.write_text(f"{amount} EUR")
    return File(path)


@once.stage(retries=0)
def print_label(ctx: Context, p: Order) -> str:
    return "printed"
