"""A job submitted with an argument of another type."""

from packhorse.define import Context, JobDecorator

job = JobDecorator(lambda pipeline: None)


@job
def add(ctx: Context, a: int) -> float:
    return a + 1


add.using(user="ann").submit(a="1")  # error: arg-type
