"""CycleGRPO: a vision-language policy learns to describe regions by locating them again from its own words."""

__version__ = "0.1.0"
