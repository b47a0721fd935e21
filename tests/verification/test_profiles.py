"""The profiles of verification: whichever is chosen, all of them can be made."""

import pytest
from hypothesis import settings

from verification import profiles


@pytest.mark.parametrize("chosen", profiles.PER_PROPERTY)
@pytest.mark.parametrize("name", profiles.PER_PROPERTY)
def test_settings_are_consistent(name: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "PROFILE", chosen)
    assert settings(**profiles.drawing(name)).derandomize == (name == "ci")
