"""The lab: the real worker, reaper, janitor and scheduler under simulated time, faults and machines."""
