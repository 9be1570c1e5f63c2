"""The scenes of ``setpoint demo``. Each one runs for real, tells what the log says of it, and checks it."""
