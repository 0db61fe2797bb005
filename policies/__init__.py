"""Rate policies: one law a file. Authors read `policies.contract`."""

DISTRIBUTION = "tidegate"  # whose this package is: the name is a generic one
