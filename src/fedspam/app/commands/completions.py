"""`fedspam completions`: a script that lets a shell complete commands, flags and settings."""

import argparse
import sys

from fedspam.app.commands._arguments import Commands

SHELLS = ("bash", "zsh", "fish")


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "completions",
        help="print a script that lets a shell complete commands and flags",
        description="Print a script that lets a shell complete commands, flags, settings and their values.",
        epilog=(
            "examples:\n"
            "  bash:  fedspam completions bash > ~/.local/share/bash-completion/completions/fedspam\n"
            '  zsh:   fedspam completions zsh > "${fpath[1]}/_fedspam"\n'
            "  fish:  fedspam completions fish > ~/.config/fish/completions/fedspam.fish"
        ),
    )
    command.add_argument("shell", choices=SHELLS, help="the shell")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fedspam.app.cli import parser
    from fedspam.app.completions import script

    sys.stdout.write(script(parser(), options.shell))
    return 0
