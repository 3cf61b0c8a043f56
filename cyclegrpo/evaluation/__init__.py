"""Held-out evaluation of a policy: cycle, captions against the truth, locating given expressions, no-target answers."""
