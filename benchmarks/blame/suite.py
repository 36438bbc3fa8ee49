"""The planted changes: what each does to which model of `scratch/`, and what the right answer is.

Models are measured unchanged and with one plant switched on (`scratch/src/blamed/plant.py`). An answer is what blame
names first: a name, the module as `measure/module_ranges.py` calls it, and, where Python is to blame, the function
and its line. Where a change shows in several operators (forward and backward, what came and what went), each of them
is right.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from planted_change import NOWHERE, Plant

MODELS = ("gpt", "convnet", "recommender", "tagger")
CONVOLUTION = (
    "aten::_slow_conv2d_forward",
    "aten::mkldnn_convolution",
    "aten::convolution",
    "aten::_convolution",
    "aten::thnn_conv2d",
)
PRODUCTS = ("aten::addmm", "aten::mm")
ATTENTION = (
    "aten::_scaled_dot_product_*",
    "aten::bmm",
    "aten::_softmax*",
    "aten::masked_fill*",
    "aten::_softmax_backward_data",
    "aten::mul",
    "aten::copy_",
    "aten::triu",
)
ADAMW_LOOP = (
    "aten::_fused_adamw_",
    "aten::lerp_",
    "aten::addcmul_",
    "aten::addcdiv_",
    "aten::sqrt",
    "aten::mul_",
    "aten::div",
    "aten::add_",
    "*Optimizer.step*",
    "*adamw*",
    "*optim/*",
)

GPT: Mapping[str, Plant] = {
    "attention_written_out": Plant(
        "gpt",
        "attention as separate operators: the fusion is lost",
        "counts",
        8,
        ATTENTION,
        ("GPT.blocks",),
        "gpt.Attention.forward",
    ),
    "gelu_by_hand": Plant(
        "gpt",
        "GELU of one block as its formula: an operator replaced",
        "counts",
        5,
        (
            *("aten::mul", "aten::add", "aten::tanh", "aten::tanh_backward", "aten::gelu", "aten::gelu_backward"),
            *("aten::rsub", "aten::add_"),
        ),
        ("GPT.blocks.2.mlp",),
        "gpt.MLP.forward",
    ),
    "wider_mlp": Plant(
        "gpt",
        "the MLP of one block 25 % wider: the same operators on larger tensors",
        "duration",
        4,
        PRODUCTS,
        ("GPT.blocks.3.mlp", "GPT.blocks.3.mlp.up", "GPT.blocks.3.mlp.down"),
        "gpt.MLP.forward",
    ),
    "loss_in_float64": Plant(
        "gpt",
        "the loss in float64: a dtype widened",
        "counts",
        4,
        ("aten::_log_softmax*", "aten::copy_", "aten::_to_copy", "aten::to", "aten::nll_loss*", "aten::zero_"),
        NOWHERE,
        "gpt.loss_of",
    ),
    "gradient_clipping": Plant(
        "gpt",
        "gradients clipped to a norm",
        "counts",
        4,
        (
            *("*clip_grad*", "aten::_foreach_norm", "aten::_foreach_mul_", "aten::linalg_vector_norm"),
            *("aten::mul_", "aten::stack", "aten::cat"),
        ),
        NOWHERE,
        "gpt.training.train_step",
    ),
    "fused_optimizer_lost": Plant(
        "gpt",
        "AdamW as a loop over parameters: the fusion is lost",
        "counts",
        12,
        ADAMW_LOOP,
        NOWHERE,
        "gpt.training.train_step",
    ),
    "average_of_weights": Plant(
        "gpt", "a moving average of the weights", "counts", 2, ("aten::lerp_",), NOWHERE, "gpt.update_average"
    ),
    "pairs_counted": Plant(
        "gpt",
        "a loop in Python over the tokens so far",
        "duration",
        5,
        ("*count_pairs*",),
        NOWHERE,
        "gpt.count_pairs",
        python=True,
    ),
    "parameters_logged": Plant(
        "gpt",
        "a line of log for each parameter",
        "duration",
        2,
        ("*logging/__init__.py*", "*named_parameters*", "*_named_members*"),
        NOWHERE,
        "gpt.log_parameters",
        python=True,
    ),
}

CONVNET: Mapping[str, Plant] = {
    "gelu_by_tanh": Plant(
        "convnet",
        "GELU approximated by tanh: a slower kernel of the same name",
        "duration",
        4,
        ("aten::gelu",),
        ("ConvNet.stages",),
        "convnet.Block.forward",
    ),
    "evaluation_mode_lost": Plant(
        "convnet",
        "batch statistics in inference: normalization in training mode",
        "counts",
        8,
        ("aten::native_batch_norm", "aten::add_"),
        ("ConvNet.stages",),
        "convnet.Block.forward",
    ),
    "memory_format_lost": Plant(
        "convnet",
        "a buffer in contiguous instead of channels-last format",
        "duration",
        4,
        ("aten::add",),
        ("ConvNet",),
        "convnet.ConvNet.forward",
    ),
    "groups_lost": Plant(
        "convnet",
        "a convolution that is no longer grouped: a slower kernel of the same name",
        "duration",
        6,
        CONVOLUTION,
        ("ConvNet.stages.2.space", "ConvNet.stages.2"),
        "convnet.Block.forward",
    ),
    "resized_bicubic": Plant(
        "convnet",
        "images resized bicubically: an operator replaced",
        "counts",
        4,
        ("aten::upsample_bi*",),
        NOWHERE,
        "convnet.prepare",
    ),
    "normalized_twice": Plant(
        "convnet", "images normalized twice", "counts", 2, ("aten::sub", "aten::div"), NOWHERE, "convnet.prepare"
    ),
    "shortcut_copied": Plant(
        "convnet",
        "an extra copy of a shortcut",
        "counts",
        1.5,
        ("aten::copy_", "aten::clone", "aten::empty_like", "aten::empty_strided"),
        ("ConvNet.stages.0",),
        "convnet.Block.forward",
    ),
    "expanded_one_by_one": Plant(
        "convnet",
        "a convolution for each image: more launches of smaller kernels",
        "counts",
        8,
        (*CONVOLUTION, "aten::cat"),
        ("ConvNet.stages.0", "ConvNet.stages.0.expand"),
        "convnet.Block.forward",
    ),
    "block_repeated": Plant(
        "convnet",
        "one block more: a module duplicated",
        "counts",
        15,
        (*CONVOLUTION, "aten::gelu", "aten::native_batch_norm"),
        (
            "ConvNet.stages.3",
            *(f"ConvNet.stages.3.{part}" for part in ("space", "norm", "expand", "activation", "project")),
        ),
        "convnet.Block.forward",
    ),
    "checked_for_nan": Plant(
        "convnet",
        "a look at the features that waits for them: an extra synchronization",
        "counts",
        2,
        (
            *("aten::abs", "aten::eq", "aten::ne", "aten::mul", "aten::all", "aten::isfinite", "aten::item"),
            *("aten::_local_scalar_dense", "aten::is_nonzero"),
        ),
        ("ConvNet",),
        "convnet.ConvNet.forward",
    ),
    "names_searched": Plant(
        "convnet",
        "names found by going through all of them in Python",
        "duration",
        5,
        ("*names_of*",),
        NOWHERE,
        "convnet.names_of",
        python=True,
    ),
}

RECOMMENDER: Mapping[str, Plant] = {
    "collated_through_lists": Plant(
        "recommender", "batches made of Python lists: slower data loading", "duration", 6, ("input",)
    ),
    "hashed_in_loader": Plant(
        "recommender", "words hashed one by one in the loader: slower data loading", "duration", 2, ("input",)
    ),
    "dense_gradients": Plant(
        "recommender",
        "gradients as large as the embedding tables",
        "counts",
        5,
        (
            *("aten::embedding_*backward", "aten::fill_", "aten::zero_", "aten::add_", "aten::_coalesce"),
            *("aten::_indices", "aten::_values", "aten::sparse_coo*", "aten::_sparse_coo*", "aten::coalesce"),
        ),
        ("", "Recommender", "Recommender.tables"),
        "recommender.Recommender.forward",
    ),
    "interaction_in_float64": Plant(
        "recommender",
        "products of features in float64: a dtype widened",
        "counts",
        3,
        ("aten::bmm", "aten::copy_", "aten::_to_copy", "aten::to", "aten::index*", "aten::_index_put_impl_"),
        ("Recommender.interaction",),
        "recommender.Interaction.forward",
    ),
    "pairs_one_by_one": Plant(
        "recommender",
        "each pair of features multiplied separately: more launches of smaller kernels",
        "counts",
        15,
        (
            *("aten::mul", "aten::sum", "aten::select*", "aten::stack", "aten::bmm", "aten::cat", "aten::zeros"),
            *("aten::zero_", "aten::fill_", "aten::add_", "aten::copy_", "aten::add", "aten::index*"),
            *("aten::_index_put_impl_", "aten::as_strided", "aten::expand", "aten::slice"),
        ),
        ("Recommender.interaction",),
        "recommender.Interaction.forward",
    ),
    "dropout_added": Plant(
        "recommender",
        "dropout between some layers",
        "counts",
        10,
        ("aten::bernoulli_", "aten::div_", "aten::mul", "aten::native_dropout*", "aten::empty_like"),
        ("Recommender.bottom",),
        "recommender.Layers.forward",
    ),
    "penalty_by_hand": Plant(
        "recommender",
        "the weights' squares added to the loss",
        "counts",
        5,
        ("aten::pow", "aten::sum", "aten::mul", "aten::add_", "aten::add", "aten::mul_"),
        NOWHERE,
        "recommender.penalty",
    ),
    "list_searched": Plant(
        "recommender",
        "campaigns looked up in a list instead of a dictionary",
        "duration",
        3,
        ("*ids_of*", "*index*list*"),
        NOWHERE,
        "recommender.ids_of",
        python=True,
    ),
    "trend_in_float64": Plant(
        "recommender",
        "statistics kept in float64: a dtype widened, a slower kernel of the same name",
        "duration",
        2,
        ("aten::exp",),
        NOWHERE,
        "recommender.trend_of",
    ),
}

TAGGER: Mapping[str, Plant] = {
    "inputs_one_by_one": Plant(
        "tagger",
        "one layer's inputs projected step by step: more launches of smaller kernels",
        "counts",
        20,
        (*PRODUCTS, "aten::linear", "aten::t", "aten::transpose", "aten::as_strided"),
        ("Tagger.layers.0", "Tagger.layers.0.inputs"),
        "tagger.Layer.forward",
    ),
    "gates_apart": Plant(
        "tagger",
        "three products instead of one in one layer: the fusion is lost",
        "counts",
        10,
        (*PRODUCTS, "aten::linear", "aten::t", "aten::transpose", "aten::as_strided", "aten::chunk", "aten::split"),
        ("Tagger.layers.1.cell", "Tagger.layers.1.cell.gates"),
        "tagger.Cell.forward",
    ),
    "sigmoid_by_hand": Plant(
        "tagger",
        "the sigmoid of one layer as its formula: an operator replaced",
        "counts",
        6,
        ("aten::sigmoid", "aten::exp", "aten::neg", "aten::add", "aten::reciprocal", "aten::mul"),
        ("Tagger.layers.0.cell",),
        "tagger.Cell.forward",
    ),
    "state_normalized": Plant(
        "tagger",
        "a layer norm after each step of one layer: a module added",
        "counts",
        6,
        ("aten::native_layer_norm", "aten::layer_norm"),
        ("Tagger.layers.1.norm",),
        "tagger.Layer.forward",
    ),
    "state_checked": Plant(
        "tagger",
        "a look at each state that waits for it: extra synchronizations",
        "counts",
        6,
        ("aten::abs", "aten::max", "aten::item", "aten::_local_scalar_dense"),
        ("Tagger.layers.1",),
        "tagger.Layer.forward",
    ),
    "states_copied": Plant(
        "tagger",
        "an extra copy of each state of one layer",
        "counts",
        2.5,
        ("aten::clone", "aten::copy_", "aten::empty_like", "aten::empty_strided"),
        ("Tagger.layers.0",),
        "tagger.Layer.forward",
    ),
    "more_tags": Plant(
        "tagger",
        "twice as many tags: the same operator on a larger matrix",
        "duration",
        6,
        (*PRODUCTS, "aten::argmax"),
        ("Tagger.head", "Tagger", ""),
        "tagger.Tagger.forward",
    ),
    "tags_appended": Plant(
        "tagger",
        "tags appended to a tuple one by one, in quadratic time",
        "duration",
        8,
        ("*joined*",),
        NOWHERE,
        "tagger.joined",
        python=True,
    ),
    "pattern_compiled_again": Plant(
        "tagger",
        "a regular expression compiled in every step",
        "duration",
        3,
        ("*re/__init__.py*", "*re.py*", "*words_of*"),
        NOWHERE,
        "tagger.words_of",
        python=True,
    ),
    "pause_added": Plant(
        "tagger",
        "a pause in every step",
        "duration",
        3,
        ("*sleep*", "*breathe*"),
        NOWHERE,
        "tagger.breathe",
        python=True,
    ),
}

PLANTS: Mapping[str, Plant] = {**GPT, **CONVNET, **RECOMMENDER, **TAGGER}
