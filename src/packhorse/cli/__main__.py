"""`python -m packhorse.cli`, for where the `packhorse` script is not on the path, and for what `dev` starts."""

import os

PARENT = "PACKHORSE_CHILD_OF"


def start() -> None:
    parent = os.environ.pop(PARENT, None)  # before anything reads the settings: it is not one
    if parent is not None:
        from packhorse.worker.child.guard import die_with_parent

        die_with_parent(int(parent))
    from packhorse.cli import main

    main()


if __name__ == "__main__":
    start()
