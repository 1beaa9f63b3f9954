"""`fedspam reproduce`: run the paper's experiment, draw its figure, and test its observations.

The paper's ridge regression (section 6): three settings of SPAM, exact prox against 1 and 10 local
steps. Draws the figure, and gives a number and a verdict for every sentence of the paper's
observations. Takes less than a minute; equal arguments give equal curves. Tables that others
published are in the folder reproductions of the repository, one script each.

examples:
  fedspam reproduce                              into runs/reproduce-<date-time>
  fedspam reproduce --seeds 3 --out /tmp/try     a quick look
  fedspam reproduce --seed 100                   other seeds
"""

import argparse

from fedspam.app.commands._arguments import MOST_SEEDS, add_shared, whole


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seeds", type=whole(1, MOST_SEEDS), default=20, metavar="N", help="seeds to average over")
    command.add_argument("--rounds", type=whole(8), default=400, metavar="N", help="rounds; the right panel has 2N")
    command.add_argument("--seed", type=whole(0), default=0, metavar="S", help="the first seed, S+1 the next, ...")
    add_shared(command, "--style", "--devices", "--out", "--quiet", "--device", "--no-cache")


def run(options: argparse.Namespace) -> int:
    from fedspam.app.reproduce import show

    return show(options)
