"""Published measurements as plans: what others' runs would be here. No jax.

``published/*.csv`` hold one run a line, with its source. Columns: ``id``; ``model``, a file in
published/models or configs/models, or the path of one; ``chip``, a file in configs/clusters;
``chips``; ``mesh``, as in "data2 x fsdp128"; ``sequences_per_chip``, or as in "16 per replica";
``seq_len``; ``remat``, as DecoderConfig.remat, perhaps with "; bf16 weights"; ``dtype``, "bf16" or
"fp8"; then what was measured: ``step_s``, ``tflops_per_chip`` (the whole attention square counted),
``tokens_per_s_per_chip``, ``memory_gib`` (a number, "fits" or "OOM"); ``source``; and
``microbatches`` of the step, one for each stage if nothing is said. Lines that begin with # are
remarks.
"""

import csv
import dataclasses
import functools
import math
import pathlib
import re

from models.decoder_config import DecoderConfig
from partitioning.mesh_config import AXES, RulesConfig
from partitioning.planner.cost_model.memory import device_memory
from partitioning.planner.cost_model.step_flops import step_flops
from partitioning.planner.hardware import ClusterConfig
from partitioning.planner.inputs import load_model
from partitioning.planner.plan import Plan
from partitioning.traffic_step import Work
from trainer.config_parser import REPOSITORY
from trainer.fleet import load_cluster
from trainer.optimizer_config import AdamW

FOLDER = pathlib.Path(__file__).parent / "published"
_PYTORCH = ("torch", "nanotron", "megatron", "nemo", "deepspeed")
"""What sources of runs on PyTorch have in their names; all others are JAX."""
_CONFIGS = REPOSITORY / "configs" / "models"
_NAMES = {
    "llama3.1-8b": "llama3_8b",
    "llama3.1-70b": "llama3_70b",
    "llama3.1-405b": "llama3_405b",
    "mixtral-8x7b": "mixtral_8x7b",
}
_CHIPS = {"a100-80gb": "a100_80gb", "h100-80gb": "h100", "h100-96gb (500 W)": "h100_96gb"}
_REMAT = {
    "": "save:query,key,value,attention,attention_out",
    "selective-op": "save:query,value,attention,mlp_up",
    "activations offloaded to host": "offload:query,key,value",
    "context and mlpwo offloaded": "offload:attention",
}
"""What others call it -> DecoderConfig.remat. torchtitan's "selective op" keeps every other product
and attention."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One run.

    Attributes:
      name: its id.
      model: name of its model.
      plan: the same work here.
      cluster: the devices.
      seconds: measured duration of a step, None where unknown.
      memory: measured bytes of a device, None where unknown.
      states_memory: whether anything was said of memory.
      fits: whether it ran.
      narrow: whether products were in eight bits.
      source: where the figures were read.
    """

    name: str
    model: str
    plan: Plan
    cluster: ClusterConfig
    seconds: float | None
    memory: float | None
    states_memory: bool
    fits: bool
    narrow: bool
    source: str

    @property
    def is_jax(self) -> bool:
        """Whether it was compiled by XLA, as ours are."""
        return _is_jax(self.source)

    @property
    def expected_memory(self) -> float:
        """What the framework would report of this plan, in bytes.

        Reports leave out what the driver and libraries take. Frameworks on PyTorch hold logits in
        the compute dtype, and in float32 as such, as their logarithms and as both gradients, 16
        bytes each; free a block's activations as its gradients come; and have in a pipeline
        nothing that only ours has: gathered embeddings, casts.
        """
        use = device_memory(self.plan, chip=self.cluster.chip)
        if self.is_jax:
            return use.total - use.part("reserved")
        ours = ("reserved", "shared_weights", "cast_weights", "logits", "gradient_of_logits")
        held = use.total - sum(use.part(name) for name in ours)
        logits = self.plan.step.tokens * self.plan.model.vocab_size / self.plan.sizes["tensor"]
        passing = ("gradients", "block", "experts", "gathered_weights")
        at_loss = held - sum(use.part(name) for name in passing) + 16 * logits
        freed = min(use.part("gradients"), use.part("activations"))
        return max(held - freed, at_loss)

    @property
    def expected_to_fit(self) -> bool:
        """Whether that fits."""
        chip = self.cluster.chip
        return self.expected_memory + chip.reserved <= chip.memory


