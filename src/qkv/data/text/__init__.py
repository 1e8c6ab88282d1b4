"""Text data: tokenizers, language modeling, span corruption, question answering, translation, and their batches."""

from qkv.data.text.biographies import Biographies, make_biographies
from qkv.data.text.language_modeling import TextWindows, load_shakespeare, read_texts
from qkv.data.text.question_answering import (
    QuestionAnswer,
    ReadingComprehensionExamples,
    question_examples,
    question_prompt,
    read_questions,
)
from qkv.data.text.sequence_batches import SequenceBatches, document_examples
from qkv.data.text.span_corruption import SpanCorruption, SpanCorruptionExamples, span_tokenizer
from qkv.data.text.tokenizers import (
    bpe_tokenizer,
    character_tokenizer,
    decode,
    encode,
    encode_all,
    serialize_tokenizer,
)
from qkv.data.text.translation import PairBatches, SentencePair, read_pairs

__all__ = [
    "Biographies",
    "PairBatches",
    "QuestionAnswer",
    "ReadingComprehensionExamples",
    "SentencePair",
    "SequenceBatches",
    "SpanCorruption",
    "SpanCorruptionExamples",
    "TextWindows",
    "bpe_tokenizer",
    "character_tokenizer",
    "decode",
    "document_examples",
    "encode",
    "encode_all",
    "load_shakespeare",
    "make_biographies",
    "question_examples",
    "question_prompt",
    "read_pairs",
    "read_questions",
    "read_texts",
    "serialize_tokenizer",
    "span_tokenizer",
]
