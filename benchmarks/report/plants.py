"""Six small projects with a planted regression each: what their reports, terminals and summaries are tried on.

    python benchmarks/report/plants.py --out /tmp/six               # all of them, about two minutes each
    python benchmarks/report/plants.py --out /tmp/six gpt images    # some of them

Each project is made from nothing: a git repository with a model, a perf test, a good commit, and a bad edit, which is
in the working tree or in a second commit. Baselines are recorded at the good commit (`pytest --perf-update`), then
the bad code is measured (`pytest --perf`). What a user meets is kept in OUT/NAME: the report's folder, what the
terminal printed at 100 columns (terminal.txt), failure and summary at 80 and 120 columns, `perfdl diff run.json`, and
the exit code. The surfaces are then compared with each other (`tests/unit/report/consistency.py`). Exit code 1 when a
regression was not caught, or a number contradicts another.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
WIDTH = 100
"""Columns of the terminal that a project is measured in."""
OTHER_WIDTHS = (80, 120)
"""Columns that failure and summary are written for again, from the run file."""
PROCESSES = 4


@dataclass(frozen=True)
class Plant:
    """A project and the edit that makes it slower or larger."""

    name: str
    edited: str
    """The file of the bad edit."""
    good: str
    """Lines of it that the edit replaces; they occur once."""
    bad: str
    message: str
    """Of the bad commit; empty for an edit in the working tree."""
    files: dict[str, str]
    settings: str = ""
    """More lines of its pytest settings."""


def of_example(name: str, *changes: tuple[str, str]) -> str:
    """A model of examples/ as somebody's own: without the switches that plant regressions there."""
    text = (ROOT / "examples" / "models" / name).read_text()
    for old, new in (("from plants import planted\n", ""), *changes):
        text = replaced(text, old, new)
    if "planted" in text:
        raise SystemExit(f"examples/models/{name} has a plant that {__file__} does not know")
    return text


def replaced(text: str, old: str, new: str) -> str:
    """The text with what occurs once replaced."""
    if text.count(old) != 1:
        raise SystemExit(f"occurs {text.count(old)} times instead of once: {old!r}")
    return text.replace(old, new)


GPT_MODEL = of_example(
    "gpt.py",
    (
        """    if planted("softmax_float64"):
        future = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).triu(1)
        scores = query @ key.transpose(-2, -1) * query.size(-1) ** -0.5
        return scores.masked_fill(future, -torch.inf).softmax(-1, dtype=torch.float64).to(value.dtype) @ value
""",
        "",
    ),
    (
        """        if planted("dropout_twice"):
            x = x + self.dropout(self.attention(self.attention_norm(x)))
            return x + self.dropout(self.mlp(self.mlp_norm(x)))
""",
        "",
    ),
    (
        """        if planted("graph_break") and x.isnan().any():
            raise FloatingPointError("the embeddings contain NaN")
""",
        "",
    ),
    ("""fused=not planted("fused_optimizer_lost")""", "fused=True"),
    (
        """    with torch.autograd.set_detect_anomaly(planted("anomaly_mode"), check_nan=False):
        logits = model(ids[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
""",
        """    logits = model(ids[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
""",
    ),
    (
        """    if planted("loss_item"):
        loss.item()
""",
        "",
    ),
)
GPT_TEST = """import pytest
import torch
from models.gpt import GPT, GPTConfig, adamw, train_step


@pytest.mark.perf
def test_train_step(perf):
    torch.manual_seed(0)
    config = GPTConfig()
    model = GPT(config)
    ids = torch.randint(config.vocabulary, (2, config.context + 1), generator=torch.Generator().manual_seed(1))
    loss = perf(train_step, model, adamw(model), ids, items=ids.numel())
    assert loss.isfinite()
"""

IMAGES = of_example(
    "images.py",
    (
        """        if planted("jitter_before_crop"):
            image = random_crop(jitter(photograph, luck), self.crop, luck)
        else:
            image = jitter(random_crop(photograph, self.crop, luck), luck)
""",
        """        image = jitter(random_crop(photograph, self.crop, luck), luck)
""",
    ),
    (
        """    if planted("collate_through_lists"):
        batch = np.array([image.tolist() for image in images], dtype=np.float32)
    else:
        batch = np.stack(images)
    return torch.from_numpy(batch)""",
        """    return torch.from_numpy(np.stack(images))""",
    ),
)
IMAGES_TEST = """import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from vision.images import image_loader


@pytest.mark.perf
def test_train_from_loader(perf):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.GELU(), nn.Flatten(), nn.Linear(16 * 64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    for images, labels in perf.steps(image_loader(workers=0)):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.isfinite()
"""

