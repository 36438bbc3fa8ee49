"""The planted changes: what each does to which model of `models/`, and what the right answer is.

A plant replaces one text in one file. What it must be explained by was written down from the shapes, before anything
was measured; `truth.py` holds it against torch's own profiler. Bytes are those of CPU tensors: elements times the size
of one, without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
MODELS = HERE / "models"
NAMES = ("gpt", "resnet", "dlrm", "decoder")

Category = Literal["parameters", "gradients", "optimizer state", "activations", "temporaries", "inputs", "other"]


class PlantError(ValueError):
    """A plant does not fit its model."""


@dataclass(frozen=True)
class Line:
    """A line of the changed code, by its text without indentation, which occurs once in its file."""

    file: str
    text: str


@dataclass(frozen=True)
class Plant:
    """A change for the worse and what must be found out about it."""

    name: str
    model: str
    file: str
    old: str
    new: str
    line: tuple[Line, ...]
    """Any of them is right; the best first. Where all of a graph is kept, the call that makes it is right too."""
    module: tuple[str, ...]
    """Patterns of paths of which any is right, "" for what is in no module; so is an empty tuple."""
    category: tuple[Category, ...]
    delta_bytes: int
    """By how much the peak grows; of what grows with every step, from one step to the next."""
    tolerance_bytes: int
    """One allocation of the planted kind."""
    grows_per_step: int
    """Bytes kept by each step; 0 where a step ends with as much as the one before."""
    changes_operators: bool
    """Whether the step has more or fewer operators than before."""
    why: str

    def planted(self, text: str) -> str:
        """The file's text with the change in it.

        Raises
        ------
        PlantError
            When what is to be replaced does not occur exactly once.
        """
        if text.count(self.old) != 1:
            raise PlantError(f"{self.name}: {self.old!r} occurs {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)

    def plant(self, folder: Path) -> None:
        """Make the change in a copy of the model.

        Raises
        ------
        PlantError
        """
        path = folder / self.file
        path.write_text(self.planted(path.read_text()))

    def places(self, folder: Path) -> tuple[tuple[str, int], ...]:
        """File and number of each right line, in a copy of the model that has the change.

        Raises
        ------
        PlantError
            When a line does not occur exactly once.
        """
        found = []
        for line in self.line:
            lines = [each.strip() for each in (folder / line.file).read_text().splitlines()]
            if lines.count(line.text) != 1:
                raise PlantError(f"{self.name}: {line.text!r} occurs {lines.count(line.text)} times in {line.file}")
            found.append((line.file, lines.index(line.text) + 1))
        return tuple(found)


def _model(*texts: str) -> tuple[Line, ...]:
    return tuple(Line("model.py", text) for text in texts)


def _train(*texts: str) -> tuple[Line, ...]:
    return tuple(Line("train.py", text) for text in texts)


# Sizes of models/gpt. A stream is what flows between blocks, [batch, time, width].
BATCH, SEQUENCE, VOCABULARY, WIDTH, HEADS, LAYERS = 8, 128, 2048, 128, 4, 2
LOGITS = 4 * BATCH * SEQUENCE * VOCABULARY
STREAM = 4 * BATCH * SEQUENCE * WIDTH
NORM_STATISTICS = 2 * 4 * BATCH * SEQUENCE
"""Mean and deviation of each token, which a normalization keeps."""
LOGSUMEXP = 4 * BATCH * SEQUENCE * HEADS
BLOCK = (
    (STREAM + NORM_STATISTICS)  # what the first normalization gives, which the linear layer keeps
    + 3 * STREAM  # queries, keys and values
    + (STREAM + LOGSUMEXP)  # what attention gives; its transpose, flattened, is a view
    + STREAM  # the sum, which the second normalization keeps
    + (STREAM + NORM_STATISTICS)
    + 4 * STREAM  # before the GELU
    + 4 * STREAM  # after it
)
"""What a block keeps for backward, beside its input."""
RANDOM_STATE = 5056
"""What a checkpoint keeps of torch's generator, to draw the same again."""
BLOCK_WEIGHTS = (
    (3 * WIDTH**2 + 3 * WIDTH)  # qkv
    + (WIDTH**2 + WIDTH)  # projection
    + (4 * WIDTH**2 + 4 * WIDTH)  # up
    + (4 * WIDTH**2 + WIDTH)  # down
    + 2 * 2 * WIDTH  # two normalizations
)
GPT_WEIGHTS = (VOCABULARY + SEQUENCE) * WIDTH + LAYERS * BLOCK_WEIGHTS + 2 * WIDTH

