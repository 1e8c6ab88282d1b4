"""Grading: points by property for submissions that run in a sandbox and are never imported here."""

from qkv.check.grading.client import Limits
from qkv.check.grading.grade import Grade, PropertyGrade, grade_file, grade_files
from qkv.check.grading.rubric import Rubric, bundled_rubrics, load_rubric

__all__ = ["Grade", "Limits", "PropertyGrade", "Rubric", "bundled_rubrics", "grade_file", "grade_files", "load_rubric"]
