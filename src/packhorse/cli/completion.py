"""`packhorse completion`: what makes a shell complete our commands, options and their values."""

from __future__ import annotations

import sys
from typing import Literal

from packhorse.cli.commands import app

FILES = "complete -o default -F"
"""Where we have nothing to offer, such as the file of `dev`, bash completes names of files as it does elsewhere."""


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print what makes bash, zsh or fish complete this.

    Parameters
    ----------
    shell
        For bash, put into ~/.bashrc: eval "$(packhorse completion bash)". For zsh, write it to _cyclopts_packhorse in a
        folder of $fpath. For fish, write it to ~/.config/fish/completions/packhorse.fish.
    """
    text = app.generate_completion(shell=shell)
    sys.stdout.write(text.replace("complete -F", FILES) if shell == "bash" else text)
