"""docs/RESULTS.md, and the table of the README, made from the files of results/."""
