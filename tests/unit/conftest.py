"""What the unit tests need."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes is the machine's business; each test has a limit in all.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
