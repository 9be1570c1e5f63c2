"""What the demo plays: projects, tasks, scripts of proposals and sealed files, as plain files.

``setpoint demo`` lays copies of these out in a directory of its own; nothing here is imported or changed.
"""
