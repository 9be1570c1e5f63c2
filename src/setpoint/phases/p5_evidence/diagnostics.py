"""Structured diagnostics of an observation (R116). The patterns lie in the kernel, since checks use them as well."""

from setpoint.kernel.diagnostics import diagnose

__all__ = ["diagnose"]
