"""What a disk may hold after a power cut: what was synced, and any part of what was not.

`watch` runs in the process that writes. It logs every write, sync, replacement and removal of `fedspam._internal.files`
before it happens. After that process was killed, `cut` makes one of the states that the folder could have if the power
had failed instead: writes since the last sync of a file are there, torn or lost, each by itself; new names, replaced
names and removed names since the last sync of the folder are there up to some moment.
"""

import os
import pickle
from pathlib import Path


def watch(log):
    """Log what `fedspam._internal.files` does to files from here on."""
    from fedspam._internal import files

    def tell(*facts):
        with open(log, "ab") as out:  # closed at once: it has to survive the end of this process
            pickle.dump(facts, out)

    class Watched:
        """A file opened for writing."""

        def __init__(self, path, mode, buffering, opener):
            tell("open", Path(path).name)
            self._file = open(path, mode, buffering=buffering, opener=opener)  # noqa: SIM115 (closed in __exit__)
            self._name = Path(path).name

        def write(self, data):
            tell("write", self._name, self._file.tell(), bytes(data))
            return self._file.write(data)

        def truncate(self, size):
            tell("truncate", self._name, size)
            return self._file.truncate(size)

        def __getattr__(self, name):
            return getattr(self._file, name)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self._file.close()

    def opened(path, mode="r", buffering=-1, opener=None, **options):
        if mode in ("xb", "r+b"):
            return Watched(path, mode, buffering, opener)
        return open(path, mode, buffering=buffering, opener=opener, **options)

    class System:
        """The module `os`, with its syncs and replacements logged."""

        def __getattr__(self, name):
            return getattr(os, name)

        def fsync(self, descriptor):
            os.fsync(descriptor)  # logged when it is done: before, nothing is promised
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            tell(*(("sync folder",) if os.path.isdir(path) else ("sync", Path(path).name)))

        def replace(self, source, target):
            tell("replace", Path(source).name, Path(target).name)
            os.replace(source, target)

    def removed(plain):
        def remove(path):
            tell("remove", path.name)
            plain(path)

        return remove

    files.open, files.os = opened, System()
    files.remove, files._forget = removed(files.remove), removed(files._forget)


def cut(folder, before, operations, chance):
    """Put the folder, whose files were `before` these operations, into a state that a power cut could have left."""
    contents = dict(enumerate(before.values()))  # of every file, as synced
    now = dict(zip(before, contents, strict=True))  # the names that a process sees
    synced, waiting, unsynced = dict(now), [], {number: [] for number in contents}
    for kind, *facts in operations:
        match kind, *facts:
            case "open", name:
                if name not in now:
                    now[name] = len(contents)
                    contents[now[name]], unsynced[now[name]] = b"", []
                    waiting.append(("link", name, now[name]))
            case "write", name, place, data:
                unsynced[now[name]].append((place, data))
            case "truncate", name, size:
                unsynced[now[name]].append((size, None))
            case "sync", name:
                contents[now[name]] = applied(contents[now[name]], unsynced[now[name]])
                unsynced[now[name]] = []
            case "replace", source, target:
                now[target] = now.pop(source)
                waiting.append(("replace", source, target))
            case "remove", name:
                now.pop(name, None)
                waiting.append(("remove", name, None))
            case _:
                synced, waiting = dict(now), []
    for kind, name, other in waiting[: chance.randint(0, len(waiting))]:
        if kind == "link":
            synced[name] = other
        elif kind == "remove":
            synced.pop(name, None)
        else:
            synced[other] = synced.pop(name)
    for path in folder.iterdir():
        path.unlink()
    for name, number in synced.items():
        (folder / name).write_bytes(applied(contents[number], surviving(unsynced[number], chance)))


def surviving(changes, chance):
    """Any of the changes, and of some writes only the beginning."""
    left = [change for change in changes if chance.random() < 0.7]
    torn = lambda place, data: (place, data[: chance.randint(0, len(data))] if data and chance.random() < 0.3 else data)
    return [torn(*change) for change in left]


def applied(content, changes):
    """The content after writes (place, bytes) and truncations (size, None)."""
    made = bytearray(content)
    for place, data in changes:
        if data is None:
            made[place:] = bytes(max(0, place - len(made)))
        else:
            made.extend(bytes(max(0, place - len(made))))  # a hole reads as zeros
            made[place : place + len(data)] = data
    return bytes(made)


def operations(log):
    """What was logged."""
    with open(log, "rb") as file:
        while True:
            try:
                yield pickle.load(file)  # noqa: S301 (written by `watch`)
            except (EOFError, pickle.UnpicklingError):
                return  # the last one was cut off by the kill
