"""The model of docs/examples/induction.py, trained once for all tests."""

import jaxtyping
import pytest
from induction import repeating, trained

from qkv.models import GPT

__all__ = ["repeater", "repeating"]


@pytest.fixture(scope="session")
def repeater() -> GPT:
    jaxtyping.config.update("jaxtyping_disable", True)  # shapes are checked in the tests of models
    model, loss = trained()
    jaxtyping.config.update("jaxtyping_disable", False)
    assert loss < 0.05, f"the task was not learnt: {loss:.3f}"
    return model
