"""Word errors of a run's left-out speakers, as they are and softer: python bench/softer.py RUN [RUN …]

A run is one of `qkv train speech --data FOLDER`. Test data if its left-out speaker is the test's: leave out another.
"""

import sys
from dataclasses import replace

from qkv.data.mel import FeatureScale, Mel
from qkv.data.spoken import SpokenStrings
from qkv.training.recipes import open_run
from qkv.training.recipes.speech import opened, word_errors
from qkv.training.recipes.use import open_tool

DECIBELS = (0, -10, -20)


def main(runs: list[str]) -> None:
    for place in runs:
        data, tool = open_run(place).recipe.data, open_tool(place)
        scale = FeatureScale(tuple(tool.purpose["mean"]), tuple(tool.purpose["deviation"]))
        shared = {"scale": scale, "strings": 200, "fresh": False, "seed": 7, "noise": data.noise}
        print(f"{place}, left out: {', '.join(data.left_out) or 'the last by name'}")
        for decibels in DECIBELS:
            factor = 10 ** (decibels / 20)
            softer = [replace(spoken, samples=factor * spoken.samples) for spoken in opened(data).unseen]
            errors = word_errors(tool.model, SpokenStrings(softer, Mel(**tool.purpose["mel"]), 50, **shared))
            print(f"  {decibels:4d} dB  {100 * errors:5.1f} % of words", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
