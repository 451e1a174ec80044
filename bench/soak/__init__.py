"""What the long runs share: `bench.slot_reuse`, `bench.cut_points`, `bench.api_fuzz` and `bench.rss_soak`."""