GPT = (
    Plant(
        name="gpt_checkpointing_lost",
        model="gpt",
        file="model.py",
        old="x = checkpoint(block, x, mask, use_reentrant=False)",
        new="x = block(x, mask)",
        line=_model(
            "hidden = self.up(x)",
            "hidden = gelu(hidden)",
            "qkv = self.qkv(x)",
            "x = x + self.attention(self.attention_norm(x), mask)",
            "return x + self.mlp(self.mlp_norm(x))",
            "mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)",
            "x = block(x, mask)",
        ),
        module=("GPT.blocks*",),
        category=("activations",),
        delta_bytes=LAYERS * (BLOCK - RANDOM_STATE),
        tolerance_bytes=4 * STREAM,
        grows_per_step=0,
        changes_operators=True,
        why="what blocks keep for backward is alive when the logits' gradients are, instead of computed again",
    ),
    Plant(
        name="gpt_weights_untied",
        model="gpt",
        file="model.py",
        old="        self.head.weight = self.tokens.weight\n",
        new="",
        line=(
            *_model("self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)"),
            *_train("optimizer.step()"),
        ),
        module=("GPT.head",),
        category=("parameters", "optimizer state"),
        delta_bytes=3 * 4 * VOCABULARY * WIDTH,
        tolerance_bytes=4 * VOCABULARY * WIDTH,
        grows_per_step=0,
        changes_operators=True,
        why="the head has weights of its own, and AdamW two moments of them; its gradient is made after the peak",
    ),
    Plant(
        name="gpt_loss_unfused",
        model="gpt",
        file="train.py",
        old="    loss = cross_entropy(logits, targets)\n",
        new=(
            "    picked = logits.log_softmax(-1) * torch.nn.functional.one_hot(targets, VOCABULARY)\n"
            "    loss = -picked.sum(-1).mean()\n"
        ),
        line=_train("picked = logits.log_softmax(-1) * torch.nn.functional.one_hot(targets, VOCABULARY)"),
        module=(),
        category=("activations", "temporaries"),
        # Before: logits, log-softmax and their gradients. Now, where backward multiplies: logits, log-softmax,
        # `picked`, the one-hot targets of 8 bytes, these as float32, the gradient of the log-softmax, and that of
        # each token's sum.
        delta_bytes=(1 + 1 + 1 + 2 + 1 + 1) * LOGITS + 4 * BATCH * SEQUENCE - (1 + 1 + 1 + 1) * LOGITS,
        tolerance_bytes=LOGITS,
        grows_per_step=0,
        changes_operators=True,
        why="the targets one-hot in int64, and products as large as the logits",
    ),
    Plant(
        name="gpt_logits_double",
        model="gpt",
        file="model.py",
        old="return self.head(x)",
        new="return self.head(x).double()",
        line=(
            *_model("return self.head(x).double()"),
            *_train("loss = cross_entropy(logits, targets)", "loss.backward()"),
        ),
        module=("GPT", "GPT.head", ""),
        category=("activations", "gradients", "temporaries"),
        delta_bytes=(2 - 1) * 4 * LOGITS,
        tolerance_bytes=2 * LOGITS,
        grows_per_step=0,
        changes_operators=True,
        why="logits, log-softmax, and the gradients of both have 8 bytes an element instead of 4",
    ),
    Plant(
        name="gpt_mask_per_head",
        model="gpt",
        file="model.py",
        old=".expand(batch, HEADS, length, length)",
        new=".repeat(batch, HEADS, 1, 1)",
        line=_model("mask = self.causal[:length, :length].repeat(batch, HEADS, 1, 1)"),
        module=("GPT",),
        category=("activations", "temporaries"),
        delta_bytes=4 * BATCH * HEADS * SEQUENCE * SEQUENCE,
        tolerance_bytes=4 * BATCH * HEADS * SEQUENCE * SEQUENCE,
        grows_per_step=0,
        changes_operators=True,
        why="an expanded mask made real for each head of each sample; the checkpoints keep it until backward",
    ),
    Plant(
        name="gpt_gradients_kept",
        model="gpt",
        file="train.py",
        old="optimizer.zero_grad()",
        new="optimizer.zero_grad(set_to_none=False)",
        line=_train("loss.backward()", "optimizer.zero_grad(set_to_none=False)"),
        module=("GPT*",),
        category=("gradients",),
        delta_bytes=4 * GPT_WEIGHTS,
        tolerance_bytes=4 * VOCABULARY * WIDTH,
        grows_per_step=0,
        changes_operators=True,
        why="gradients are zeroed and not freed: they are alive when the logits' gradients are",
    ),
    Plant(
        name="gpt_probes_kept",
        model="gpt",
        file="model.py",
        old="self.probe = x[:, -1].detach()",
        new="self.probes.append(x[:, -1].detach())",
        line=_model("x = self.norm(x)", "self.probes.append(x[:, -1].detach())"),
        module=("GPT.norm", "GPT"),
        category=("activations", "other"),
        delta_bytes=STREAM,
        tolerance_bytes=STREAM,
        grows_per_step=STREAM,
        changes_operators=False,
        why="a list of slices, each of which keeps all of the tensor it was cut from",
    ),
)

