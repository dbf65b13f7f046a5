"""hwloc XML, as lstopo writes it."""
