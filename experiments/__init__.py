"""What repeats papers and public benchmarks: tested, and not in the wheel."""
