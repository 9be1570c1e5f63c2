"""Event logs: one SQLite file by default, or memory. ``open_log`` chooses by URL."""

from setpoint.adapters.stores.export import export_lines, verify_lines
from setpoint.adapters.stores.opening import open_log
from setpoint.adapters.stores.owner import this_owner

__all__ = ["export_lines", "open_log", "this_owner", "verify_lines"]
