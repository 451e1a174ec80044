"""`python -m rfa.benchmarks.results_page`: write docs/RESULTS.md and the README's table from the files of results/."""

from rfa.benchmarks.results_page.page import main

main()
