"""Behind the Models page: models that can be opened, their inputs, looks (recorded runs) and predictions."""
