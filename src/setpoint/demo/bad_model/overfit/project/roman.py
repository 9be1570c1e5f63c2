def roman(number):
    """``number``, from 1 to 3999, in Roman numerals."""
    raise NotImplementedError