TABULAR_MODEL = '''"""A deep residual network for tables, and its training step."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss


class Residual(nn.Module):
    """Two linear layers around a ReLU, added to what came in: [batch, width] to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class TableNet(nn.Module):
    """Rows [batch, columns] to one number each."""

    def __init__(self, columns: int = 40, width: int = 64, layers: int = 12) -> None:
        super().__init__()
        self.embed = nn.Linear(columns, width)
        self.layers = nn.Sequential(*(Residual(width) for _ in range(layers)))
        self.head = nn.Linear(width, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(rows))).squeeze(-1)


class Trainer:
    """Trains with SGD and keeps the loss of the last step."""

    def __init__(self, model: nn.Module, lr: float = 1e-7) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def step(self, rows: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(rows), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
'''
TABULAR_TEST = """import pytest
import torch
from tabular.train import TableNet, Trainer


@pytest.mark.perf
def test_trainer_step(perf):
    torch.manual_seed(0)
    trainer = Trainer(TableNet())
    rows, targets = torch.randn(64, 40), torch.randn(64)
    loss = perf(trainer.step, rows, targets, items=64)
    assert loss.isfinite()
"""

DENOISER_MODEL = '''"""A small convolutional denoiser and how it is trained."""

import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss


class Stage(nn.Module):
    """Normalization, activation, convolution: [batch, channels, height, width] to the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.norm(x).relu())


class Denoiser(nn.Module):
    """Noisy images [batch, 1, height, width] to clean ones."""

    def __init__(self, channels: int = 16, stages: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.stages = nn.Sequential(*(Stage(channels) for _ in range(stages)))
        self.last = nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return images - self.last(self.stages(self.first(images)))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with a learning rate for fine-tuning."""
    return torch.optim.AdamW(model.parameters(), lr=1e-7, weight_decay=0.01, fused=True)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, noisy: Tensor, clean: Tensor) -> Tensor:
    """One step on a batch; returns the loss."""
    loss = l1_loss(model(noisy), clean)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
'''
DENOISER_TEST = """import pytest
import torch
from denoise.model import Denoiser, make_optimizer, train_step


@pytest.mark.perf
def test_train_step(perf):
    torch.manual_seed(0)
    model = Denoiser()
    clean = torch.rand(4, 1, 16, 16)
    loss = perf(train_step, model, make_optimizer(model), clean + 0.1 * torch.randn_like(clean), clean, items=4)
    assert loss.isfinite()
"""

RANKER_MODEL = '''"""Ranks documents for a query: a mixture of token embeddings, scored by blocks of a gated MLP."""

from torch import Tensor, nn
from torch.nn.functional import silu


class GatedBlock(nn.Module):
    """A gated MLP added to what came in: [documents, width] to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 3 * width
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, hidden)
        self.value = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.out(silu(self.gate(y)) * self.value(y))


class Ranker(nn.Module):
    """Token ids [documents, tokens] to scores [documents]."""

    def __init__(self, vocabulary: int = 2000, width: int = 192, blocks: int = 4) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(vocabulary, width, mode="mean")
        self.blocks = nn.ModuleList(GatedBlock(width) for _ in range(blocks))
        self.score = nn.Linear(width, 1)

    def forward(self, documents: Tensor) -> Tensor:
        x = self.embed(documents)
        for block in self.blocks:
            x = block(x)
        return self.score(x).squeeze(-1)
'''
RANKER_TEST = """import pytest
import torch
from ranker import Ranker


@pytest.mark.perf
def test_rank_documents(perf):
    torch.manual_seed(0)
    model = Ranker().eval()
    documents = torch.randint(2000, (128, 64))
    with torch.inference_mode():
        scores = perf(model, documents, items=128)
    assert scores.shape == (128,)
"""

