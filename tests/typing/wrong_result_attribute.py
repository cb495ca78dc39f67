"""A result used as what it is not."""

from packhorse.define import JobDecorator

job = JobDecorator(lambda pipeline: None)


@job
async def add(a: int) -> float:
    return a + 1


add.submit(1).wait().result.upper()  # error: attr-defined
