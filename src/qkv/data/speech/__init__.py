"""Speech data: audio files, log-mel features, augmentation, spoken digits, and batches of digit strings."""

from qkv.data.speech.augmentation import SpeechAugment
from qkv.data.speech.digit_strings import DigitStringBatches
from qkv.data.speech.mel import FeatureNormalization, Mel
from qkv.data.speech.recordings import load_spoken_digits, load_voices
from qkv.data.speech.resampling import resample
from qkv.data.speech.wav import Audio, read_audio, write_wav

__all__ = [
    "Audio",
    "DigitStringBatches",
    "FeatureNormalization",
    "Mel",
    "SpeechAugment",
    "load_spoken_digits",
    "load_voices",
    "read_audio",
    "resample",
    "write_wav",
]
