"""`tfgc verify`: prove that training by a plan is the same training."""

import click

from tfgc._cli import options as shared
from tfgc._errors import OptionError, TfgcError


@click.command("verify", cls=shared.Command)
@shared.model_options
@shared.plan_options
@click.option("--plan", "plan_path", type=shared.INPUT, help="Plan file to use instead of planning options.")
@click.option("--layers", help="Comma-separated layers to recompute, instead of a plan.")
@click.option(
    "--mode",
    "modes",
    default="eager,compiled,graph",
    show_default=True,
    help="Comma-separated modes: eager, compiled, graph, xla.",
)
@click.option("--steps", type=int, default=3, show_default=True, help="Training steps per mode.")
@shared.json_option
def command(
    name, batch_size, image_size, inputs, budget, strategy, options, plan_path, layers, modes, steps, json_path
):  # fmt: skip
    """Prove that training NAME by a plan gives the same results as plain training.

    Compares the loss and every gradient, state and seed of plain and planned steps on seeded noise. The loss is the
    mean square of the outputs, and of the logits that Keras's crossentropies find behind them. Exit code 1 if anything
    differs.
    """
    read = shared.read_plan(plan_path, budget, strategy, options)
    if layers is not None and (read is not None or budget or strategy or options):
        raise OptionError("give --layers, or a plan or options to make one, not both")
    with shared.warnings_in_a_line():
        model, sizes = shared.open_model(name, image_size, inputs)
        from tfgc._tracing import synthetic
        from tfgc._verify import verify

        if read is None and layers is None:
            read = shared.make_plan(model, batch_size, budget, strategy, options, input_shapes=sizes)
        x, _ = synthetic.batch(model, batch_size, sizes)
        verdict = verify.verify(
            model,
            read,
            (x,),
            layers=None if layers is None else [word.strip() for word in layers.split(",")],
            modes=[word.strip() for word in modes.split(",")],
            steps=steps,
        )
    if not shared.emit_json(verdict.to_dict(), json_path):
        click.echo(verdict)
    if not verdict:
        raise TfgcError(f"{name} trains differently by this plan: {verdict.worst}")
