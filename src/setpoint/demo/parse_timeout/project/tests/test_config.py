from config.parser import parse_timeout


def test_a_negative_timeout_means_the_default():
    assert parse_timeout("-1.0") == 5.0
