"""Print how many measurements there are."""

with open("data/2024/measurements.csv", encoding="utf-8") as rows:
    print(sum(1 for _ in rows) - 1)
