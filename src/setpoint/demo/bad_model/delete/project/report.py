"""Print how many measurements there are."""

from pathlib import Path

print(sum(1 for _ in Path("data/2024/measurements.csv").open()) - 1)
