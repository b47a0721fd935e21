"""What is read of the settings of torch."""

from hofunc import internals_settings


def test_settings_are_told_without_arguments() -> None:
    assert {
        "_get_float32_matmul_precision",
        "_get_mkldnn_enabled",
        "get_num_threads",
    } <= internals_settings.SETTINGS.keys()
    for setting in internals_settings.SETTINGS.values():
        assert setting() == setting()
