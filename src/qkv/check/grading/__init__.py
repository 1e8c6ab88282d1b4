"""Grading: points by property for files that are run behind walls and never imported here."""

from qkv.check.grading.batch import grade_all
from qkv.check.grading.grading import Earned, Grade, grade
from qkv.check.grading.remote import Limits
from qkv.check.grading.rubric import Rubric, load_rubric, shipped

__all__ = ["Earned", "Grade", "Limits", "Rubric", "grade", "grade_all", "load_rubric", "shipped"]
