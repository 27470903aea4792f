"""Settings of inductor that the bits of a kernel, its memory or the place of its outputs depend on.

Some of them are read from the environment when PyTorch is loaded: these are set to what they are
without it. The others are set to what a build of PyTorch comes with. Matrix products, convolutions
and what is tuned for them are in no group, and their settings are left alone; so are those of
caches, checks and messages.
"""

from __future__ import annotations

from typing import Any

_ENVIRONMENT_DEFAULTS: dict[str, Any] = {
    "auto_chunker.enable": False,
    "batch_invariant": False,
    "benchmark_fusion": False,
    "benchmark_kernel": False,
    "comprehensive_padding": True,
    "cpp.dynamic_threads": False,
    "cpp.enable_floating_point_contract_flag": "off",
    "cpp.enable_tiling_heuristics": True,
    "cpp.enable_unsafe_math_opt_flag": False,
    "cpp.force_inline_kernel": False,
    "cpp.march": None,
    "cpp.max_horizontal_fusion_size": 16,
    "cpp.min_chunk_size": 512,
    "cpp.no_redundant_loops": True,
    "cpp.use_decompose_tanh": False,
    "cpp.vec_isa_ok": None,
    "cpp_wrapper": False,
    "coordinate_descent_tuning": False,
    "delay_realize_cheap_outputs": True,
    "deterministic": False,
    "disabled_passes": "",
    "dynamic_scale_rblock": True,
    "eager_numerics.division_rounding": False,
    "emulate_precision_casts": False,
    "emulate_precision_casts_on_saved_tensors": True,
    "freezing": False,
    "fx_wrapper": False,
    "keep_output_stride": True,
    "layout_optimization": True,
    "force_layout_optimization": False,
    "loop_ordering_after_fusion": True,
    "loop_reindexing_after_fusion": True,
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "memory_planning": False,
    "memory_pool": "intermediates",
    "min_num_split": 0,
    "online_softmax": True,
    "permute_fusion": False,
    "split_reductions": True,
    "triton.coalesce_tiling_analysis": True,
    "triton.cooperative_reductions": False,
    "triton.cudagraphs": False,
    "triton.divisible_by_16": True,
    "triton.mix_order_reduction": True,
    "triton.mix_order_reduction_allow_multi_stages": True,
    "triton.mix_order_reduction_autotune_split_size": False,
    "triton.multi_kernel": 0,
    "triton.nested_reduction": False,
    "triton.persistent_reductions": True,
    "use_fast_math": False,
}
"""What is read from the environment, as it is without."""

_BUILD_DEFAULTS = (
    *("_post_fusion_custom_pass", "_pre_fusion_custom_pass", "aggressive_fusion"),
    *("align_random_eager", "allow_buffer_reuse", "assume_32bit_indexing"),
    *("assume_aligned_inputs", "bw_outputs_user_visible", "combo_kernels"),
    *("constant_and_index_propagation", "cpp.enable_loop_tail_vec"),
    *("cpp.inject_log1p_bug_TESTING_ONLY", "cpp.inject_relu_bug_TESTING_ONLY", "cpp.simdlen"),
    *("cpp.threads", "cpp.use_two_step_variance_threshold", "cpu_backend", "cuda_backend"),
    *("disable_cpp_codegen", "disable_padding_cpu", "eager_numerics.disable_ftz"),
    *("eager_numerics.use_pytorch_libdevice", "expand_dimension_for_pointwise_nodes"),
    *("fallback_by_default", "fallback_random", "force_pointwise_cat", "implicit_fallbacks"),
    *("inductor_choices_class", "inplace_buffers", "joint_custom_post_pass"),
    *("joint_custom_pre_pass", "joint_graph_constant_folding", "loop_index_inversion_in_fusion"),
    *("max_complex_pointwise_cat_inputs", "max_fusion_buffer_group_pairwise_attempts"),
    *("max_fusion_size", "max_fusion_unique_io_buffers", "max_pointwise_cat_inputs"),
    *("min_overlap_ratio", "pad_channels_last", "pad_dynamic_shapes", "pad_outputs"),
    *("padding_alignment_bytes", "padding_stride_threshold", "pattern_matcher"),
    *("pick_loop_orders", "post_grad_custom_post_pass", "post_grad_custom_pre_pass"),
    *("post_grad_fusion_options", "pre_grad_custom_pass", "pre_grad_fusion_options"),
    *("realize_acc_reads_size_threshold", "realize_acc_reads_threshold"),
    *("realize_cpu_acc_reads_threshold", "realize_cpu_opcount_threshold"),
    *("realize_opcount_threshold", "realize_reads_threshold", "reorder_for_locality"),
    *("reorder_for_peak_memory", "score_fusion_memory_threshold", "selective_decompose"),
    *("size_threshold_for_succ_based_strategy", "triton.autotune_pointwise"),
    *("triton.codegen_upcast_to_fp32", "triton.dense_indexing"),
    *("triton.force_cooperative_reductions", "triton.inject_relu_bug_TESTING_ONLY"),
    *("triton.max_tiles", "triton.min_split_scan_rblock"),
    *("triton.mix_order_reduction_initial_xblock", "triton.mix_order_reduction_max_reads"),
    *("triton.mix_order_reduction_non_strict_mode", "triton.mix_order_reduction_split_size"),
    *("triton.prefer_nd_tiling", "triton.spill_threshold", "triton.tile_reductions"),
    *("triton.tiling_prevents_pointwise_fusion", "triton.tiling_prevents_reduction_fusion"),
    *("triton.transpose_discontiguous_tensor_descriptor", "triton.use_block_ptr"),
    *("triton.use_tensor_descriptor", "triton.use_two_step_variance_min_numel"),
    *("triton.use_two_step_variance_threshold", "unroll_reductions_threshold"),
    *("use_dce", "use_joint_graph_passes", "use_post_grad_passes"),
)
"""What a build of PyTorch comes with."""

_GPU_DEFAULTS = {"deterministic": True}
"""No two runs of a compiler choose another kernel by how long it takes."""


def pinned_settings(config: Any, device: str) -> dict[str, Any]:
    """The settings that kernels for a type of device are compiled with, by name, as far as a build
    of PyTorch knows them; `config` is inductor's."""
    known = config._config
    own = {name: known[name].default for name in _BUILD_DEFAULTS if name in known}
    alone = _ENVIRONMENT_DEFAULTS | (_GPU_DEFAULTS if device == "cuda" else {})
    return own | {name: value for name, value in alone.items() if name in known}


def current_setting(config: Any, name: str) -> Any:
    """The value of a setting that is in force, "triton.cudagraphs" of the part triton."""
    for part in name.split("."):
        config = getattr(config, part)
    return config
