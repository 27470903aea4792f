"""Which operators a graph may call."""

from __future__ import annotations

import pytest
import torch

from tightfit.stages.torch_utils.operators import IN_PLACE_FORMS, resolve, writes_running_statistics
from tightfit.util.errors import ArtifactError

REFUSED = """
aten.manual_seed.default aten.manual_seed.generator aten.seed.default aten.initial_seed.default
aten.set_grad_enabled.default aten._set_grad_enabled.default aten.is_grad_enabled.default
aten._print.default aten.warn.default aten.record_stream.default aten.from_file.default
aten.save.default aten.load.default aten.set_.source_Tensor aten.set.source_Tensor
aten.set.source_Storage aten.set_data.default aten.resize_.default aten.resize.default
aten.resize_as.default aten._resize_output.default aten._backward.default aten.backward.default
aten.grad.default aten.requires_grad_.default aten.retain_grad.default aten.item.default
aten._local_scalar_dense.default aten.equal.default aten.is_nonzero.default aten.numel.default
aten.copy_sparse_to_sparse.default aten._copy_from.default aten._copy_from_and_resize.default
aten._cudnn_init_dropout_state.default aten._cudnn_rnn_flatten_weight.default aten._to_cpu.default
aten._pin_memory.default aten.pin_memory.default aten._lazy_clone.default aten._make_dual.default
aten._unpack_dual.default aten._add_batch_dim.default aten._remove_batch_dim.default
aten._assert_async.msg aten._assert_tensor_metadata.default aten._functional_assert_async.msg
aten._make_dep_token.default prims._make_token.default prims.device_put.default
aten._test_warn_in_autograd.default aten._foobar.default aten._no_grad_embedding_renorm_.default
aten.tensor.default aten.as_tensor.default aten.cuda.default aten.index.Tensor_hacked_twin
aten.fbgemm_pack_gemm_matrix_fp16.default aten.fbgemm_linear_int8_weight.default
aten._sparse_coo_tensor_unsafe.default aten._nested_view_from_buffer.default
aten._index_put_impl.default aten._index_put_impl_.default aten._fused_adam.default
aten._amp_update_scale.default aten.quantized_lstm.data aten.rename.default aten.data.default
aten.relu6_.default aten.sinh.out aten.sparse_resize_.default aten.__getitem__.t aten.len.t
aten.format.default aten.hash.generic aten.ord.default aten.list.t aten.dict.str aten.Bool.Tensor
aten.get_autocast_dtype.default aten.is_autocast_enabled.default aten.wait.default
aten.fork.default aten._nested_tensor_from_mask.default aten.to_sparse.default
""".split()

NEEDED = """
aten.add.Tensor aten.as_strided.default aten._unsafe_view.default aten._unsafe_index.Tensor
aten._unsafe_index_put.default aten.empty.memory_format aten.zeros.default aten.full.default
aten.arange.start_step aten.rand.default aten.randn.default aten.randperm.default aten.eye.default
aten.scalar_tensor.default aten.new_zeros.default aten.native_dropout.default aten.bernoulli.p
aten._native_batch_norm_legit_functional.default aten.native_layer_norm.default
aten._scaled_dot_product_flash_attention_for_cpu.default aten._embedding_bag.default
aten._scaled_dot_product_efficient_attention.default aten.convolution_backward.default
aten.mkldnn_rnn_layer.default aten.mkldnn_rnn_layer_backward.default aten._cudnn_rnn.default
aten.index_put.default aten.topk.default aten.sort.stable aten.unbind.int aten.split.Tensor
aten._fused_rms_norm.default aten._to_copy.default aten.clone.default aten.lift_fresh_copy.default
aten._ctc_loss.default aten.multinomial.default aten.poisson.default aten.max_unpool2d.default
aten.fake_quantize_per_tensor_affine_cachemask.default aten._foreach_add.List aten.stft.center
prims.convert_element_type.default prims.iota.default prims.broadcast_in_dim.default
aten._thnn_fused_lstm_cell.default aten._weight_norm_interface.default aten.detach.default
""".split()


@pytest.mark.parametrize("target", REFUSED)
def test_effects_are_refused(target: str) -> None:
    with pytest.raises(ArtifactError, match=r"^[^\n]*$"):
        resolve(target)


@pytest.mark.parametrize("target", NEEDED)
def test_what_models_need_is_not(target: str) -> None:
    resolve(target)


def test_in_place_forms_stand() -> None:
    for form in IN_PLACE_FORMS.values():
        for step in form.steps:
            resolve(step.target)


def test_every_operator_takes_and_makes_tensors_and_changes_nothing() -> None:
    """Of all that PyTorch has, what passes is read from its schemas anew, by their text."""
    passed = 0
    written = {step.target for form in IN_PLACE_FORMS.values() for step in form.steps}
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        target = f"{space}.{packet}.{overload or 'default'}"
        try:
            schema = resolve(target)._schema
        except ArtifactError:
            continue
        passed += 1
        takes, _, makes = str(schema).partition(" -> ")
        assert "Tensor" in makes and not {"Storage", "Stream", "Any"} & set(takes.split())
        assert "Tensor" in takes or ("dtype" in takes and "str " not in takes), target
        assert "!" not in takes or target in written or target == "aten.copy_.default"
    assert 1000 < passed < 2000


def test_statistics_that_a_batch_norm_writes_unsaid_are_seen() -> None:
    one = torch.ones(1)
    norm = torch.ops.aten.native_batch_norm.default
    assert writes_running_statistics(norm, [one, None, None, one, one, True, 0.1, 0.1], {})
    assert not writes_running_statistics(norm, [one, None, None, one, one, False, 0.1, 0.1], {})
    assert not writes_running_statistics(norm, [one, None, None, None, None, True, 0.1, 0.1], {})
    assert writes_running_statistics(
        norm, [one, None, None], {"running_mean": one, "training": True}
    )
    gather = torch.ops.aten.batch_norm_update_stats.default
    assert writes_running_statistics(gather, [one, one, one, 0.1], {})
    assert not writes_running_statistics(torch.ops.aten.add.Tensor, [one, one], {})
