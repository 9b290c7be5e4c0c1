"""Records the compiled programs that tests of the counter read, so that they need no compiler.

``python -m tests.partitioning.record_programs`` rewrites tests/partitioning/programs/*.txt.xz with
the compilers of ``make aot``. What the text says about
places in source files is left out.
"""

import dataclasses
import lzma
import pathlib
import re
import sys

from partitioning.collectives import MeshShape
from partitioning.mesh_config import AXES, MeshConfig
from trainer.certificate import programs
from trainer.deviceless import CompiledStep, compile_train_step, target_program
from trainer.run_config import RunConfig

FOLDER = pathlib.Path(__file__).parent / "programs"
# TPU moves whole tiles of 128 lanes: with narrower heads the bytes would be those of padding.
MODEL = programs.decoder(
    vocab_size=256,
    embed_dim=128,
    layers=10,
    heads=8,
    kv_heads=4,
    head_dim=128,
    mlp_dim=512,
    dtype="bfloat16",
    param_dtype="float32",
)
ROWS, LENGTH = 16, 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
    """How a program was made.

    Attributes:
      target: chip.
      rules: rule set in configs/partitioning.
      mesh: sizes.
      slices: TPU slices.
    """

    target: str
    rules: str
    mesh: MeshConfig
    slices: int = 1

    @property
    def shape(self) -> MeshShape:
        """Returns how the devices are numbered."""
        sizes = {axis: getattr(self.mesh, axis) for axis in AXES}
        return MeshShape(sizes=sizes, outer=dict(self.mesh.outer) if self.slices > 1 else {})

    @property
    def run(self) -> RunConfig:
        """Returns the run."""
        return programs.run(MODEL, rules=self.rules, mesh=self.mesh, rows=ROWS, length=LENGTH)

    def compile(self) -> CompiledStep:
        """Compiles the train step."""
        program = target_program(self.run, target=self.target, slices=self.slices)
        return compile_train_step(program, run=self.run, quick=True)


PROGRAMS = {
    "h100_fsdp4_tensor4": Recorded(
        target="h100", rules="fsdp_tp", mesh=MeshConfig(fsdp=4, tensor=4)
    ),
    "v5e_fsdp4_tensor4": Recorded(target="v5e", rules="fsdp_tp", mesh=MeshConfig(fsdp=4, tensor=4)),
    "v5e_2slices_data2_fsdp4": Recorded(
        target="v5e",
        rules="hsdp",
        mesh=MeshConfig(data=2, fsdp=4, outer=(("data", 2),)),
        slices=2,
    ),
}


def text(name: str) -> str:
    """Returns a recorded program."""
    return lzma.decompress((FOLDER / f"{name}.txt.xz").read_bytes()).decode()


def without_sources(program: str) -> str:
    """Leaves out the tables of files, functions and stack frames, and references to them."""
    head, _, rest = program.partition("\nFileNames\n")
    _, _, body = rest.partition("\nStackFrames\n")
    body = body[body.index("\n\n") :] if body else rest
    return re.sub(r'( source_file="[^"]*"| source_line=\d+| stack_frame_id=\d+)', "", head + body)


def main() -> None:
    """Compiles and writes every program, or those that are named."""
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PROGRAMS:
        program = without_sources(PROGRAMS[name].compile().text)
        packed = lzma.compress(program.encode(), preset=9 | lzma.PRESET_EXTREME)
        (FOLDER / f"{name}.txt.xz").write_bytes(packed)
        print(name, len(program), len(packed))


if __name__ == "__main__":
    main()
