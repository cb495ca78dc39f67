"""A job submitted with a name the function does not have."""

from packhorse.define import Context, JobDecorator

job = JobDecorator(lambda pipeline: None)


@job
def add(ctx: Context, a: int) -> float:
    return a + 1


add.submit(1, c=2)  # error: call-arg
