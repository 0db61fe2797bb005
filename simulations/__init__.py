"""Simulated upstreams: hidden limits, faults and latencies from a seed, for runs that cost nothing."""