SEGMENTER_MODEL = '''"""A segmentation network, trained on large batches in small pieces."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Segmenter(nn.Module):
    """Images [batch, 3, height, width] to logits [batch, classes, height, width]."""

    def __init__(self, channels: int = 16, layers: int = 4, classes: int = 8) -> None:
        super().__init__()
        body: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
        for _ in range(layers):
            body += [nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)]
        self.body = nn.Sequential(*body)
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).relu())


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, pieces: int = 8
) -> Tensor:
    """One step on a batch in `pieces`, whose gradients add up; returns the mean loss."""
    total = torch.zeros(())
    for some, own in zip(images.chunk(pieces), labels.chunk(pieces), strict=True):
        loss = cross_entropy(model(some), own) / pieces
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total
'''
SEGMENTER_TEST = """import pytest
import torch
from segment.net import Segmenter, train_step


@pytest.mark.perf
def test_train_step(perf):
    torch.manual_seed(0)
    model = Segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    images, labels = torch.rand(16, 3, 24, 24), torch.randint(8, (16, 24, 24))
    loss = perf(train_step, model, optimizer, images, labels, items=16)
    assert loss.isfinite()
"""

PLANTS = (
    Plant(
        "gpt",
        "src/models/gpt.py",
        "    return scaled_dot_product_attention(query, key, value, is_causal=True)\n",
        """    scores = query @ key.transpose(-2, -1) * query.size(-1) ** -0.5
    future = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1, dtype=torch.float64)
    return weights.to(value.dtype) @ value
""",
        "Attention weights in double precision",
        {"src/models/__init__.py": "", "src/models/gpt.py": GPT_MODEL, "tests/test_gpt.py": GPT_TEST},
    ),
    Plant(
        "images",
        "src/vision/images.py",
        "        image = jitter(random_crop(photograph, self.crop, luck), luck)\n",
        "        image = random_crop(jitter(photograph, luck), self.crop, luck)\n",
        "",
        {"src/vision/__init__.py": "", "src/vision/images.py": IMAGES, "tests/test_loading.py": IMAGES_TEST},
    ),
    Plant(
        "tabular",
        "tabular/train.py",
        """        loss.backward()
        self.optimizer.step()
""",
        """        loss.backward()
        self.norms = {}
        for name, parameter in self.model.named_parameters():
            self.norms[name] = parameter.grad.norm().item()
        self.optimizer.step()
""",
        "Keep the gradients' norms for the dashboard",
        {"tabular/__init__.py": "", "tabular/train.py": TABULAR_MODEL, "tests/test_training.py": TABULAR_TEST},
    ),
    Plant(
        "denoiser",
        "src/denoise/model.py",
        "weight_decay=0.01, fused=True)\n",
        "weight_decay=0.01, foreach=False)\n",
        "",
        {"src/denoise/__init__.py": "", "src/denoise/model.py": DENOISER_MODEL, "tests/test_denoise.py": DENOISER_TEST},
    ),
    Plant(
        "ranker",
        "ranker/__init__.py",
        "        hidden = 3 * width\n",
        "        hidden = 6 * width\n",
        "Wider blocks",
        {"ranker/__init__.py": RANKER_MODEL, "tests/test_ranker.py": RANKER_TEST},
    ),
    Plant(
        "segmenter",
        "src/segment/net.py",
        """    total = torch.zeros(())
    for some, own in zip(images.chunk(pieces), labels.chunk(pieces), strict=True):
        loss = cross_entropy(model(some), own) / pieces
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total
""",
        """    losses = []
    for some, own in zip(images.chunk(pieces), labels.chunk(pieces), strict=True):
        losses.append(cross_entropy(model(some), own) / pieces)
    total = torch.stack(losses).sum()
    total.backward()
    optimizer.step()
    optimizer.zero_grad()
    return total.detach()
""",
        "",
        {"src/segment/__init__.py": "", "src/segment/net.py": SEGMENTER_MODEL, "tests/test_net.py": SEGMENTER_TEST},
        # Its times hardly change: that they did not by so much takes few rounds to show.
        'perf_limits = ["step_time:15%", "block_time:15%"]\n',
    ),
)


