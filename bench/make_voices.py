"""Make the bundled voices from AudioMNIST: python bench/make_voices.py AUDIOMNIST

AUDIOMNIST is a folder of digit_speaker_take.wav (8 kHz); AUDIOMNIST.json beside it says who speaks.
"""

import io
import json
import lzma
import sys
from pathlib import Path

import numpy as np
import torch

from qkv.data.speech.recordings import SAMPLE_RATE, WORDS
from qkv.data.speech.transform_codec import encode
from qkv.data.speech.wav import read_audio

OUTPUT = Path("src/qkv/data/speech/voices/voices.npz.xz")
WOMEN = ["s12", "s26", "s28", "s36", "s43", "s47"]
GERMAN_MEN = ["s01", "s03", "s08", "s20"]
OTHER_MEN = ["s14", "s15", "s19", "s35", "s41", "s42"]
TAKES = 3
LOUDEST = 0.7  # sample of each speaker


def main(folder: Path) -> None:
    people = json.loads(folder.with_name(f"{folder.name}.json").read_text(encoding="utf-8"))
    speakers, digits, takes, pieces = [], [], [], []
    for speaker in sorted((*WOMEN, *GERMAN_MEN, *OTHER_MEN)):
        names = [(digit, take) for digit in range(len(WORDS)) for take in range(TAKES)]
        samples = [read_audio(folder / f"{digit}_{speaker}_{take}.wav").samples for digit, take in names]
        level = LOUDEST / max(float(piece.abs().max()) for piece in samples)
        pieces += [level * piece for piece in samples]
        speakers += [speaker] * len(names)
        digits += [digit for digit, _ in names]
        takes += [take for _, take in names]
    content = io.BytesIO()
    np.savez(
        content,
        codes=np.ascontiguousarray(torch.cat([encode(piece) for piece in pieces]).T.numpy()),  # by frequency: alike
        lengths=np.array([len(piece) for piece in pieces], dtype=np.int32),
        digits=np.array(digits, dtype=np.uint8),
        takes=np.array(takes, dtype=np.uint8),
        speakers=np.array(speakers),
        people=np.array(json.dumps({name: people[name] for name in sorted(set(speakers))})),
    )
    bytes_of_one_kind = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 4, "lp": 0, "pb": 0}]
    OUTPUT.write_bytes(lzma.compress(content.getvalue(), filters=bytes_of_one_kind))
    seconds = sum(len(piece) for piece in pieces) / SAMPLE_RATE
    print(f"{len(pieces)} recordings, {seconds:.0f} seconds, {OUTPUT.stat().st_size / 1e6:.2f} MB in {OUTPUT}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
