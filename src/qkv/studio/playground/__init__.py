"""Behind the Playground page: attention on a few numbers, in float64 and in exact arithmetic."""
