"""What a call has to raise."""


def raises(kind, texts, call):
    """call() raises an exception of this kind, whose message has the text, or all of the texts."""
    try:
        call()
    except kind as error:
        for text in [texts] if isinstance(texts, str) else texts:
            assert text in str(error), f"{text!r} is not in {str(error)!r}"
        return
    raise AssertionError(f"nothing was raised; {texts!r} was to be")
