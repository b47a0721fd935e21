"""What ``make verify`` does not import for its examples: cosmic-ray is installed for ``make mutation`` alone."""

collect_ignore = ["operators.py", "trial.py"]
