"""`fedspam new`: a project of one's own, for Flower."""

import argparse

from fedspam.app.commands._arguments import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "new",
        help="a project to start from: training over Flower, in simulation and on real machines",
        description=(
            "Make a folder with a Flower project: model, data and method in one file to change, the two apps, the run\n"
            "configuration, and scripts for a federation with TLS and node keys. Its README has the commands."
        ),
        epilog=(
            "examples:\n"
            "  fedspam new my-project\n"
            "  cd my-project && flwr run .\n\n"
            "exit codes: 0 done, 1 the folder exists or cannot be written, 2 wrong arguments"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("folder", metavar="FOLDER", help="what to make; its last part names the project")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pathlib import Path

    from rich.console import Console

    from fedspam.app import new

    folder = Path(options.folder)
    made = new.create(folder)
    console = Console()
    for path in made:
        console.print(f"  {path}", highlight=False, soft_wrap=True)
    console.print(f"next: cd {folder}, then as its README.md says", highlight=False, soft_wrap=True)
    return 0
