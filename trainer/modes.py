"""What ``--mode`` selects: training a run to its end, or scoring one of its steps."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
from absl import logging

from input_pipeline.placement import DevicePrefetcher
from launch.contract import Phase
from trainer import finite_json
from trainer.assembly import Options, Setup, assemble, with_data
from trainer.checkpoints.store import CheckpointStore
from trainer.config import LoadedConfig
from trainer.coordination import agree
from trainer.distributed import Participant
from trainer.endings import PreemptedError, UserError, classify
from trainer.evaluation import evaluate
from trainer.flops import step_flops, utilization
from trainer.hooks import Evaluator, Profiler, Recorder, Saver, Scores, StartupReport
from trainer.loop import Hook, train
from trainer.metrics.console import ConsoleWriter
from trainer.metrics.jsonl import JsonlWriter, read_rows
from trainer.metrics.mirror import Mirrored, fetch
from trainer.metrics.tensorboard import TensorBoardWriter
from trainer.metrics.writer import Kind, MetricWriter, Several, Thinned
from trainer.prompts import text_prompt
from trainer.reading import read_state, untrained
from trainer.run import Run, compile_ahead, other_dataset
from trainer.sampling import Sampling, generate
from trainer.state import TrainState
from trainer.step import build_eval_step

PROMPT = "def "
METRICS = "metrics.jsonl"
AGREE_S = 300.0


def train_run(run: Run) -> None:
    """Trains to the last step, evaluates, saves, and writes ``summary.json``.

    Raises:
      PreemptedError: stopped on request, saved.
      NumericsError: gradients stayed non-finite.
      CheckpointError: a save failed.
    """
    steps = run.config.train.steps
    with contextlib.ExitStack() as stack:
        stack.enter_context(_closing(run.store))
        if run.start_step >= steps and run.directory.root.read("summary.json") is not None:
            more = f" TrainConfig.steps={steps} is less." if run.start_step > steps else ""
            run.say(
                f"This run is complete: {max(steps, run.start_step)} steps.{more}\n{_next(run)}"
            )
            return
        _check_best_metric(run)
        writer = _writers(run)
        run.participant.before_leaving(writer.close)
        recorder = _recorder(run, writer)
        evaluator = Evaluator(
            _score(run), recorder=recorder, every=run.config.evaluation.every, last=steps
        )
        state = _train(run, stack, recorder=recorder, evaluator=evaluator)
        run.participant.progress(Phase.EXIT)
        run.store.wait()
        writer.flush()
        summary = _summarize(run, recorder, evaluator.scores(steps) or _scored(run, steps) or {})
        if run.participant.rank == 0:
            run.directory.root.write("summary.json", finite_json.dumps(summary, indent=1).encode())
        run.say(_show(summary))
        _show_sample(run, state)
        run.say(_next(run))


def evaluate_run(loaded: LoadedConfig, *, options: Options, participant: Participant) -> None:
    """Scores the held-out data and prints one JSON object.

    What is scored is a saved step, or without a run directory ``TrainConfig.init_from``.

    Raises:
      UserError: configuration, data, step or parameters cannot be used.
      CheckpointError: no step is whole.
    """
    config = untrained(loaded.run, options=options)
    program, shardings = assemble(config)
    setup = with_data(program, shardings, config, options=options, participant=participant)
    state, restored = read_state(loaded, setup.program, options=options, participant=participant)
    if restored and restored.dataset_digest != setup.data.digest:
        logging.warning("%s", other_dataset(restored, setup.data))
    participant.progress(Phase.COMPILE)
    scores = _score(setup)(state)
    if scores is None:
        raise PreemptedError("SIGTERM during the evaluation; start it again.")
    what = {"step": restored.step} if restored else {"init_from": config.train.init_from}
    setup.say(finite_json.dumps({**what, **scores}))


def _check_best_metric(run: Run) -> None:
    """Raises UserError if no evaluation will ever have the metric that chooses the best steps."""
    settings, data, task = run.config.checkpoint, run.config.data, run.program.task
    if not settings.keep_best:
        return
    spec = task.batch_spec(rows=data.global_batch, length=data.sequence_length)
    batch = {name: jax.ShapeDtypeStruct(s.shape, s.dtype) for name, s in spec.items()}
    sums = jax.eval_shape(build_eval_step(run.program), run.state, batch)
    known = {"loss", *task.metrics(dict.fromkeys(sums, 1.0), weight=1.0)}
    if settings.best_metric not in known:
        raise UserError(
            f"CheckpointConfig.best_metric={settings.best_metric!r} is no metric of this run's "
            f"evaluations, so that no step would be kept as the best; there are: "
            f"{', '.join(sorted(known))}."
        )


@contextlib.contextmanager
def _closing(store: CheckpointStore) -> Iterator[None]:
    """Waits for the last save at the end, also at a bad one, unless its peers are gone."""
    try:
        yield
    except BaseException as error:
        if not classify(error).cascade:
            try:
                store.close()
            except (RuntimeError, OSError) as second:
                logging.error("The last save failed, too: %s", second)
        raise
    store.close()


def _train(
    run: Run, stack: contextlib.ExitStack, *, recorder: Recorder, evaluator: Evaluator
) -> TrainState:
    steps = run.config.train.steps
    saver = Saver(
        run.store,
        program=run.program,
        data=run.needed,
        scores=evaluator.scores,
        recorder=recorder,
        every=run.config.checkpoint.every,
        last=steps,
    )
    hooks: list[Hook] = [recorder, evaluator, saver, _startup(run)]
    if run.options.profile_steps:
        first, last = run.options.profile_steps
        folder = run.directory.local / "profiles"
        profiler = Profiler(folder, first=first, last=last, start=run.start_step)
        stack.callback(profiler.close)
        hooks.append(profiler)
    start = run.start_step
    if start and evaluator.due(start) and not _was_scored(run, start):
        # The process before this one ended between this step's save and its evaluation.
        evaluator.at_boundary(run.state, start)
    if start >= steps:
        return run.state
    loader = stack.enter_context(run.loader(start=start, stop=steps))
    depth = max(run.config.data.prefetch, 1)
    placed = stack.enter_context(
        DevicePrefetcher(loader, run.shardings, columns=run.columns, depth=depth)
    )
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
        return {"trace": run.step.trace_s, "compile": run.step.compile_s, "wait": run.step.wait_s}

    return StartupReport(
        run.options.clock,
        say=run.say,
        details=beside,
        root=run.directory.root if run.participant.rank == 0 else None,
        key=f"{run.directory.folder}startup.json",
    )


def _score(setup: Setup) -> Callable[[TrainState], Scores | None]:
    # Compiled ahead where it has to be looked at; elsewhere an evaluation may be far away.
    staged = setup.program.stages > 1
    step = compile_ahead(setup, build_eval_step) if staged else build_eval_step(setup.program)

    participant = setup.participant

    def interrupted() -> bool:
        participant.progress(Phase.EVALUATE)
        return participant.preemption.reached()

    def score(state: TrainState) -> Scores | None:
        return evaluate(
            state,
            task=setup.program.task,
            step=step,
            batches=setup.evaluation_batches(),
            shardings=setup.shardings,
            columns=setup.columns,
            interrupted=interrupted,
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
    shown: list[MetricWriter] = [ConsoleWriter(sys.stdout, steps=steps)]
    if settings.tensorboard:
        shown.append(TensorBoardWriter(local / "tensorboard", restored_step=run.start_step))
    thinned = [Thinned(writer, every=settings.every, last=steps) for writer in shown]
    return Several([_rows(run), *thinned])


def _rows(run: Run) -> MetricWriter:
    """Returns the writer of metrics.jsonl, which an object store gets a copy of."""
    root, path = run.directory.root, run.directory.local / METRICS
    remote = root.local_path(METRICS) is None
    if remote:
        fetch(path, root=root, key=METRICS)
    superseded = run.directory.local / run.directory.folder / "superseded.jsonl"
    rows = JsonlWriter(path, restored_step=run.start_step, superseded=superseded)
    return Mirrored(rows, path=path, root=root, key=METRICS) if remote else rows


def _was_scored(run: Run, step: int) -> bool:
    """Whether an earlier attempt scored ``step``; process 0 knows, because it has the file."""
    known = _scored(run, step) is not None
    answer = agree(run.participant.coordination, f"scored/{step}", known, timeout_s=AGREE_S)
    return bool(answer)


def _scored(run: Run, step: int) -> Scores | None:
    """Returns the scores that an earlier attempt wrote for ``step``."""
    path = run.directory.local / METRICS
    if not path.exists():
        return None
    rows = (row for row in read_rows(path) if row.kind is Kind.EVAL and row.step == step)
    return next((dict(row.values) for row in rows), None)


def _summarize(run: Run, recorder: Recorder, scores: Scores) -> dict[str, Any]:
    totals = recorder.totals
    summary: dict[str, Any] = {
        "steps": run.config.train.steps,
        "attempt": run.directory.attempt,
        "tokens_per_second": totals.per_second(totals.tokens),
        "data_wait_share": totals.per_second(totals.data_wait_s),
        "metrics_share": totals.per_second(totals.metrics_s),
        "checkpoint_blocked_share": totals.per_second(totals.blocked_s),
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
    sampling = Sampling(count=count, temperature=0.8)
    prompts = [text_prompt(PROMPT, tokenizer=tokenizer)]
    (found,) = generate(run.program, state, prompts, sampling=sampling)
    run.say(f"Sample:\n{PROMPT}{tokenizer.decode(found.tokens)}")


def _next(run: Run) -> str:
    where, steps = run.options.run_dir, 2 * run.config.train.steps
    longer = f"--gin.TrainConfig.steps={steps}"
    schedule = run.config.schedule
    if schedule.decay_steps is not None and steps > schedule.warmup_steps + schedule.cooldown_steps:
        longer += f" --gin.ScheduleConfig.decay_steps={steps} --allow_change="
        longer += "ScheduleConfig.decay_steps"
    if run.config.train.init_from is None:
        further = (
            f"train longer with {longer} (make train ARGS='...'), or see docs/configuration.md"
        )
    else:
        ask = "ask it with --mode=generate --prompt='...'"
        further = f"{ask}, train longer with {longer}, or see docs/finetuning.md"
    return f"Results: {where}/summary.json, metrics: {where}/metrics.jsonl.\nNext: {further}."