# Sizes of models/resnet. A map is what flows through the first stage; those of later stages have half, a quarter.
IMAGES, SIDE, CLASSES, CHANNELS = 24, 64, 1000, 16
MAP = 4 * IMAGES * CHANNELS * (SIDE // 2) ** 2
MAP2, MAP3 = MAP // 2, MAP // 4
AUXILIARY = 4 * 2 * CHANNELS * (SIDE // 2) ** 2
"""A map of the second classifier, of one image."""
AUXILIARY_GRAPH = 2 * AUXILIARY + 4 * 2 * CHANNELS + 2 * 4 * CLASSES
"""Before the normalization, after the ReLU, their means, the logits and their log-softmax, of one image."""
PICTURES = 4 * IMAGES * 3 * SIDE * SIDE
LAST = 4 * CHANNELS
"""Channels of the last stage."""
RESNET_GRAPH = (
    2 * MAP  # before the first normalization and after the ReLU
    + 2 * 4 * MAP  # two blocks: what both convolutions and both ReLUs give
    + (1 + 4 + 4) * MAP2  # the same, and the shortcut's convolution
    + (1 + 4 + 4) * MAP3
    + 2 * 4 * CHANNELS * (1 + 4 + 5 * 2 + 5 * 4 + 2)  # mean and deviation of each channel, of all normalizations
    + IMAGES // 4 * (2 * AUXILIARY + 4 * 2 * CHANNELS)
    + 4 * IMAGES * LAST  # what the classifier gets
    + 4 * (IMAGES + IMAGES // 4) * CLASSES
    + 2 * 4  # two log-softmaxes, and by how much both losses are divided
    + (PICTURES + 8 * IMAGES)  # the batch of the step before
)
"""What the graph of the loss keeps."""
RESNET_PEAK_MOVED = (
    # Backward's first convolution is no more the peak: the gradients of three layers' weights, and four maps (two
    # gradients, and what the convolution makes of them) beside those that forward left, of which some are freed.
    (4 * (LAST + 1) * CLASSES + 4 * LAST * LAST * 9 + 4 * MAP3)
    - (MAP3 + 4 * IMAGES * (LAST + CLASSES))
    # It is now forward's last ReLU, with what this gets and the scores of the step before, and without what follows.
    - (MAP3 + 4 * IMAGES * CLASSES)
    + (4 * IMAGES * (LAST + 2 * CLASSES) + 4 * IMAGES // 4 * CLASSES)
)
"""By how much the peak is less above what is kept, since it is now where the graph of the step before is alive."""
CONVOLUTIONS = (
    "x = self.conv1(x)",
    "x = relu(self.norm1(x))",
    "x = self.conv2(x)",
    "return relu(self.norm2(x) + shortcut)",
)

RESNET = (
    Plant(
        name="resnet_activation_kept",
        model="resnet",
        file="model.py",
        old="        x = self.norm(x)\n        x = relu(x)\n        x = self.stage1(x)\n",
        new="        x = self.norm(x)\n        self.last = x\n        x = relu(x)\n        x = self.stage1(x)\n",
        line=_model("x = self.norm(x)", "self.last = x"),
        module=("ResNet.norm", "ResNet"),
        category=("activations", "other"),
        delta_bytes=MAP,
        tolerance_bytes=MAP,
        grows_per_step=0,
        changes_operators=False,
        why="what the normalization gives is needed by nothing in backward, and was freed by the ReLU",
    ),
    Plant(
        name="resnet_graph_retained",
        model="resnet",
        file="train.py",
        old="loss.backward()",
        new="loss.backward(retain_graph=True)",
        line=(
            *_model(*CONVOLUTIONS, "shortcut = self.shortcut(x)", "x = self.conv(images)", "x = self.stage1(x)"),
            *_train("logits, early = self.model(images)"),
        ),
        module=("ResNet*",),
        category=("activations",),
        delta_bytes=RESNET_GRAPH - RESNET_PEAK_MOVED,
        tolerance_bytes=MAP,
        grows_per_step=0,
        changes_operators=False,
        why="the loss of the step before, kept on the object, keeps all that its graph saved until it is replaced",
    ),
    Plant(
        name="resnet_outputs_kept",
        model="resnet",
        file="train.py",
        old="self.scores = logits.detach()",
        new="self.outputs.append(logits.detach())",
        line=(
            *_model("return self.head(x.flatten(1)), early"),
            *_train("self.outputs.append(logits.detach())", "logits, early = self.model(images)"),
        ),
        module=("ResNet.head", "ResNet"),
        category=("activations", "other"),
        delta_bytes=4 * IMAGES * CLASSES,
        tolerance_bytes=4 * IMAGES * CLASSES,
        grows_per_step=4 * IMAGES * CLASSES,
        changes_operators=False,
        why="a list of detached outputs",
    ),
    Plant(
        name="resnet_batch_prefetched",
        model="resnet",
        file="train.py",
        old="    while True:\n        yield batch(luck)\n",
        new=(
            "    upcoming = batch(luck)\n"
            "    while True:\n"
            "        current, upcoming = upcoming, batch(luck)\n"
            "        yield current\n"
        ),
        line=_train(
            "images = torch.randn(BATCH, 3, SIDE, SIDE, generator=luck)",
            "current, upcoming = upcoming, batch(luck)",
        ),
        module=(),
        category=("inputs", "other"),
        delta_bytes=PICTURES + 8 * IMAGES,
        tolerance_bytes=PICTURES,
        grows_per_step=0,
        changes_operators=False,
        why="the next batch is made before the current one is trained on",
    ),
    Plant(
        name="resnet_branch_batch",
        model="resnet",
        file="model.py",
        old="x[: BATCH // 4]",
        new="x[: BATCH // 2]",
        line=_model("x = self.conv(x)", "x = relu(self.norm(x))", "early = self.auxiliary(x[: BATCH // 2])"),
        module=("ResNet.auxiliary*",),
        category=("activations",),
        delta_bytes=(IMAGES // 2 - IMAGES // 4) * AUXILIARY_GRAPH,
        tolerance_bytes=IMAGES // 4 * AUXILIARY,
        grows_per_step=0,
        changes_operators=False,
        why="the second classifier gets twice as many images",
    ),
    Plant(
        name="resnet_hook_keeps_inputs",
        model="resnet",
        file="model.py",
        old="        self.seen: list[Tensor] = []\n",
        new=(
            "        self.seen: list[Tensor] = []\n"
            "        self.pool.register_forward_hook(lambda pool, inputs, output: self.seen.append(inputs[0]))\n"
        ),
        line=_model(
            "return relu(self.norm2(x) + shortcut)",
            "self.pool.register_forward_hook(lambda pool, inputs, output: self.seen.append(inputs[0]))",
            "x = self.stage3(x)",
            "x = self.pool(x)",
        ),
        module=("ResNet.stage3*", "ResNet.pool"),
        category=("activations", "other"),
        delta_bytes=MAP3,
        tolerance_bytes=MAP3,
        grows_per_step=MAP3,
        changes_operators=False,
        why="a hook's list of what the pooling gets",
    ),
)

# Sizes of models/dlrm.
CLICKS, HELD_OUT, SAMPLE = 2048, 32, 1280
DENSE, TABLES, ROWS, VECTOR, HIDDEN = 13, 16, 1000, 32, 512
PAIRS = (TABLES + 1) * TABLES // 2
TABLE = 4 * ROWS * VECTOR
MLP_WEIGHTS = (
    (DENSE * HIDDEN + HIDDEN)
    + (HIDDEN * VECTOR + VECTOR)
    + ((VECTOR + PAIRS) * HIDDEN + HIDDEN)
    + (HIDDEN * HIDDEN + HIDDEN)
    + (HIDDEN + 1)  # the click's
)
IMPRESSION = (
    4 * (HIDDEN + VECTOR)  # after the ReLUs of the bottom
    + TABLES * 3 * 8  # of each bag: its offset, its size and, though unused by sums, its largest index
    + 4 * (TABLES + 1) * VECTOR  # the stacked vectors
    + 4 * (TABLES + 1) ** 2  # their products, of which the pairs are gathered
    + 4 * (VECTOR + PAIRS)  # what the top gets
    + 2 * 4 * HIDDEN  # after its ReLUs
    + (1 + 4) * HIDDEN  # the mask and what is left by it
    + 4  # the logit
)
"""What the graph of the loss keeps of one impression."""

DLRM = (
    Plant(
        name="dlrm_losses_kept",
        model="dlrm",
        file="train.py",
        old="        self.validation = loss.item()\n",
        new="        self.validation = loss.item()\n        self.losses.append(loss)\n",
        line=(
            *_model(
                "x = relu(self.first(x))",
                "return relu(self.second(x))",
                "features = self.bottom(dense)",
                "vectors = torch.stack([features, *(bag(each) for bag, each in zip(self.bags, rows, strict=True))], 1)",
                "hidden = self.top(torch.cat([features, interactions], 1))",
                "hidden = self.dropout(hidden)",
                "return x * mask / (1 - self.rate)",
            ),
            *_train("logits = self.model(self.held_out.dense, self.held_out.rows)", "self.losses.append(loss)"),
        ),
        module=("DLRM*",),
        category=("activations", "other"),
        delta_bytes=HELD_OUT * IMPRESSION + 8 + 4,  # the number divided by, and the loss
        tolerance_bytes=4 * HELD_OUT * HIDDEN,
        grows_per_step=HELD_OUT * IMPRESSION + 8 + 4,  # the number divided by, and the loss
        changes_operators=False,
        why="a list of losses, each of which keeps its graph, through which no backward runs",
    ),
    Plant(
        name="dlrm_state_double",
        model="dlrm",
        file="train.py",
        old="torch.zeros_like(parameter)",
        new="torch.zeros_like(parameter, dtype=torch.float64)",
        line=_train("self.sums[parameter] = torch.zeros_like(parameter, dtype=torch.float64)"),
        module=("DLRM.bags*", ""),
        category=("optimizer state",),
        delta_bytes=(8 - 4) * TABLES * ROWS * VECTOR,
        tolerance_bytes=8 * ROWS * VECTOR,
        grows_per_step=0,
        changes_operators=True,
        why="sums of squared gradients have 8 bytes an element instead of 4",
    ),
    Plant(
        name="dlrm_momentum",
        model="dlrm",
        file="train.py",
        old="torch.optim.SGD(others, lr=1e-6, fused=True)",
        new="torch.optim.SGD(others, lr=1e-6, momentum=0.9, fused=True)",
        line=_train("self.dense.step()"),
        # The weights are of three modules: what holds all of them is right.
        module=("DLRM.top*", "DLRM.bottom*", "DLRM.click", "DLRM", ""),
        category=("optimizer state",),
        delta_bytes=4 * MLP_WEIGHTS,
        tolerance_bytes=4 * HIDDEN * HIDDEN,
        grows_per_step=0,
        changes_operators=False,
        why="gradient descent had no state, and now has a momentum for each weight",
    ),
    Plant(
        name="dlrm_temporary_larger",
        model="dlrm",
        file="train.py",
        old="SAMPLE = 1280",
        new="SAMPLE = 1792",
        line=_train("margins = scores[:SAMPLE, None] - scores"),
        module=(),
        category=("temporaries",),
        delta_bytes=4 * (1792 - SAMPLE) * CLICKS,
        tolerance_bytes=4 * SAMPLE * CLICKS,
        grows_per_step=0,
        changes_operators=False,
        why="the peak is where impressions are held against each other, now with more of them",
    ),
    Plant(
        name="dlrm_copy_to_the_end",
        model="dlrm",
        file="train.py",
        old="        batch = self.batch\n",
        new=(
            "        batch = self.batch\n"
            "        before = [each.weight.detach().clone() for each in self.model.bags]  # noqa: F841\n"
        ),
        line=_train("before = [each.weight.detach().clone() for each in self.model.bags]  # noqa: F841"),
        module=(),
        category=("temporaries", "other"),
        delta_bytes=TABLES * TABLE,
        tolerance_bytes=TABLE,
        grows_per_step=0,
        changes_operators=True,
        why="copies of all tables that a local variable keeps until the step ends",
    ),
    Plant(
        name="dlrm_dropout_masks_kept",
        model="dlrm",
        file="model.py",
        old="        return x * mask / (1 - self.rate)\n",
        new="        self.masks.append(mask)\n        return x * mask / (1 - self.rate)\n",
        line=_model(
            "mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - self.rate)",
            "self.masks.append(mask)",
        ),
        module=("DLRM.dropout",),
        category=("activations", "other"),
        delta_bytes=(CLICKS + HELD_OUT) * HIDDEN,
        tolerance_bytes=CLICKS * HIDDEN,
        grows_per_step=(CLICKS + HELD_OUT) * HIDDEN,
        changes_operators=False,
        why="a list of masks, one of each forward pass: of the batch, and of what is held out",
    ),
)

# Sizes of models/decoder.
REPLIES, TOKENS, CONTEXT, POSITIONS, WORDS, STATE, KEY_HEADS, DEPTH = 32, 48, 256, 4096, 1024, 128, 4, 4
KEYS = 4 * REPLIES * TOKENS * STATE
"""The keys of a whole reply in one layer, or its values."""

DECODER = (
    Plant(
        name="decoder_cache_twice",
        model="decoder",
        file="model.py",
        old="length = TOKENS + 1",
        new="length = 2 * (TOKENS + 1)",
        line=_model(
            "self.keys = torch.zeros(LAYERS, BATCH, HEADS, length, CHANNELS)",
            "self.values = torch.zeros(LAYERS, BATCH, HEADS, length, CHANNELS)",
        ),
        module=(),
        category=("other", "temporaries"),
        delta_bytes=2 * DEPTH * KEYS * (TOKENS + 1) // TOKENS,
        tolerance_bytes=DEPTH * KEYS * (TOKENS + 1) // TOKENS,
        grows_per_step=0,
        changes_operators=False,
        why="the cache of keys and values is twice as long as a reply",
    ),
    Plant(
        name="decoder_contiguous",
        model="decoder",
        file="model.py",
        old="return keys, values",
        new="return keys.contiguous(), values.contiguous()",
        line=_model("return keys.contiguous(), values.contiguous()"),
        module=("Decoder.blocks*",),
        category=("temporaries",),
        # The peak was where the logits are made; it is now where attention ends, with its queries, keys and values of
        # the token, what they were mixed to and its projection.
        delta_bytes=2 * KEYS + 4 * REPLIES * (3 + 1 + 1) * STATE - 4 * REPLIES * WORDS,
        tolerance_bytes=KEYS,
        grows_per_step=0,
        changes_operators=True,
        why="attention gets copies of the keys and values so far, which are the larger the longer the reply",
    ),
    Plant(
        name="decoder_positions_double",
        model="decoder",
        file="model.py",
        old="nn.Embedding(POSITIONS, WIDTH)",
        new="nn.Embedding(POSITIONS, WIDTH, dtype=torch.float64)",
        line=_model("self.positions = nn.Embedding(POSITIONS, WIDTH, dtype=torch.float64)"),
        module=("Decoder.positions", "Decoder"),
        category=("parameters",),
        delta_bytes=(8 - 4) * POSITIONS * STATE,
        tolerance_bytes=(8 - 4) * POSITIONS * STATE,
        grows_per_step=0,
        changes_operators=True,
        why="an embedding table has 8 bytes an element instead of 4",
    ),
    Plant(
        name="decoder_buffer_twice",
        model="decoder",
        file="model.py",
        old="torch.zeros(HEADS, CONTEXT, CONTEXT)",
        new="torch.zeros(HEADS, 2 * CONTEXT, CONTEXT)",
        line=_model('self.register_buffer("bias", torch.zeros(HEADS, 2 * CONTEXT, CONTEXT))'),
        module=("Decoder",),
        category=("parameters", "other"),
        delta_bytes=4 * KEY_HEADS * CONTEXT * CONTEXT,
        tolerance_bytes=4 * KEY_HEADS * CONTEXT * CONTEXT,
        grows_per_step=0,
        changes_operators=False,
        why="a buffer of the model is registered twice its size",
    ),
    Plant(
        name="decoder_memo_grows",
        model="decoder",
        file="train.py",
        old="        return torch.cat(reply, 1)\n",
        new="        self.memo[self.requests] = logits\n        return torch.cat(reply, 1)\n",
        line=(
            *_model("return self.head(self.norm(x)).squeeze(1)"),
            *_train("logits = self.model(ids, cache, position)", "self.memo[self.requests] = logits"),
        ),
        module=("Decoder.head", "Decoder"),
        category=("other", "activations", "temporaries"),
        delta_bytes=4 * REPLIES * WORDS,
        tolerance_bytes=4 * REPLIES * WORDS,
        grows_per_step=4 * REPLIES * WORDS,
        changes_operators=False,
        why="a dict with an entry for each request, of which none is ever taken out",
    ),
)

PLANTS: tuple[Plant, ...] = (*GPT, *RESNET, *DLRM, *DECODER)
