"""Every property is tried on as many programs as its profile says, whatever else has loaded profiles of Hypothesis."""

from hypothesis import given, settings
from hypothesis import strategies as st

from verification.profiles import PER_PROPERTY, PROFILE


def test_number_of_examples() -> None:
    drawn = []

    @given(st.floats())
    def example(x: float) -> None:
        drawn.append(x)

    example()
    assert len(drawn) == settings().max_examples == PER_PROPERTY[PROFILE]
