"""Golden values of the review questions that are no row of the others."""

import dataclasses

from partitioning.planner.calculators import activations, bubble, state
from partitioning.planner.calculators.communication import Ring
from partitioning.planner.calculators.state import Layout
from partitioning.planner.documents.chapter import MACHINE, SMALLER, TIMES, TRACE
from tests.partitioning.planner.golden_terms import (
    REVIEW,
    asked,
    gb,
    layer,
    message,
    ms,
    right,
    waits,
)

P1 = 175e9

QUESTIONS = {
    "F2": {
        "z1_32": gb(70e9, 1, data=32),
        "z3_32": gb(70e9, 3, data=32),
        "z1_tp8dp4": gb(70e9, 1, 8, 1, 4),
        "nozero_tp8pp4": gb(70e9, 0, 8, 4),
    },
    "I1": {
        **{f"z{n}": gb(30e9, 3, data=n) for n in (4, 8, 16)},
        "pp4_layers": asked("I1c", "layers_per_stage"),
        "dp": asked("I1b", "least_that_fits"),
        "M_lt10": bubble.least_microbatches(4, below=0.1),
        "accum_book": REVIEW["I1d", "accumulation"].book,
        "accum_right": bubble.least_microbatches(4, below=0.1),
        "bubble_m16": waits(4, 16),
        "params_12Ld2": right("E38", "parameters", 1e9),
        "state_right": gb(30e9, 3, 8, 4, 8),
        "no_zero": gb(30e9, 0, 8, 4, 8),
    },
    "I2": {
        "mfu": MACHINE.mfu(85e3),
        "min_ms": 1e3 * TRACE.perfect,
        "o80": 1e3 * TRACE.total(0.8),
        "x": TRACE.total() / TRACE.total(0.8),
        "mfu80": MACHINE.mfu(85e3) * TRACE.total() / TRACE.total(0.8),
        "mfu_perfect": MACHINE.mfu(85e3) * TRACE.total() / TRACE.perfect,
        "toks_1M": right("E39", "tokens_per_second"),
        "mfu_1M": right("E39", "mfu"),
        "mfu_1M_80": right("E39", "mfu") * TRACE.total() / TRACE.total(0.8),
        "toks_per_step_at85k": right("E39", "in_a_step"),
    },
    "P1": {
        "minN": state.least_replicas(P1, room=75e9, layout=Layout()),
        "pp1_dp256": gb(P1, 3, data=256),
        "pp4_dp64": gb(P1, 3, data=64),
        "pp8_dp32": gb(P1, 3, data=32),
        "right": gb(P1, 3, 8, 4, 64),
        "nozero_tp8pp8": gb(P1, 0, 8, 8, 32),
        "z1_tp8pp8dp32": gb(P1, 1, 8, 8, 32),
        "params_12Ld2": 12 * 96 * 12_288**2 / 1e9,
    },
    "P1act": {
        "sel_tp_sp_per_layer_GB": layer(4).selective() / 1e9,
        "x24": 24 * layer(4).selective() / 1e9,
        "x96": activations.layers_in_flight(96, stages=4, microbatches=35)
        * layer(4).selective()
        / 1e9,
        "full_tp_sp_x96": 96 * layer(4).full() / 1e9,
        "full_nosp_x96": 96 * dataclasses.replace(layer(4), sequence_parallel=False).full() / 1e9,
        "mb1_sel_x96": 96 * layer(1).selective() / 1e9,
        "book_scaled": asked("P1a", "book_activations", 1e9),
    },
    "P1tp": {
        "MB": message(4, 12_288) / 1e6,
        "ms600": ms(4, 600e9, ring=False, width=12_288),
        "ms450f": ms(4, 450e9, width=12_288),
        "ib": ms(4, 50e9, ring=False, width=12_288),
        "step600": 192 * ms(4, 600e9, ring=False, width=12_288),
        "stepib": 192 * ms(4, 50e9, ring=False, width=12_288),
    },
    "P1bubble": {
        "M": bubble.least_microbatches(4, below=0.08),
        "b": waits(4, 35),
        "book_accum": REVIEW["P1c", "accumulation"].book,
        "b48": waits(4, 48),
    },
    "P1cp": {
        "dp_pp4_cp8": asked("P1d", "data"),
        "tokens_per_gpu": asked("P1d", "tokens"),
        "act_mb1_cp8_per_layer": layer(1, 16_384).selective() / 1e9,
        "kv_GB": Ring(length=131_072, keys=12_288, context=8).keys_and_values / 1e9,
        "book_z3_dp8": gb(P1, 3, data=8),
        "z3_dpcp64": gb(P1, 3, data=8, context=8),
    },
    "P3": {
        "toks28": SMALLER.tokens_per_second(0.28),
        "seq104": 1e3 * TIMES.total(),
        "o80": 1e3 * TIMES.total(0.8),
        "x": TIMES.total() / TIMES.total(0.8),
        "mfu": 28 * TIMES.total() / TIMES.total(0.8),
        "perfect": 28 * TIMES.total() / TIMES.perfect,
        "i2_80": 28 * TRACE.total() / TRACE.total(0.8),
        "i2_perfect": 28 * TRACE.total() / TRACE.perfect,
    },
}
