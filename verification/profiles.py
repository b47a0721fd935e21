"""How many examples each property is tried on, by profile; see verification/conftest.py."""

import os

PER_PROPERTY = {"ci": 30, "dev": 5, "nightly": 1500}
PROFILE = os.environ.get("HOFUNC_PROFILE", "ci")
