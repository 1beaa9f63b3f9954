"""``python -m fedspam.app`` is the command `fedspam`."""

from fedspam.app.cli import command

if __name__ == "__main__":
    command()
