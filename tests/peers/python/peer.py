"""What the peers have in common: each says `ready` when it serves, obeys the lines of its input and ends with it."""

import sys


def say(line):
    print(line, flush=True)


def obey(**commands):
    """Says `ready`, then runs the command that each line names, until the input ends."""
    say("ready")
    for line in sys.stdin:
        commands[line.strip()]()