def read_runs(path: pathlib.Path) -> tuple[PublishedRun, ...]:
    """Reads a file of runs.

    Raises:
      ValueError: a line is not as described above.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)[:400]} cannot be read: {error}.") from None
    found: list[PublishedRun] = []
    rows = [row for row in text.splitlines() if not row.startswith("#")]
    for number, line in enumerate(csv.DictReader(rows, restkey="more"), start=1):
        if "more" in line:
            raise ValueError(f"{path}, row {number}: more cells than columns.")
        named = {name: (value or "").strip() for name, value in line.items()}
        if named.get("source") == "same" and found:
            named["source"] = found[-1].source
        try:
            found.append(_run(named))
        except KeyError as error:
            raise ValueError(f"{path}: there is no column {error}.") from error
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from error
    return tuple(found)


def _run(line: dict[str, str]) -> PublishedRun:
    narrow, memory = line["dtype"] != "bf16", line["memory_gib"]
    devices, sizes = int(line["chips"]), _sizes(line["mesh"])
    if math.prod(sizes.values()) != devices:
        raise ValueError(f"Mesh {line['mesh']!r} is not of {devices} chips.")
    model = dataclasses.replace(
        _model(line["model"]),
        remat=_remat(line),
        matmul="fp8" if narrow else "default",
        param_dtype="bfloat16" if "bf16 weights" in line["remat"] else "float32",
        # Any fused kernel, and the whole loss at once, as others have them.
        attention="cudnn",
        scan_layers=True,
        loss_chunks=1,
    )
    microbatches = int(line.get("microbatches") or sizes["stage"])
    work = Work(
        rows=_rows(line, sizes=sizes, microbatches=microbatches),
        length=int(line["seq_len"]),
        microbatches=microbatches,
    )
    plan = Plan(model=model, sizes=sizes, rules=RulesConfig(), work=work, optimizer=AdamW())
    return PublishedRun(
        name=line["id"],
        model=line["model"],
        plan=plan,
        cluster=_cluster(_CHIPS.get(line["chip"], line["chip"]), devices),
        seconds=_seconds(line, plan),
        memory=float(memory) * 2**30 if re.fullmatch(r"[\d.]+", memory) else None,
        states_memory=bool(memory),
        fits=memory != "OOM",
        narrow=narrow,
        source=line["source"],
    )


def _is_jax(source: str) -> bool:
    return not any(name in source.lower() for name in _PYTORCH)


def _remat(line: dict[str, str]) -> str:
    text = line["remat"].removesuffix("; bf16 weights")
    if text == "selective" and "torchtitan" in line["source"]:
        text = "selective-op"
    return _REMAT.get(text, text)


def _seconds(line: dict[str, str], plan: Plan) -> float | None:
    if line["step_s"]:
        return float(line["step_s"])
    if line["tokens_per_s_per_chip"]:
        return plan.tokens / plan.devices / float(line["tokens_per_s_per_chip"])
    if line["tflops_per_chip"]:
        flops = step_flops(plan.model, rows=plan.work.rows, length=plan.work.length)
        return flops.total("full") / plan.devices / float(line["tflops_per_chip"]) / 1e12
    return None


@functools.cache
def _model(name: str) -> DecoderConfig:
    known = _NAMES.get(name, name)
    for path in (pathlib.Path(name), FOLDER / "models" / f"{name}.gin", _CONFIGS / f"{known}.gin"):
        if path.is_file():
            return load_model([str(path)])
    raise ValueError(f"Unknown model {name!r}: give the path of a gin file.")


@functools.cache
def _cluster(name: str, devices: int) -> ClusterConfig:
    return load_cluster(f"{name}_{devices}")


def _sizes(text: str) -> dict[str, int]:
    """Reads "data2(dcn) x fsdp256"."""
    sizes = dict.fromkeys(AXES, 1)
    for part in text.split(" x "):
        match = re.fullmatch(r"([a-z]+)=?(\d+)(\(dcn\))?", part.strip())
        if match is None or match[1] not in AXES:
            raise ValueError(f"{text!r} is not a mesh, as data2 x fsdp128 is.")
        sizes[match[1]] = int(match[2])
    return sizes


def _rows(line: dict[str, str], *, sizes: dict[str, int], microbatches: int) -> int:
    """Rows of the global batch.

    JAX frameworks count a batch by device; others by group of devices with the same parameters,
    and in a pipeline by microbatch.
    """
    number, _, of = line["sequences_per_chip"].partition(" ")
    if _is_jax(line["source"]) and not of:
        return int(number) * math.prod(sizes.values())
    replicas = sizes["data"] * sizes["fsdp"] * sizes["expert"]
    return int(number) * replicas * microbatches
