"""Tests of api/; the first package that unittest's discovery meets, which cannot run what is written for pytest."""


def load_tests(loader, tests, pattern):
    """unittest calls this where it would look for its own kind of tests."""
    raise SystemExit("these tests need pytest: python -m pip install -e '.[test]' && python -m pytest")
