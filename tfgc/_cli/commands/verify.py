"""`tfgc verify`: prove that training by a plan is the same training."""

import click

from tfgc._cli import choices, options
from tfgc._core.modes import check_mode
from tfgc._error_texts import one_line
from tfgc._errors import OptionError, TfgcError


@click.command("verify", cls=options.Command)
@options.network_options
@options.plan_or_options
@click.option(
    "--layers", callback=options.parsed(options.names), help="Comma-separated layers to recompute, instead of a plan."
)
@click.option(
    "--mode",
    "modes",
    callback=options.parsed(options.names),
    help="Comma-separated modes: eager, compiled, graph, xla.  [default: the first three, and xla for a model compiled "
    "to use it; eager alone for one that draws by tf.random]",
)
@click.option("--steps", type=options.COUNT, default=3, show_default=True, help="Training steps per mode.")
@options.json_option
def command(
    network: choices.NetworkChoice,
    planning: choices.PlanChoice,
    layers: tuple[str, ...] | None,
    modes: tuple[str, ...] | None,
    steps: int,
    json_path: str | None,
) -> None:
    """Check that training NAME by a plan equals plain training.

    Compares the loss and every gradient, state and seed of plain and planned steps on seeded noise. The loss is the
    mean square of the outputs, and of the logits that Keras's crossentropies find behind them. Exit code 1 if anything
    differs. A subclassed model that is compiled runs its own training step on the example.
    """
    read = planning.read()
    if layers is not None and (read is not None or planning.is_given):
        raise OptionError("give --layers, or a plan or options to make one, not both")
    if layers == () or modes == ():
        raise OptionError(f"--{'mode' if modes == () else 'layers'}: name at least one")
    for mode in modes or ():
        check_mode(mode)
    with choices.warnings_in_a_line():
        model, given = network.open()
        from tfgc._framework import memory_counts
        from tfgc._tracing import synthetic
        from tfgc._verify import verify

        if read is None and layers is None:
            read = planning.make(model, network.batch_size, **given)
        batch = given.get("example")
        if batch is None:
            batch = synthetic.batch(model, network.batch_size, given["input_shapes"])[:1]
        try:
            verdict = verify.verify(model, read, batch, layers=layers, modes=modes, steps=steps)
        except memory_counts.OUT_OF_MEMORY as error:
            raise TfgcError(
                f"{network.name} ran out of memory at --batch-size {network.batch_size}: plain steps run beside "
                f"planned ones, so give a smaller batch ({one_line(error)})"
            ) from error
    if not options.emit_json(verdict.to_dict(), json_path):
        options.echo(verdict)
    if not verdict:
        raise TfgcError(f"{network.name} trains differently by this plan: {verdict.worst}")
