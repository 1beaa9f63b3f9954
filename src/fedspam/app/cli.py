"""The command `fedspam`. It parses arguments and imports the library only when a command needs it."""

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Sequence

from fedspam import __version__
from fedspam.app import UsageError, appearance, devices, distributed, exit_codes, programs
from fedspam.app.commands import (
    cite,
    compare,
    completions,
    data,
    docs,
    export,
    lab,
    measure,
    methods,
    new,
    predict,
    registry,
    report,
    reproduce,
    run,
    theory,
)
from fedspam.app.commands._arguments import Parser, add_command, dotted
from fedspam.app.interrupt import ending_soon

COMMANDS = (
    reproduce, run, predict, export, registry, methods, compare, theory, measure, report, lab, new, data, docs, cite,
    completions,
)  # fmt: skip

DOTTED = ("run", "compare", "measure")  # commands with flags of the form --section.key VALUE

EXAMPLES = """examples:
  fedspam reproduce                           the paper's experiment, in less than a minute
  fedspam run --example > experiment.toml     an experiment of your own:
  fedspam run experiment.toml --rounds 200
  fedspam predict runs/first new.csv          use the model of a run
  fedspam methods                             what there is to run
  fedspam compare --help"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. Wrong use raises SystemExit with code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = parser()
    options = command.parse_args(dotted(words) if words[:1] and words[0] in DOTTED else words)
    options.parser = command
    options.line = shlex.join(["fedspam", *words])
    try:
        if "distributed" in options:
            distributed.check(options.distributed, options.coordinator, options.processes, options.process)
        if getattr(options, "cache", False):
            programs.use()
        if getattr(options, "distributed", False):
            distributed.join(options.coordinator, options.processes, options.process, options.device)
        devices.choose(getattr(options, "device", None), getattr(options, "devices", None))
        appearance.choose(getattr(options, "style", None))
        with ending_soon():
            return options.run(options)
    except UsageError as error:
        sys.stderr.write(f"fedspam {words[0]}: error: {error}\n")
        raise SystemExit(exit_codes.WRONG_USE) from None  # as argparse does
    except KeyboardInterrupt:
        sys.stderr.write("fedspam: stopped\n")
        return exit_codes.INTERRUPTED
    except SystemExit as error:  # no command raises it: it comes from a loss or a model of the user's own
        sys.stderr.write(f"fedspam: error: your code called sys.exit({error.code!r}); let it raise an error instead\n")
        return exit_codes.FAILED
    except MemoryError as error:
        told = ": ".join(filter(None, ("out of memory", distributed.explained(error))))
        sys.stderr.write(f"fedspam: error: {told}; use less data, a smaller model or a smaller cohort\n")
        return exit_codes.FAILED
    except (ImportError, OSError, OverflowError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"fedspam: error: {distributed.explained(error)}\n")
        return exit_codes.FAILED


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="fedspam",
        description="Federated optimization that benefits from clients being alike: SPAM, its variants, its rivals.",
        epilog=f"{EXAMPLES}\n\n{exit_codes.described()}",
    )
    command.add_argument("--version", action="version", version=f"fedspam {__version__}")
    commands = command.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for each in COMMANDS:
        add_command(commands, each)
    return command


def command() -> None:
    """The program `fedspam`. After Ctrl-C it ends at once, because threads of the compiler may be at work."""
    warnings.formatwarning = lambda message, *_: f"fedspam: warning: {message}\n"  # type: ignore[assignment]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads hinder those of JAX; many small eigenproblems
    with distributed.leaving():
        code = main()
        if code and distributed.is_joined():
            sys.exit(code)
    if code == exit_codes.INTERRUPTED:
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    command()