def main() -> int:
    from unit.report import consistency

    names = [plant.name for plant in PLANTS]
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0], formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"projects, of {', '.join(names)} (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="folder to keep reports and terminals in")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(names)):
        parser.error(f"no project is called {', '.join(unknown)}; there are {', '.join(names)}")
    bad = 0
    for plant in PLANTS:
        if arguments.names and plant.name not in arguments.names:
            continue
        kept = arguments.out / plant.name
        started = time.perf_counter()
        code = try_out(plant, kept)
        wrong = consistency.contradictions(kept)
        print(f"{plant.name:10} exit code {code}, {time.perf_counter() - started:.0f} s, {len(wrong)} contradictions")
        for line in wrong:
            print(f"    {line}")
        bad += code != 1 or bool(wrong)
    return int(bad > 0)


def try_out(plant: Plant, kept: Path) -> int:
    """Make the project, measure both commits and keep what a user sees of the second; pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="project-") as scratch:
        project = Path(scratch) / plant.name
        make(plant, project)
        recorded = pytest(project, "--perf-update", f"--perf-repeats={PROCESSES}")
        if recorded.returncode != 0:
            raise SystemExit(f"{plant.name}: recording the baseline failed:\n{recorded.stdout}{recorded.stderr}")
        git(project, "add", "--all")
        git(project, "commit", "--quiet", "--message", "Performance baselines")
        shutil.rmtree(project / "perf-report")
        spoil(plant, project)
        measured = pytest(project, "--perf")
        if not (project / "perf-report" / "run.json").is_file():
            raise SystemExit(f"{plant.name}: no report was written:\n{measured.stdout}{measured.stderr}")
        # What was kept before stays until there is something to take its place.
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(project / "perf-report", kept, ignore=shutil.ignore_patterns(".gitignore"))
        (kept / "terminal.txt").write_text(measured.stdout)
        (kept / "exit-code.txt").write_text(f"{measured.returncode}\n")
        if measured.stderr:
            (kept / "stderr.txt").write_text(measured.stderr)
    command = [sys.executable, "-m", "pytest_perfdl.cli", "diff", str(kept / "run.json")]
    compared = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    (kept / "diff.txt").write_text(compared.stdout + compared.stderr)
    for width in OTHER_WIDTHS:
        (kept / f"terminal-{width}.txt").write_text(shown(kept, width))
    return measured.returncode


def make(plant: Plant, project: Path) -> None:
    """Write the project and commit it."""
    folder = "src" if plant.edited.startswith("src/") else "."
    settings = f'[tool.pytest.ini_options]\npythonpath = ["{folder}"]\ntestpaths = ["tests"]\n{plant.settings}'
    for name, text in {"pyproject.toml": settings, ".gitignore": "__pycache__/\n", **plant.files}.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(project, "init", "--quiet", "--initial-branch=main")
    git(project, "remote", "add", "origin", f"https://github.com/acme/{plant.name}.git")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "First version")


def spoil(plant: Plant, project: Path) -> None:
    """Make the bad edit, and commit it where the plant is a commit."""
    path = project / plant.edited
    path.write_text(replaced(path.read_text(), plant.good, plant.bad))
    if plant.message:
        git(project, "commit", "--quiet", "--all", "--message", plant.message)


def git(project: Path, *arguments: str) -> None:
    who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=project, check=True)


def pytest(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project with this checkout's plugin; what it prints is kept, on a terminal's width."""
    command = [str(Path(sys.executable).parent / "pytest"), *arguments]
    return subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True, check=False)


def environment() -> dict[str, str]:
    """This checkout's plugin on a terminal of one width, as if by hand."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_"))}
    # What other plugins print is none of a report's business; as options they would be in the commands that it shows.
    alone = " ".join(f"-p no:{name}" for name in ("randomly", "benchmark", "cov", "xdist", "anyio", "typeguard"))
    return kept | {"COLUMNS": str(WIDTH), "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": alone}


def shown(kept: Path, width: int) -> str:
    """What the terminal says of a run file at so many columns: the text of the failures, and the summary."""
    from pytest_perfdl.report.terminal import failure_text, summary_lines
    from pytest_perfdl.results.run_file import read_run

    run = read_run(kept / "run.json", kept)
    lines = [failure_text(result, run) for result in run.results if result.fails]
    lines += [" perf summary ".center(width, "="), *(line.text for line in summary_lines(run, 0, width))]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
