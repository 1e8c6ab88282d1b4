"""Make the bundled synthetic voices: python bench/make_synthetic_voices.py

Needs the programs espeak-ng, flite, festival (with its voice ked) and sox, and the package ttspico (pip compiles it);
other versions of these sound a little different.
"""

import io
import lzma
import random
import subprocess
import tempfile
import wave
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.speech.recordings import SAMPLE_RATE, WORDS
from qkv.data.speech.transform_codec import encode
from qkv.data.speech.wav import read_audio

OUTPUT = Path("src/qkv/data/speech/synthetic_voices/voices.npz.xz")
TRIM = ["silence", "1", "0.02", "0.5%", "reverse"] * 2  # at both ends
ENGLISH = ["en-gb", "en-us", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-gb-x-gbcwmd", "en-gb-x-gbclan"]
VARIANTS = """
adam Alex Alicia Andrea Andy Annie antonio aunty belinda benjamin boris caleb david Denis Diogo ed edward Gene gustave
announcer Henrique Hugo iven iven2 Jacky john kaukovalta Lee linda marcelo Marco Mario max Michael michel miguel Mike
Nguyen pablo paul pedro quincy rob robert steph steph2 zac anika f1 f2 f3 f4 f5 klatt klatt2 klatt3 klatt4 m1 m2 m3 m4
m5 m6 m7 m8 norbert sandro shelby travis victor grandma grandpa
"""
SPELLED = {  # "zero" to "nine", written so that a voice of that language comes near to the English
    "de": "siero wann tu sri foor faif ßicks ßäwen ejt nain",
    "fr": "ziro ouane tou sri for faïve sixe sévène éite naïne",
    "it": "ziro uan tu tri for faiv sics seven eit nain",
    "es": "siro uan tu zri for faiv sics seven eit nain",
    "el": "ζίρο ουάν του θρι φορ φάιβ σιξ σέβεν έιτ νάιν",
    "nl": "ziero wan toe srie foor faif siks seven eet najn",
    "pl": "ziro łan tu sri for fajw siks sewen ejt najn",
    "sv": "siro oann tu tri for fajv siks seven ejt najn",
    "ru": "зиро уан ту сри фор файв сикс сэвэн эйт найн",
    "hi": "ज़ीरो वन टू थ्री फ़ोर फ़ाइव सिक्स सेवन एट नाइन",
    "tr": "ziro van tu tri for fayv siks sevın eyt nayn",
    "pt": "ziro uan tu tri for faiv sics seven eit nain",
}
Speak = Callable[[str], object]  # writes audio to a file
Utterance = tuple[str, int, Speak]  # the group of voices, the digit, and the function that speaks it


def run(before: list[str], after: list[str], file: str, stdin: str = "") -> None:
    subprocess.run([*before, file, *after], input=stdin, text=True, check=True)


@cache
def pico_engine(language: str) -> Any:
    import ttspico  # pyright: ignore[reportMissingImports]

    return ttspico.TtsEngine(language)


def pico(language: str, word: str, pitch: int, rate: int, file: str) -> None:
    engine = pico_engine(language)
    engine.pitch, engine.rate = pitch, rate
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(engine.speak(word))


def espeak(voice: str, word: str, rng: random.Random, rates: tuple[int, int], pitches: tuple[int, int]) -> Speak:
    options = ["-s", str(rng.randint(*rates)), "-p", str(rng.randint(*pitches))]
    return partial(run, ["espeak-ng", "-v", voice, *options, "-w"], [word])


def espeak_voices() -> Iterator[Utterance]:
    rng = random.Random(0)
    for number, variant in enumerate(VARIANTS.split()):
        voice = f"{ENGLISH[number % len(ENGLISH)]}+{variant}"
        for digit, word in enumerate(WORDS):
            yield "espeak", digit, espeak(voice, word, rng, (110, 190), (25, 75))


def espeak_accents(per_language: int) -> Iterator[Utterance]:
    """Espeak voices of other languages."""
    rng = random.Random(1)
    for language, words in SPELLED.items():
        for variant in rng.sample(VARIANTS.split(), per_language):
            for digit, word in enumerate(words.split()):
                yield "espeak-accents", digit, espeak(f"{language}+{variant}", word, rng, (110, 180), (20, 65))


def concatenative_voices() -> Iterator[Utterance]:
    """Flite and festival, which concatenate pieces of a person's speech."""
    for digit, word in enumerate(WORDS):
        for stretch in (0.85, 1.15):
            for voice in ("kal16", "awb", "rms", "slt"):
                options = ["-voice", voice, "--setf", f"duration_stretch={stretch}", "-t", word, "-o"]
                yield "flite", digit, partial(run, ["flite", *options], [])
            options = ["-eval", "(voice_ked_diphone)", "-eval", f"(Parameter.set 'Duration_Stretch {stretch})", "-o"]
            yield "flite", digit, partial(run, ["text2wave", *options], [], stdin=word)


def pico_voices() -> Iterator[Utterance]:
    for pitch, rate in ((60, 110), (80, 90), (100, 100)):
        for digit, word in enumerate(WORDS):
            for language in ("en-US", "en-GB"):
                yield "pico", digit, partial(pico, language, word, pitch, rate)
    for pitch, rate in ((60, 105), (90, 90)):
        for language in ("de-DE", "fr-FR", "it-IT", "es-ES"):
            for digit, word in enumerate(SPELLED[language[:2]].split()):
                yield "pico", digit, partial(pico, language, word, pitch, rate)


def main() -> None:
    speakers, digits, pieces = [], [], []  # of each utterance: group of voices, digit, samples
    with tempfile.TemporaryDirectory() as folder:
        raw, cut = f"{folder}/raw.wav", f"{folder}/cut.wav"
        for utterances in (espeak_voices(), espeak_accents(per_language=4), concatenative_voices(), pico_voices()):
            for speaker, digit, speak in utterances:
                speak(raw)
                level = ["-r", str(SAMPLE_RATE), "-c", "1", "-b", "16", cut, *TRIM, "gain", "-n", "-3"]
                subprocess.run(["sox", "-D", raw, *level], check=True, stderr=subprocess.DEVNULL)
                pieces.append(read_audio(cut).samples)
                speakers.append(speaker)
                digits.append(digit)
    write_voices(pieces, digits, speakers, OUTPUT)
    seconds = sum(len(piece) for piece in pieces) / SAMPLE_RATE
    print(f"{len(pieces)} pieces, {seconds:.0f} seconds, {OUTPUT.stat().st_size / 1e6:.1f} MB in {OUTPUT}")


def write_voices(pieces: list[Tensor], digits: list[int], speakers: list[str], output: Path) -> None:
    """Encode the pieces and pack them: one frequency after the other, because neighbors in time are alike."""
    content = io.BytesIO()
    np.savez(
        content,
        codes=np.ascontiguousarray(torch.cat([encode(piece) for piece in pieces]).T.numpy()),
        lengths=np.array([len(piece) for piece in pieces], dtype=np.int32),
        digits=np.array(digits, dtype=np.uint8),
        speakers=np.array(speakers),
    )
    bytes_of_one_kind = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 4, "lp": 0, "pb": 0}]
    output.write_bytes(lzma.compress(content.getvalue(), filters=bytes_of_one_kind))


if __name__ == "__main__":
    main()
