"""Hypotheses about a bug: a formula of attention with one wrong step, compared with what was observed."""
