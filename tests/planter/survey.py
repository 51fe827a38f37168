"""Plants every kind at all of its places, asks the audit each time, and says what was missed.

    python -m tests.planter.survey FOLDER [--kinds NAME,NAME] [--model]

makes a sample in FOLDER if there is none.
"""

import argparse
import shutil
import struct
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.planter import model
from tests.planter.asking import Refused, ask, outcome
from tests.planter.files import NotAsDescribed
from tests.planter.folder import Tree
from tests.planter.kinds import KINDS, plants_of
from tests.planter.samples import QUEUES, sample, with_others


def survey(dump, kinds, room, tell):
    """{kind: {(queue, place): Outcome}}"""
    before = ask(Tree(dump).write(Path(room) / "clean"))
    found = defaultdict(dict)
    for kind in kinds:
        for name in kind.queues:
            only = set(QUEUES) if kind.together else with_others(name)
            for tree, planted in plants_of(kind, name, lambda only=only: Tree(dump, only=only)):
                target = Path(room) / "planted"
                tree.write(target)
                try:
                    said = outcome(kind, before, ask(target))
                except Refused as error:
                    said = f"refused: {error}"
                seen = seen_by_model(target)
                found[kind.name][name, planted.place] = said, planted, seen
                tell(kind, planted, said, seen)
                shutil.rmtree(target)
    return found


def seen_by_model(path):
    """What the model of this package says of a folder, as texts."""
    try:
        return [str(each) for some in model.judge_tree(Tree(path)).values() for each in some]
    except (NotAsDescribed, struct.error) as error:
        return [f"not as described: {error}"]


def _tell(kind, planted, said, seen):
    if isinstance(said, str):
        text = said
    else:
        text = f"found by {', '.join(said.by)}" if said.found else f"MISSED ({said.text or 'held everywhere'})"
        if not said.found and said.beside:
            text = f"BESIDE {said.text}"
    sys.stdout.write(f"{kind.name:40} {planted.queue:8} {planted.place:32} {planted.seq:5} {text}"
                     f"{'' if seen else '   THE MODEL SEES NOTHING'}\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", default="")
    options = parser.parse_args()
    dump = options.folder / "dump"
    if not dump.exists():
        sample(options.folder)
    chosen = [kind for kind in KINDS.values() if not options.kinds or kind.name in options.kinds.split(",")]
    with tempfile.TemporaryDirectory(dir=options.folder) as room:
        survey(dump, chosen, room, _tell)


if __name__ == "__main__":
    main()
