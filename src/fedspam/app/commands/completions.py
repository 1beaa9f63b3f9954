"""`fedspam completions`: print a script that lets a shell complete commands and flags.

Print a script that lets a shell complete commands, flags, settings and their values.

examples:
  bash:  fedspam completions bash > ~/.local/share/bash-completion/completions/fedspam
  zsh:   fedspam completions zsh > "${fpath[1]}/_fedspam"
  fish:  fedspam completions fish > ~/.config/fish/completions/fedspam.fish
"""

import argparse
import sys

SHELLS = ("bash", "zsh", "fish")


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=SHELLS, help="the shell")


def run(options: argparse.Namespace) -> int:
    from fedspam.app.cli import parser
    from fedspam.app.completions import script

    sys.stdout.write(script(parser(), options.shell))
    return 0
