"""`python -m rfa.bench.results_page`: write docs/RESULTS.md and the README's table from the files of results/."""

from rfa.bench.results_page.page import main

main()
