"""What the long runs share: `slot_reuse`, `cut_points`, `api_fuzz` and `rss_soak` of `rfa.bench`."""
