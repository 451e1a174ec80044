"""`python -m rfa.benchmarks.results_page`: write docs/RESULTS.md and the table of the README."""

from rfa.benchmarks.results_page.page import main

main()
