"""Short names for what golden_layout.py, golden_running.py and golden_questions.py ask for."""

import dataclasses

from partitioning.planner.calculators import (
    activations,
    bubble,
    communication,
    cost,
    reliability,
    spares,
    state,
)
from partitioning.planner.calculators.reliability import ONE_PERCENT
from partitioning.planner.calculators.state import Layout
from partitioning.planner.commands.errata import errata
from tests.partitioning.planner.asking import answer


@dataclasses.dataclass(frozen=True)
class Rounded:
    """A printed value that is ours, cut or rounded to its digits."""

    value: float
    unit: float

    def __eq__(self, printed):
        return abs(self.value - printed) <= self.unit


ERRATA = {(e.name, q.name): q for e in errata() for q in e.quantities}
REVIEW = {(s.name, q.name): q for s in answer("review").sections for q in s.quantities}


def book(number, name, scale=1.0):
    printed = ERRATA[number, name].book
    assert printed is not None
    return printed / scale


def right(number, name, scale=1.0):
    return ERRATA[number, name].value / scale


def asked(question, name, scale=1.0):
    return REVIEW[question, name].value / scale


def gb(parameters, zero, tensor=1, stage=1, data=1, context=1):
    layout = Layout(tensor=tensor, stage=stage, data=data, context=context)
    return state.per_device(parameters, zero=zero, layout=layout).total / 1e9


def message(rows, width=8192):
    return communication.residual(rows, length=4096, width=width)


def ms(rows, bandwidth, *, ring=True, width=8192):
    if not ring:
        return 1e3 * message(rows, width) / bandwidth
    return 1e3 * communication.all_reduce(message(rows, width), devices=8, bandwidth=bandwidth)


def waits(stages, microbatches, chunks=1):
    return bubble.bubble(stages, microbatches=microbatches, chunks=chunks)


def hours(devices, rate=ONE_PERCENT):
    return reliability.mtbf(devices, rate=rate) / 3600


def weekly(devices):
    return reliability.per_week(devices, rate=ONE_PERCENT)


def parts(job, interval=None):
    lost = job.loss(interval or reliability.young(job.save, mtbf=job.mtbf))
    return {
        "ckpt": lost.checkpoint,
        "rework": lost.rework,
        "restart": lost.restart,
        "total": lost.total,
    }


def dollars(hours, devices=512):
    return cost.device_cost(devices, hours=hours, price=2.0)


def spare(repair):
    between = reliability.mtbf(8192, rate=ONE_PERCENT)
    return {
        "lam": repair / between,
        "nodes": spares.spares(between, repair=repair, confidence=0.995),
    }


def layer(rows, length=4096, width=12_288):
    return activations.Layer(rows=rows, length=length, width=width, tensor=8)


def young(job):
    return reliability.young(job.save, mtbf=job.mtbf)


def daly(job):
    return reliability.daly(job.save, mtbf=job.mtbf)


def by_book(job):
    return reliability.by_the_book(job.save, recovery=job.recovery)
