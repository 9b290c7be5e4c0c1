"""What ``--mode`` selects: training a run to its end, or scoring one of its checkpoints."""

import contextlib
import json
import sys
from typing import Any

import numpy as np

from input_pipeline.placement import DevicePrefetcher
from trainer.evaluation import evaluate
from trainer.flops import step_flops, utilization
from trainer.hooks import Evaluator, Profiler, Recorder, Saver, Scores
from trainer.loop import Hook, train
from trainer.metrics.console import ConsoleWriter
from trainer.metrics.jsonl import JsonlWriter, read_rows
from trainer.metrics.tensorboard import TensorBoardWriter
from trainer.metrics.writer import Kind, MetricWriter, Several, Thinned
from trainer.run import Run
from trainer.sampling import sample
from trainer.startup import StartupReport
from trainer.state import TrainState
from trainer.step import build_eval_step

PROMPT = "def "


def train_run(run: Run) -> None:
    """Trains to the last step, evaluates, saves, and writes ``summary.json``.

    Raises:
      PreemptedError: stopped on request, saved.
      NumericsError: gradients stayed non-finite.
      CheckpointError: a save failed.
    """
    steps = run.config.train.steps
    with contextlib.ExitStack() as stack:
        stack.callback(run.store.close)
        if run.start_step >= steps and run.directory.root.read("summary.json") is not None:
            run.say(f"This run is complete: {steps} of {steps} steps.\n{_next(run)}")
            return
        writer = _writers(run)
        run.participant.before_leaving(writer.close)
        recorder = _recorder(run, writer)
        evaluator = Evaluator(
            _score(run), recorder=recorder, every=run.config.evaluation.every, last=steps
        )
        state = _train(run, stack, recorder=recorder, evaluator=evaluator)
        run.store.wait()
        writer.flush()
        summary = _summarize(run, recorder, evaluator.scores(steps) or _scored(run, steps) or {})
        if run.participant.rank == 0:
            run.directory.root.write("summary.json", json.dumps(summary, indent=1).encode())
        run.say(_show(summary))
        _show_sample(run, state)
        run.say(_next(run))


def evaluate_run(run: Run) -> None:
    """Scores the held-out data with the restored step and prints one JSON object."""
    with contextlib.ExitStack() as stack:
        stack.callback(run.store.close)
        scores = _score(run)(run.state)
        run.say(json.dumps({"step": run.start_step, **(scores or {})}))


def _train(
    run: Run, stack: contextlib.ExitStack, *, recorder: Recorder, evaluator: Evaluator
) -> TrainState:
    steps = run.config.train.steps
    saver = Saver(
        run.store,
        data={"position": run.position.to_json()},
        scores=evaluator.scores,
        recorder=recorder,
        participant=run.participant,
        every=run.config.checkpoint.every,
        last=steps,
    )
    hooks: list[Hook] = [recorder, evaluator, saver, _startup(run)]
    if run.options.profile_steps:
        first, last = run.options.profile_steps
        profiler = Profiler(run.directory.local / "profiles", first=first, last=last)
        stack.callback(profiler.close)
        hooks.append(profiler)
    start = run.start_step
    if start and evaluator.due(start) and _scored(run, start) is None:
        # The process before this one ended between this step's save and its evaluation.
        evaluator.at_boundary(run.state, start)
    if start >= steps:
        return run.state
    assert run.step is not None
    loader = stack.enter_context(run.loader(start=start, stop=steps))
    depth = max(run.config.data.prefetch, 1)
    placed = stack.enter_context(DevicePrefetcher(loader, run.shardings, depth=depth))
    return train(
        run.state,
        step=run.step,
        batches=placed,
        hooks=hooks,
        stop=run.participant.preemption,
        save=saver.commit,
        max_nonfinite=run.config.train.max_nonfinite,
    )


def _startup(run: Run) -> StartupReport:
    def beside() -> dict[str, float]:
        assert run.step is not None
        return {"trace": run.step.trace_s, "compile": run.step.compile_s, "wait": run.step.wait_s}

    return StartupReport(
        run.options.clock,
        say=run.say,
        details=beside,
        root=run.directory.root if run.participant.rank == 0 else None,
        key=f"{run.directory.folder}startup.json",
    )


