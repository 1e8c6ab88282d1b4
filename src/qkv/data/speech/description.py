"""Notes for people on a recording: it was resampled, it is silent, or its sound is too steady to be speech."""

import math

from torch import Tensor

from qkv.data.speech.mel import Mel
from qkv.data.speech.resampling import resample
from qkv.data.speech.wav import Audio

SPEECH_RATE = 8000  # samples per second: up to 4 kHz, where all recordings of speech have energy
SILENCE = 1e-4  # the largest sample of a silent recording: 80 dB below full scale
STEADY = 1.0  # decibels: noise and tones vary by less, one spoken digit by a median of 9 (10 dB above noise: 4)
FAINT = 1e-6  # part of the largest energy; what is below, such as the edges of a tone beside it, is not heard
BANDS, SMOOTH, LEAST_FRAMES = 20, 10, 15  # 10 frames are 0.1 s


def describe_recording(audio: Audio, sample_rate: int) -> tuple[str, ...]:
    """Sentences on how a model of this sample rate reads a recording, and whether it is probably no speech."""
    notes = []
    if audio.sample_rate != sample_rate:
        notes.append(f"the recording was resampled from {audio.sample_rate} to {sample_rate} samples per second")
    if float(audio.samples.abs().amax()) < SILENCE:
        notes.append("the recording is silent")
    elif _variation(audio) < STEADY:
        notes.append("the recording is probably no speech: it is a steady sound, such as noise or a tone")
    return tuple(notes)


def _variation(audio: Audio) -> float:
    """How much the energy of a frequency band changes in time: its standard deviation in decibels, mean over bands."""
    energy: Tensor = Mel(SPEECH_RATE, BANDS, floor=1e-12)(resample(audio, SPEECH_RATE).samples).exp()
    if len(energy) < LEAST_FRAMES:
        return math.inf  # too short to tell
    smooth = energy.unfold(0, SMOOTH, 1).mean(-1)
    smooth = smooth.clamp(min=FAINT * float(smooth.max()))
    return float((10 * smooth.log10()).std(0, correction=0).mean())
