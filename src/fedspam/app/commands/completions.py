"""`fedspam completions`: what a shell needs to complete commands and flags."""

import argparse
import sys
from typing import NamedTuple

from fedspam.app.commands._arguments import Commands

SHELLS = ("bash", "zsh", "fish")


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "completions",
        help="print a script that makes a shell complete commands and flags",
        description="Print a script with which a shell completes commands, flags and their choices.",
        epilog=(
            "examples:\n"
            "  bash:  fedspam completions bash > ~/.local/share/bash-completion/completions/fedspam\n"
            '  zsh:   fedspam completions zsh > "${fpath[1]}/_fedspam"\n'
            "  fish:  fedspam completions fish > ~/.config/fish/completions/fedspam.fish"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("shell", choices=SHELLS, help="for which shell")
    command.set_defaults(run=run, commands=commands)


def run(options: argparse.Namespace) -> int:
    table = {name: described(parser) for name, parser in options.commands.choices.items()}
    helps = {action.dest: action.help or "" for action in options.commands._choices_actions}
    write = {"bash": bash, "zsh": zsh, "fish": fish}[options.shell]
    sys.stdout.write(write(table, helps))
    return 0


class Flag(NamedTuple):
    """A flag or a place: its names, its help, what it may be, and whether a file may stand there."""

    names: list[str]
    help: str
    choices: list[str]
    takes_value: bool
    is_file: bool


def described(parser: argparse.ArgumentParser) -> list[Flag]:
    return [
        Flag(
            names=list(action.option_strings),
            help=(action.help or "").replace("%%", "%"),
            choices=[str(choice) for choice in action.choices or ()],
            takes_value=action.nargs != 0,
            is_file=getattr(action.type, "__name__", "") == "Path",
        )
        for action in parser._actions
        if action.help != argparse.SUPPRESS
    ]


def bash(table: dict[str, list[Flag]], helps: dict[str, str]) -> str:
    lines = [
        "# bash completion of fedspam",
        "_fedspam() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        "    COMPREPLY=()",
        "    if [[ $COMP_CWORD -eq 1 ]]; then",
        f'        COMPREPLY=($(compgen -W "{" ".join(table)} --help --version" -- "$word"))',
        "        return",
        "    fi",
        '    case "${COMP_WORDS[1]}" in',
    ]
    for name, flags in table.items():
        lines += [f"    {name})", '        case "$before" in']
        for flag in flags:
            if flag.names and flag.choices:
                words = " ".join(flag.choices)
                lines.append(
                    f'        {"|".join(flag.names)}) COMPREPLY=($(compgen -W "{words}" -- "$word")); return ;;'
                )
            elif flag.names and flag.takes_value:
                lines.append(f'        {"|".join(flag.names)}) COMPREPLY=($(compgen -f -- "$word")); return ;;')
        words = " ".join([option for flag in flags for option in flag.names])
        places = " ".join(choice for flag in flags if not flag.names for choice in flag.choices)
        files = any(flag.is_file for flag in flags if not flag.names)
        lines += ["        esac", f'        COMPREPLY=($(compgen -W "{words} {places}" -- "$word"))']
        if files:
            lines.append('        [[ $word == -* ]] || COMPREPLY+=($(compgen -f -- "$word"))')
        lines.append("        ;;")
    return "\n".join([*lines, "    esac", "}", "complete -o filenames -F _fedspam fedspam", ""])


def zsh(table: dict[str, list[Flag]], helps: dict[str, str]) -> str:
    lines = ["#compdef fedspam", "", "_fedspam() {", "    local -a commands", "    commands=("]
    lines += [f"        '{name}:{_quoted(helps.get(name, ''))}'" for name in table]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe 'command' commands",
        "        return",
        "    fi",
    ]
    lines += ["    local command=$words[2]", "    shift words; (( CURRENT-- ))", "    case $command in"]
    for name, flags in table.items():
        parts = []
        for flag in flags:
            value = f"({' '.join(flag.choices)})" if flag.choices else "_files"
            if not flag.names:
                parts.append(f"'*:{'file' if flag.is_file else 'value'}:{value}'")
                continue
            for option in flag.names:
                text = _quoted(flag.help).replace("[", "(").replace("]", ")")
                parts.append(f"'{option}[{text}]{f':value:{value}' if flag.takes_value else ''}'")
        lines += [f"    {name})", "        _arguments \\", *(f"            {part} \\" for part in parts), "        ;;"]
        lines[-2] = lines[-2].removesuffix(" \\")
    return "\n".join(
        [
            *lines,
            "    esac",
            "}",
            "",
            'if [ "$funcstack[1]" = "_fedspam" ]; then',
            '    _fedspam "$@"',
            "else",
            "    compdef _fedspam fedspam",
            "fi",
            "",
        ]
    )


def fish(table: dict[str, list[Flag]], helps: dict[str, str]) -> str:
    lines = ["# fish completion of fedspam", "complete -c fedspam -f"]
    first = "complete -c fedspam -n __fish_use_subcommand"
    lines += [f"{first} -a {name} -d '{_quoted(helps.get(name, ''))}'" for name in table]
    for name, flags in table.items():
        under = f"complete -c fedspam -n '__fish_seen_subcommand_from {name}'"
        for flag in flags:
            words = f" -a '{' '.join(flag.choices)}'" if flag.choices else ""
            takes = " -r" if flag.takes_value else ""
            files = " -F" if flag.takes_value and not flag.choices else ""
            if not flag.names:
                lines.append(f"{under}{words}{' -F' if flag.is_file else ''}")
                continue
            names = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in flag.names)
            lines.append(f"{under}{names}{takes}{files}{words} -d '{_quoted(flag.help)}'")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return text.replace("'", "").replace("`", "").replace(":", ";").replace("\n", " ")
