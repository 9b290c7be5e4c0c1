"""The real trainer, with faults planted between its steps.

``--fault`` as in fake_rank; everything else is passed on to trainer.main. The training code is not
touched: a hook of the loop strikes.
"""

import os
import sys

from absl import app

from launch.contract import Environment
from tests.chaos.fake_rank import Fault
from trainer import hooks, standard_streams
from trainer.distributed import run_guarded
from trainer.loop import StepResult
from trainer.main import main, parse_flags


def plant(faults: list[Fault]) -> None:
    environment = Environment.read(os.environ)
    assert environment is not None
    reported = hooks.Recorder.reported

    def struck(self: hooks.Recorder, result: StepResult) -> None:
        for fault in faults:
            if fault.hits(environment, result.step):
                fault.strike()
        reported(self, result)

    hooks.Recorder.reported = struck  # type: ignore[method-assign]


if __name__ == "__main__":
    standard_streams.secure()
    texts = [text.partition("=")[2] for text in sys.argv if text.startswith("--fault=")]
    plant([Fault(text) for text in texts])
    arguments = [text for text in sys.argv if not text.startswith("--fault=")]
    app.run(lambda _: run_guarded(main), argv=arguments, flags_parser=parse_flags)
