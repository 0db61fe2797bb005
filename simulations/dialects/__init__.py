"""The dialects in which the simulated upstream answers: one file each, and a row in `table`."""
