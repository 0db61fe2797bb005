"""Simulated upstreams: hidden limits, faults and latencies from a seed, for runs that cost nothing."""

DISTRIBUTION = "tidegate"  # whose this package is: the name is a generic one
