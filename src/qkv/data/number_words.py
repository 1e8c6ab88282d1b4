"""Numbers in words, English and German: pairs to learn translation from where there are no others.

German turns the last two figures of every three around ("sechsundfünfzig") and writes all in one word, so that a
model has something to reorder.
"""

from qkv.data.batches import generator_for

ENGLISH = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
ENGLISH_TENS = ("-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
GERMAN = (
    "null",
    "ein",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
)
GERMAN_TENS = ("-", "-", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
LARGEST = 999_999
NUMBERS = 9  # the stream of randomness that draws numbers


def in_english(number: int) -> str:
    """
    >>> in_english(0), in_english(21), in_english(340_056)
    ('zero', 'twenty-one', 'three hundred forty thousand fifty-six')
    """
    if number >= 1000:
        rest = f" {in_english(number % 1000)}" if number % 1000 else ""
        return f"{in_english(number // 1000)} thousand{rest}"
    if number >= 100:
        rest = f" {in_english(number % 100)}" if number % 100 else ""
        return f"{ENGLISH[number // 100]} hundred{rest}"
    if number < 20:
        return ENGLISH[number]
    return ENGLISH_TENS[number // 10] + (f"-{ENGLISH[number % 10]}" if number % 10 else "")


def in_german(number: int) -> str:
    """
    >>> in_german(1), in_german(21), in_german(340_056), in_german(101)
    ('eins', 'einundzwanzig', 'dreihundertvierzigtausendsechsundfünfzig', 'einhunderteins')
    """
    word = _joined(number)
    return word + "s" if number % 100 == 1 else word


def _joined(number: int) -> str:
    if number >= 1000:
        return f"{_joined(number // 1000)}tausend{_joined(number % 1000) if number % 1000 else ''}"
    if number >= 100:
        return f"{GERMAN[number // 100]}hundert{_joined(number % 100) if number % 100 else ''}"
    if number < 20:
        return GERMAN[number]
    return (f"{GERMAN[number % 10]}und" if number % 10 else "") + GERMAN_TENS[number // 10]


def drawn_numbers(count: int, seed: int) -> list[int]:
    """Different numbers, short ones as likely as long ones."""
    import torch

    generator, found = generator_for(seed, NUMBERS), {}
    while len(found) < count:
        figures = int(torch.randint(1, 7, (), generator=generator))
        found[int(torch.randint(0, 10**figures, (), generator=generator))] = True
    return list(found)
