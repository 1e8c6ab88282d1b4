"""Behind the Models room: which models can be opened, what they were shown, and what was seen."""
