"""`fedspam run`: an experiment of one's own, told by a TOML file and by flags."""

import argparse
import sys
from pathlib import Path

from fedspam.app.commands._arguments import Commands, setting


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "run",
        help="run an experiment of your own: a TOML file, and flags that change it",
        description=(
            "Run an experiment: data, model, method. A TOML file tells all of it; a flag --section.key VALUE\n"
            "goes before what the file says. The run folder holds the resolved configuration, the rows of all\n"
            "rounds, checkpoints and a summary, and can be continued."
        ),
        epilog=(
            "examples:\n"
            "  fedspam run --example > experiment.toml          a file to begin with\n"
            "  fedspam run experiment.toml\n"
            "  fedspam run experiment.toml --algorithm.cohort_size 20 --rounds 200 --out runs/x\n"
            "  fedspam run --resume --out runs/x --rounds 500   go on, to 500 rounds in all\n"
            "  fedspam run --data ridge --algorithm spam --algorithm.step_size 0.1 --algorithm.fresh_weight 0.2\n"
            "  fedspam run experiment.toml --json | jq .accuracy\n\n"
            "exit codes: 0 done, 1 stopped or failed, 2 wrong arguments or configuration, 130 interrupted"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the configuration, a TOML file")
    command.add_argument(
        "--set", dest="settings", action="append", type=setting, default=[], metavar="SECTION.KEY=VALUE",
        help="a setting; the same as --SECTION.KEY VALUE",
    )  # fmt: skip
    for name, words in (
        ("data", "a problem of `fedspam compare`, or a kind of data; replaces the section"),
        ("model", "a model, or my_model.py:loss; replaces the section"),
        ("algorithm", "a key of `fedspam methods`; replaces the section"),
        ("prox", "a local solver; replaces the section"),
    ):
        command.add_argument(f"--{name}", metavar="NAME", help=words)
    command.add_argument("--rounds", metavar="N", help="the same as --run.rounds")
    command.add_argument("--seed", metavar="S", help="the same as --run.seed")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="the run folder (runs/<file>-<date-time>)")
    command.add_argument("--resume", action="store_true", help="continue the run of --out, if there is one")
    command.add_argument("--quiet", action="store_true", help="no bar; print the folder and nothing else")
    command.add_argument("--json", action="store_true", help="print the summary as one JSON object and nothing else")
    show = command.add_mutually_exclusive_group()
    show.add_argument("--example", action="store_true", help="print a commented configuration, and run nothing")
    show.add_argument("--settings", dest="list", action="store_true", help="print every setting, and run nothing")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.example or options.list:
        from fedspam.app.config import EXAMPLE, settings_table

        sys.stdout.write(EXAMPLE if options.example else settings_table())
        return 0
    from fedspam.app.config import ConfigError, read
    from fedspam.app.experiment import terminal
    from fedspam.app.folders import new_folder

    folder = options.out or new_folder("run" if options.file is None else options.file.stem)
    try:
        file = _file(options)
        words = ("data", "model", "algorithm", "prox")
        short = [(name, text) for name in words if (text := getattr(options, name)) is not None]
        short += [(f"run.{name}", text) for name in ("rounds", "seed") if (text := getattr(options, name)) is not None]
        config = read(file, [*short, *options.settings])
        return terminal.show(config, folder, resume=options.resume, quiet=options.quiet, as_json=options.json)
    except ConfigError as error:
        sys.stderr.write(f"fedspam run: error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"fedspam run: stopped; continue with: fedspam run --resume --out {folder}\n")
        return 130


def _file(options: argparse.Namespace) -> Path | None:
    """The configuration: the named file, else that of the run to continue, else flags alone."""
    from fedspam.app.config import ConfigError

    if options.resume and options.out is None:
        raise ConfigError("--resume needs the folder of the run: --out FOLDER")
    if options.file is not None:
        return options.file
    if options.resume:
        if not (options.out / "config.toml").is_file():
            raise ConfigError(
                f"--resume: {options.out} holds no run to continue; name a configuration, or another --out"
            )
        return options.out / "config.toml"
    if options.data is None and not any(name.startswith("data.") for name, _ in options.settings):
        raise ConfigError("name a configuration: fedspam run FILE; to get one: fedspam run --example > experiment.toml")
    return None
