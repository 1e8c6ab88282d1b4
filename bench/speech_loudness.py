"""Word error rate on unseen speakers at lower volume: python bench/speech_loudness.py RUN [RUN …]

A run is one of `qkv train speech --data FOLDER`. If its held-out speaker is that of the test, this is test data:
hold out another speaker.
"""

import sys
from dataclasses import replace

from qkv.data.speech.digit_strings import DigitStringBatches
from qkv.data.speech.mel import FeatureNormalization, Mel
from qkv.training import open_run
from qkv.training.inference import load_predictor
from qkv.training.recipes.speech import load_recordings, transcribe_strings, word_error_rate

DECIBELS = (0, -10, -20)


def main(runs: list[str]) -> None:
    for run in runs:
        data, predictor = open_run(run).config.data, load_predictor(run)
        purpose = predictor.purpose
        normalization = FeatureNormalization(tuple(purpose["mean"]), tuple(purpose["std"]))
        options = {
            "normalization": normalization,
            "num_strings": 200,
            "resample": False,
            "seed": 7,
            "noise": data.noise,
        }
        print(f"{run}, held out: {', '.join(data.held_out_speakers) or 'the last by name'}")
        for decibels in DECIBELS:
            factor = 10 ** (decibels / 20)
            softer = [replace(each, samples=factor * each.samples) for each in load_recordings(data).unseen]
            strings = DigitStringBatches(softer, Mel(**purpose["mel"]), 50, **options)
            rate = word_error_rate(transcribe_strings(predictor.model, strings))
            print(f"  {decibels:4d} dB  {100 * rate:5.1f} % of words", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
