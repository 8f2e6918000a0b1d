"""What holds for every test."""

import hypothesis

# An example that took long once says something about the machine, not about the example.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")
