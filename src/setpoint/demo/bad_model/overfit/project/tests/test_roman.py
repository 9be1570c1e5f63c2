from roman import roman


def test_examples():
    assert roman(4) == "IV"
    assert roman(9) == "IX"
    assert roman(2024) == "MMXXIV"
