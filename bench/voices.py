"""Make the machine-made voices that ship with qkv: python bench/voices.py

Needs the programs espeak-ng, flite and sox (Debian has all three); other versions of these say it a little otherwise.
"""

import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qkv.data.spoken import WORDS
from qkv.data.voices import RATE, to_bytes
from qkv.data.wav import read_sound

PLACE = Path("src/qkv/data/machine_voices/voices.npz")
ACCENTS = ["en-gb", "en-us", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-gb-x-gbcwmd", "en-gb-x-gbclan"]
VARIANTS = [
    "adam",
    "Alex",
    "Alicia",
    "Andrea",
    "Andy",
    "Annie",
    "antonio",
    "aunty",
    "belinda",
    "benjamin",
    "boris",
    "caleb",
    "david",
    "Denis",
    "Diogo",
    "ed",
    "edward",
    "Gene",
    "gustave",
    "announcer",
    "Henrique",
    "Hugo",
    "iven",
    "iven2",
    "Jacky",
    "john",
    "kaukovalta",
    "Lee",
    "linda",
    "marcelo",
    "Marco",
    "Mario",
    "max",
    "Michael",
    "michel",
    "miguel",
    "Mike",
    "Nguyen",
    "pablo",
    "paul",
    "pedro",
    "quincy",
    "rob",
    "robert",
    "steph",
    "steph2",
    "zac",
    "anika",
    "f1",
    "f2",
    "f3",
    "f4",
    "f5",
    "klatt",
    "klatt2",
    "klatt3",
    "klatt4",
    "m1",
    "m2",
    "m3",
    "m4",
    "m5",
    "m6",
    "m7",
    "m8",
    "norbert",
    "sandro",
    "shelby",
    "travis",
    "victor",
    "grandma",
    "grandpa",
]
TRIMMED = ["silence", "1", "0.02", "0.5%", "reverse"] * 2  # at both ends


def commands(file: str) -> Iterator[tuple[str, int, list[str]]]:
    """The synthesizer, the digit, and how it is made to say it into a file."""
    chance = random.Random(0)
    for number, variant in enumerate(VARIANTS):
        for digit, word in enumerate(WORDS):
            how = ["-s", str(chance.randint(110, 190)), "-p", str(chance.randint(25, 75))]
            voice = f"{ACCENTS[number % len(ACCENTS)]}+{variant}"
            yield "espeak", digit, ["espeak-ng", "-v", voice, *how, "-w", file, word]
    for voice in ("kal16", "awb", "rms", "slt"):
        for pace in (0.85, 1.15):
            for digit, word in enumerate(WORDS):
                yield (
                    "flite",
                    digit,
                    ["flite", "-voice", voice, "--setf", f"duration_stretch={pace}", "-t", word, "-o", file],
                )


def main() -> None:
    speakers, digits, pieces = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        raw, cut = f"{folder}/raw.wav", f"{folder}/cut.wav"
        for speaker, digit, command in commands(raw):
            subprocess.run(command, check=True)
            level = ["-r", str(RATE), "-c", "1", "-b", "16", cut, *TRIMMED, "gain", "-n", "-3"]
            subprocess.run(["sox", "-D", raw, *level], check=True, stderr=subprocess.DEVNULL)
            pieces.append(to_bytes(read_sound(cut).samples).numpy())
            speakers.append(speaker)
            digits.append(digit)
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int32)
    table = {"digits": np.array(digits, dtype=np.uint8), "speakers": np.array(speakers)}
    np.savez_compressed(PLACE, sound=np.concatenate(pieces), lengths=lengths, **table)
    print(f"{len(pieces)} pieces, {lengths.sum() / RATE:.0f} seconds, {PLACE.stat().st_size / 1e6:.1f} MB in {PLACE}")


if __name__ == "__main__":
    main()
