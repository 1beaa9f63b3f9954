"""The command `fedspam`: it reads arguments and calls the library, which is imported when it is needed."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedspam import __version__

EXIT_CODES = "exit codes: 0 done, 1 something failed or does not hold, 2 wrong arguments"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    options.line = shlex.join(["fedspam", *words])
    try:
        return options.run(options)
    except KeyboardInterrupt:
        sys.stderr.write("fedspam: stopped\n")
        return 130
    except (OSError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"fedspam: error: {' '.join(str(error).split())}\n")
        return 1


def parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(
        prog="fedspam",
        description="Federated optimization that benefits from clients being alike: SPAM, its variants, its rivals.",
        epilog=f"examples:\n  fedspam reproduce\n  fedspam methods\n  fedspam compare --help\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--version", action="version", version=f"fedspam {__version__}")
    commands = command.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_reproduce(commands)
    _add_methods(commands)
    _add_compare(commands)
    return command


# --- fedspam reproduce -----------------------------------------------------------------------------------------------


def _add_reproduce(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "reproduce",
        help="run the paper's experiment and test what it observes",
        description=(
            "Run the paper's ridge regression (section 6): three settings of SPAM, exact prox against\n"
            "1 and 10 local steps. Draws the figure, and puts a number and a verdict to every sentence\n"
            "of the paper's observations. Takes less than a minute; equal arguments give equal curves."
        ),
        epilog=(
            "examples:\n"
            "  fedspam reproduce                              all of it, into runs/reproduce-<date-time>\n"
            "  fedspam reproduce --seeds 3 --out /tmp/try     a quick look\n"
            "  fedspam reproduce --seed 100                   other problems, other draws of clients\n\n"
            "exit codes: 0 every sentence holds, 1 one does not or the run failed, 2 wrong arguments"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--seeds", type=_whole(1), default=20, metavar="N", help="problems to average over (20)")
    command.add_argument(
        "--rounds", type=_whole(8), default=400, metavar="N", help="rounds; the right panel has 2N (400)"
    )
    command.add_argument("--seed", type=_whole(0), default=0, metavar="S", help="the first seed, S+1 the next, ... (0)")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go (runs/reproduce-<date-time>)")
    command.add_argument("--quiet", action="store_true", help="print the folder and nothing else")
    command.set_defaults(run=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    from fedspam.reproduce.terminal import show

    return show(options.out, seeds=options.seeds, rounds=options.rounds, seed=options.seed, quiet=options.quiet)


# --- fedspam methods -------------------------------------------------------------------------------------------------


def _add_methods(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "methods",
        help="list all methods with their facts and costs",
        description="List all methods: what their theory covers, what they send, and their key for `compare`.",
        allow_abbrev=False,
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--markdown", dest="form", action="store_const", const="markdown", help="docs/methods.md")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="for programs")
    command.set_defaults(run=_methods, form="table")


def _methods(options: argparse.Namespace) -> int:
    from fedspam.catalogue import show

    return show(options.form)


# --- fedspam compare -------------------------------------------------------------------------------------------------


def _add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "compare",
        help="several methods on one problem, all tuned equally",
        description=(
            "Run several methods on one problem. Every method tries equally many settings of its own step\n"
            "sizes; the best for each target is run again on seeds that tuning has not seen. Prints rounds,\n"
            "bytes and client gradients to each target, and draws the curves. With --sweep: where SPAM-PP\n"
            "wins and where it loses against each rival as clients become less alike."
        ),
        epilog=(
            "problems: ridge, ridge-similar, quadratics; with data (see --data): a9a, a9a-nonconvex, mushrooms,\n"
            "  mushrooms-nonconvex, har, heart\n\n"
            "examples:\n"
            "  fedspam compare                                        ten methods on similar quadratics\n"
            "  fedspam compare --problem ridge --methods spam_pp,mvr  two of them on the paper's ridge\n"
            "  fedspam compare --problem har --metric accuracy --targets 0.9,0.95\n"
            "  fedspam compare --sweep\n\n"
            f"{EXIT_CODES}"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--problem", metavar="NAME", help="what to compare on (quadratics)")
    command.add_argument(
        "--methods", type=_list(str), metavar="A,B,...", help="keys of `fedspam methods`, or all (ten of them)"
    )
    command.add_argument("--sweep", action="store_true", help="the sweep over delta/L instead of one problem")
    command.add_argument("--seeds", type=_whole(1), metavar="N", help="draws of clients (5; sweep: 10)")
    command.add_argument("--seed", type=_whole(0), default=0, metavar="S", help="the first of them (0)")
    command.add_argument("--rounds", type=_whole(1), metavar="N", help="rounds of every run (by problem)")
    command.add_argument("--cohort", type=_whole(1), metavar="B", help="clients asked in a round (by problem)")
    command.add_argument("--budget", type=_whole(1), metavar="N", help="settings each method tries (24; sweep: 36)")
    command.add_argument("--targets", type=_list(float), metavar="X,Y,...", help="levels to reach (by problem)")
    command.add_argument(
        "--metric", choices=("gradient", "accuracy"), default="gradient", help="relative gradient norm, or accuracy"
    )
    command.add_argument(
        "--exact", action="store_true", help="closed-form prox of quadratic clients, counted as one gradient"
    )
    command.add_argument("--data", type=Path, metavar="FOLDER", help="the data sets ($FEDSPAM_DATA, else ./data)")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go (runs/compare-<date-time>)")
    command.add_argument("--quiet", action="store_true", help="print the folder and nothing else")
    command.set_defaults(run=_compare, refuse=command.error)


def _compare(options: argparse.Namespace) -> int:
    from fedspam.compare import asked, terminal

    names = ("problem", "methods", "sweep", "seeds", "seed", "rounds", "cohort", "budget", "targets", "metric", "exact")
    try:
        wanted = asked.ask(**{name: getattr(options, name) for name in names})
    except ValueError as error:
        return options.refuse(str(error))  # which leaves with exit code 2
    return terminal.show(wanted, data=options.data, folder=options.out, command=options.line, quiet=options.quiet)


# --- arguments -------------------------------------------------------------------------------------------------------


def _list(kind: Callable[[str], object]) -> Callable[[str], list[object]]:
    """An argument that is a list with commas."""

    def parse(text: str) -> list[object]:
        try:
            return [kind(part.strip()) for part in text.split(",") if part.strip()]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be numbers with commas between them") from None

    return parse


def _whole(least: int) -> Callable[[str], int]:
    """An argument that must be a whole number of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
        return value

    return parse
