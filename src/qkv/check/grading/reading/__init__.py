"""Reading what students hand in: Python files, notebooks and zip archives become one `Submission`, or are refused."""

from qkv.check.grading.reading.submission import Line, RefusedError, SourceFile, Submission, read_submission

__all__ = ["Line", "RefusedError", "SourceFile", "Submission", "read_submission"]