def _score(run: Run) -> Any:
    step = build_eval_step(run.program)

    def score(state: TrainState) -> Scores | None:
        return evaluate(
            state,
            task=run.program.task,
            step=step,
            batches=run.evaluation_batches(),
            shardings=run.shardings,
            interrupted=run.participant.preemption.reached,
        )

    return score


def _recorder(run: Run, writer: MetricWriter) -> Recorder:
    data = run.config.data
    flops = step_flops(run.program, rows=data.global_batch, length=data.sequence_length)
    used = utilization(flops, program=run.program, convention=run.config.logging.mfu)
    run.say(
        f"{used.flops:.3g} FLOPs per step ({run.config.logging.mfu} attention); "
        + (f"MFU n/a: {used.reason}" if used.peak is None else f"peak {used.peak:.3g} FLOP/s")
    )
    return Recorder(writer, task=run.program.task, utilization=used, participant=run.participant)


def _writers(run: Run) -> MetricWriter:
    if run.participant.rank != 0:
        return Several([])
    settings, steps = run.config.logging, run.config.train.steps
    local = run.directory.local
    superseded = local / run.directory.folder / "superseded.jsonl"
    shown: list[MetricWriter] = [ConsoleWriter(sys.stdout, steps=steps)]
    if settings.tensorboard:
        shown.append(TensorBoardWriter(local / "tensorboard", restored_step=run.start_step))
    return Several(
        [
            JsonlWriter(
                local / "metrics.jsonl", restored_step=run.start_step, superseded=superseded
            ),
            *(Thinned(writer, every=settings.every, last=steps) for writer in shown),
        ]
    )


def _scored(run: Run, step: int) -> Scores | None:
    """Returns the scores that an earlier attempt wrote for ``step``."""
    path = run.directory.local / "metrics.jsonl"
    if not path.exists():
        return None
    rows = (row for row in read_rows(path) if row.kind is Kind.EVAL and row.step == step)
    return next((dict(row.values) for row in rows), None)


def _summarize(run: Run, recorder: Recorder, scores: Scores) -> dict[str, Any]:
    totals = recorder.totals
    seconds = totals["seconds"]
    summary: dict[str, Any] = {
        "steps": run.config.train.steps,
        "attempt": run.directory.attempt,
        "tokens_per_second": totals["tokens"] / seconds if seconds else None,
        "data_wait_share": totals["data_wait"] / seconds if seconds else None,
        "metrics_share": totals["metrics"] / seconds if seconds else None,
        "checkpoint_blocked_share": totals["save"] / seconds if seconds else None,
        **{f"eval_{name}": value for name, value in scores.items()},
    }
    if run.held_out.baselines is not None:
        summary["unigram_bits_per_byte"] = run.held_out.baselines.unigram_bits_per_byte
        summary["bigram_bits_per_byte"] = run.held_out.baselines.bigram_bits_per_byte
    return summary


def _show(summary: dict[str, Any]) -> str:
    ours = summary.get("eval_bits_per_byte")
    if ours is None or "bigram_bits_per_byte" not in summary:
        return f"held-out loss {summary.get('eval_loss', float('nan')):.4f}"
    return (
        f"held-out bits per byte: {ours:.3f}; byte bigram {summary['bigram_bits_per_byte']:.3f}, "
        f"byte unigram {summary['unigram_bits_per_byte']:.3f}"
    )


def _show_sample(run: Run, state: TrainState) -> None:
    count, tokenizer = run.config.evaluation.sample_tokens, run.data.tokenizer
    if not count or tokenizer is None:
        return
    prompt = np.concatenate([[tokenizer.bos], tokenizer.encode_batch([PROMPT.encode()])[0]])
    tokens = sample(run.program, state, prompt=prompt.astype(np.int32), count=count)
    run.say(f"Sample:\n{PROMPT}{tokenizer.decode(tokens)}")


def _next(run: Run) -> str:
    where = run.options.run_dir
    return (
        f"Results: {where}/summary.json, metrics: {where}/metrics.jsonl.\n"
        f"Next: train longer with ARGS='--gin.TrainConfig.steps="
        f"{2 * run.config.train.steps}', or see docs/configuration.md."
    )
