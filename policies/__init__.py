"""Rate policies: one law a file. Authors read `policies.contract`."""
