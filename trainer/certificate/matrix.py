"""Runs the rows of the certificate: layouts against one device, faults against right programs."""

from trainer.certificate import one_step
from trainer.certificate.cases import CASES, LARGE
from trainer.certificate.controls import CONTROLS, Control
from trainer.certificate.one_step import Case
from trainer.certificate.page import Row

EVERYTHING: tuple[Case | Control, ...] = (*CASES, *LARGE, *CONTROLS)


def names(of: Case | Control) -> tuple[str, ...]:
    """Returns the cells that name a row."""
    return Row(of=of, errors=(0.0, 0.0, 0.0)).cells


def run(of: Case | Control) -> Row:
    """Computes one row; jax must have 64 bits and enough devices."""
    case = of.case if isinstance(of, Control) else of
    expected = one_step.on_one_device(case.reference())
    if isinstance(of, Control):
        with of.fault():
            found = one_step.outcome(case)
    else:
        found = one_step.outcome(case)
    loss, gradients, parameters = (error for _, error in one_step.errors(found, expected).values())
    return Row(of=of, errors=(loss, gradients, parameters))
