"""The model of docs/examples/induction.py, trained once for all tests."""

import jaxtyping
import pytest
from induction import make_repeating_texts, train_model

from qkv.models import GPT

__all__ = ["make_repeating_texts", "repeater"]


@pytest.fixture(scope="session")
def repeater() -> GPT:
    jaxtyping.config.update("jaxtyping_disable", True)  # shapes are checked in the tests of models
    model, loss = train_model()
    jaxtyping.config.update("jaxtyping_disable", False)
    assert loss < 0.05, f"the task was not learnt: {loss:.3f}"
    return model
