"""The tests that run in `make test-all` only, in addition to tests marked `slow`, and the files that run first.

`make test` runs each law, endpoint and module with small inputs. It leaves out files of long runs; all but one small
case of each kernel in Triton's interpreter, which is a thousand times slower than a GPU; and most points of each grid
of parameters, except its ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

EMULATED = "the emulator of GPU code runs millions of instructions"
INTERPRETED = "Triton's interpreter; the same law is tested on another path"
# Folders, files and tests with reasons.
LONG = {
    "tests/benchmarks/": "what measures: changed seldom, and by itself",
    "tests/ptx/": EMULATED,
    "tests/soak/": "attacks and faults, minutes each",
    "tests/deploy/test_cuda_image.py": "builds images",
    "tests/deploy/test_image.py": "builds an image",
    "tests/deploy/test_ray.py": "starts a cluster",
    "tests/service/page/test_interface_page.py": "a browser",
    "tests/service/page/test_live_tab.py": "a browser",
    "tests/service/page/test_page_for_everybody.py": "a browser",
    "tests/service/page/test_page_in_trouble.py": "a browser",
    "tests/service/page/test_page_links.py": "a browser",
    "tests/service/page/test_page_pictures.py": "a browser",
    "tests/service/page/test_page_uploads.py": "a browser",
    "tests/service/page/test_server_tab.py": "a browser",
    "tests/service/page/test_text_tab.py": "a browser",
    "tests/cli/test_cli.py::test_a_language_model_goes_from_a_corpus_to_a_score": "trains and calibrates a model",
    "tests/cli/test_cli.py::test_compile_reports_when_all_kernels_are_ready": "compiles every kernel in a process",
    "tests/export/test_kernel_compile.py::test_a_bundle_holds_the_kernels_of_six_gpus": "compiles for six GPUs",
    "tests/model/test_triton_operators.py::test_the_operators_keep_their_promises": INTERPRETED,
    "tests/runtime/bundle/test_stored_kernels.py::test_a_kernel_that_computes_something_else_is_found": EMULATED,
    "tests/runtime/bundle/test_stored_kernels.py::test_executed_they_give_the_golden_outputs": EMULATED,
    "tests/runtime/gpu/test_torch_attention.py::test_a_row_that_is_not_finite_is_alone_with_it": INTERPRETED,
    "tests/runtime/gpu/test_torch_attention.py::test_padding_touches_a_page_that_nobody_reads": INTERPRETED,
    "tests/runtime/gpu/test_torch_attention.py::test_steps_have_the_bits_of_pieces_of_one_token": INTERPRETED,
    "tests/runtime/gpu/test_torch_kernels.py::test_numbers_are_those_of_what_triton_compiles_for_each_launch": EMULATED,
    "tests/runtime/gpu/test_torch_kernels.py::test_serving_never_makes_tritons_driver": "imports torch once more",
    "tests/runtime/gpu/test_torch_kernels.py::test_serving_other_models_launches_what_is_stored_alone": INTERPRETED,
    "tests/runtime/gpu/test_torch_prompts.py::test_keys_of_prompts_beside_padding": INTERPRETED,
    "tests/service/test_fuzz.py": "thousands of random requests; test_boundary.py has the limits",
    "tests/service/test_wire_fuzz.py": "thousands of random requests",
}
# Of these files only the named tests run, each with its first case.
ONLY = {
    "tests/model/test_decoder_triton.py": "slots_of_a_layer what_is_done_to_rows cosine_and_sine "
    "what_the_kernels_refuse",
    "tests/model/test_draw_triton.py": "tokens_are_those_that_are_certain sums_of_weights_do_not_overflow",
    "tests/model/test_product_triton.py": "norms_agree a_product_with_what_is_around_it",
    "tests/model/test_paged_attention.py": "pages_are_read_where_they_lie a_block_longer_than_a_page_is_refused",
    "tests/model/test_ragged.py": "what_the_kernels_do_not_run_is_said",
    "tests/model/test_slots_triton.py": "matches_the_reference tokens_of_own_lags_match_the_reference "
    "rows_may_have_different_lengths auto_takes_the_kernel_on_a_gpu_only refusals_name_the_reason",
    "tests/model/test_triton_backward.py": "gradients packed_sequences",
    "tests/model/test_triton_forward.py": "matches_the_eager_code packed_sequences launch_table "
    "blocks_that_do_not_fit_are_refused",
    "tests/service/page/test_series_tab.py": "an_example_is_shown_at_once",
    # Each starts a server of several processes.
    "tests/service/test_supervisor.py": "a_killed_process_is_replaced_while_the_others_serve "
    "bundles_are_loaded_anew_by_one_process_after_another_and_served_by_all_at_once "
    "a_signal_to_a_process_that_is_ending_leaves_its_exit_code_alone",
}
# Files of ten seconds and more that need few compiled kernels run first, so that no worker starts one last.
FIRST = (
    "tests/runtime/bundle/test_stored_kernels.py",
    "tests/training/test_series_training.py",
    "tests/export/test_verify.py",
    "tests/training/test_language_training.py",
    "tests/model/test_triton_ops.py",
    "tests/ptx/test_ptx_kernels.py",
    "tests/ptx/test_ptx_ragged.py",
)
# Folders whose tests need few kernels are next, while `tests.ahead` compiles kernels.
WITHOUT_KERNELS = ("tests/data/", "tests/deploy/", "tests/export/", "tests/model/")
# Files of ten seconds and more that need compiled kernels run before all other files.
WITH_KERNELS = (
    "tests/test_docs.py",
    "tests/test_architecture.py",
    "tests/runtime/filters/test_dense_numba_learned.py",
    "tests/service/test_torch_filter.py",
    "tests/library/watch/test_kafka.py",
    "tests/soak/faults/test_sigterm.py",
    "tests/soak/faults/test_kill.py",
    "tests/soak/faults/test_redis.py",
    "tests/runtime/text/test_runtime_laws.py",
    "tests/service/test_http_connections.py",
    "tests/service/test_supervisor.py",
    "tests/service/test_bundle_checks.py",
    "tests/runtime/gpu/test_torch_attention.py",
    "tests/cli/test_cli.py",
)
# Maximum number of cases of a test of files: each case is a file of another program.
MOST_FILES = {
    "tests/data/test_future.py::test_times_that_are_written_below_a_file_are_read_as_they_are": 50,
    "tests/data/test_kinds.py::test_a_kind_of_file_is_read_right": 200,
}
# Maximum number of cases of a test in these folders, except where each case is a different request or file.
THINNED = ("tests/export/", "tests/fitting/", "tests/model/", "tests/runtime/", "tests/training/")
MOST_CASES = 3


def position(file: str) -> int:
    """Return a key by which test files are sorted."""
    matches = (
        *(file == name for name in FIRST),
        file.startswith(WITHOUT_KERNELS),
        *(file == name for name in WITH_KERNELS),
        True,
    )
    return matches.index(True)


def mark_slow(items: Sequence[pytest.Item]) -> None:
    """Mark the tests that `make test` leaves out."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for name, found in cases.items():
        for item in left_out(name, found):
            item.add_marker(pytest.mark.slow)


def left_out(name: str, cases: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    """Return which cases of the test `FILE::NAME` are left out."""
    file, _, test = name.partition("::")
    if any(name.startswith(place) for place in LONG):
        return cases
    if file in ONLY:
        return cases[1:] if test.removeprefix("test_") in ONLY[file].split() else cases
    most = MOST_CASES if file.startswith(THINNED) else MOST_FILES.get(name, len(cases))
    kept = spread(len(cases), most)
    return [case for k, case in enumerate(cases) if k not in kept]


def spread(count: int, most: int) -> frozenset[int]:
    """Return at most `most` of `count` indices, evenly spaced, including the first and last."""
    if count <= most:
        return frozenset(range(count))
    return frozenset(round(k * (count - 1) / (most - 1)) for k in range(most))
