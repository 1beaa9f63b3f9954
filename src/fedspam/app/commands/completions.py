"""`fedspam completions`: print a script that lets a shell complete commands and flags.

Print a script that lets a shell complete commands, flags, settings and their values.

examples:
  bash:  fedspam completions bash > ~/.local/share/bash-completion/completions/fedspam
  zsh:   fedspam completions zsh > "${fpath[1]}/_fedspam"
  fish:  fedspam completions fish > ~/.config/fish/completions/fedspam.fish
"""

import argparse
import sys

from fedspam.app.commands._arguments import file_path


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(options: argparse.Namespace) -> int:
    import shtab

    from fedspam.app.config import setting_choices
    from fedspam.methods import METHODS

    (commands,) = (action for action in options.parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, choices in setting_choices().items():  # the dotted settings are not flags of the parser
        commands.choices["run"].add_argument(f"--{name}", choices=choices or None)
    commands.choices["cite"]._positionals._group_actions[0].choices = list(METHODS)
    for command in commands.choices.values():
        for action in command._actions:
            if action.type is file_path:
                action.complete = shtab.FILE
    sys.stdout.write(shtab.complete(options.parser, options.shell))
    return 0
