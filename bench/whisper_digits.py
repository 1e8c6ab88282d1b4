"""Word error rate of Whisper on the test strings of the speech row:

python bench/whisper_digits.py WHISPER DATA [STRINGS]

WHISPER is a folder with a Whisper model in CTranslate2's format, DATA the folder with audiomnist and spoken-digits. The
strings are those of the row's test (unseen speakers), resampled to 16 kHz. Needs the packages ctranslate2 and
transformers. Digits, number words and their homophones ("to", "for") count as the word.
"""

import re
import sys
from pathlib import Path

import ctranslate2  # pyright: ignore[reportMissingImports]
import torch
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor

from qkv.data.speech.recordings import WORDS
from qkv.data.speech.resampling import resample
from qkv.data.speech.wav import Audio
from qkv.training.recipes import get_recipe
from qkv.training.recipes.speech import (
    TranscribedString,
    group_by_speaker_kind,
    load_recordings,
    make_eval_strings,
    make_mel,
    word_error_rate,
)

RATE = 16_000
PROMPTS = {"plain": "", "told that digits follow": " zero one two three four five six seven eight nine"}
HOMOPHONES = {
    "oh": 0,
    "o": 0,
    "won": 1,
    "to": 2,
    "too": 2,
    "tree": 3,
    "for": 4,
    "fore": 4,
    "sex": 6,
    "ate": 8,
    "nein": 9,
}
LABELS = {word: digit for digit, word in enumerate(WORDS)} | HOMOPHONES


def parse_digits(text: str) -> list[int]:
    """The labels (digit + 1) in a transcript; any other word is -1, an error.

    >>> parse_digits(" Seven, 32 for you.")
    [8, 4, 3, 5, -1]
    """
    words = re.findall(r"\d|[^\W\d]+", text.lower())
    return [int(word) + 1 if word.isdigit() else LABELS.get(word, -2) + 1 for word in words]


def main(whisper: Path, data: str, count: int) -> None:
    config = get_recipe("speech").resolve({"data.path": data, "data.test_strings": count})
    splits = load_recordings(config.data)
    strings = make_eval_strings(config.data, splits.unseen, make_mel(config.data, splits.sample_rate), None, count)
    model = ctranslate2.models.Whisper(str(whisper), compute_type="float32", intra_threads=torch.get_num_threads())
    tokenizer, extract = Tokenizer.from_file(str(whisper / "tokenizer.json")), WhisperFeatureExtractor()
    start = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    for name, prompt in PROMPTS.items():
        before = ["<|startofprev|>", *tokenizer.encode(prompt, add_special_tokens=False).tokens] if prompt else []
        found = []
        for number in range(count):
            string = strings.string(0, number)
            audio = resample(Audio(string.samples, splits.sample_rate), RATE).samples.numpy()
            features = ctranslate2.StorageView.from_array(extract(audio, sampling_rate=RATE)["input_features"][0][None])
            result = model.generate(features, [[*before, *start]], beam_size=5)[0]
            text = tokenizer.decode(result.sequences_ids[0])
            spoken = [digit + 1 for digit in string.digits]
            found.append(TranscribedString(string.speaker, spoken, parse_digits(text)))
            if number % 50 == 49:
                print(f"  {number + 1}: {100 * word_error_rate(found):.1f} %", flush=True)
        groups = group_by_speaker_kind(found, splits.speakers)
        print(f"Whisper, {name}: {100 * word_error_rate(found):.2f} % of words in {count} strings")
        print("  " + ", ".join(f"{kind} {100 * word_error_rate(group):.2f}" for kind, group in groups.items()))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 200)
