"""`tfgc verify`: prove that training by a plan is the same training."""

import click

from tfgc._cli import options, values
from tfgc._errors import OptionError, TfgcError


@click.command("verify", cls=options.Command)
@options.model_options
@options.plan_options
@click.option("--plan", "plan_path", type=options.INPUT, help="Plan file to use instead of planning options.")
@click.option("--layers", type=values.Names(), help="Comma-separated layers to recompute, instead of a plan.")
@click.option(
    "--mode",
    "modes",
    type=values.Names(),
    default="eager,compiled,graph",
    show_default=True,
    help="Comma-separated modes: eager, compiled, graph, xla.",
)
@click.option("--steps", type=int, default=3, show_default=True, help="Training steps per mode.")
@options.json_option
def command(
    name: str,
    batch_size: int,
    image_size: int | None,
    inputs: values.Shapes,
    budget: str | None,
    strategy: str | None,
    strategy_options: values.Settings,
    plan_path: str | None,
    layers: tuple[str, ...] | None,
    modes: tuple[str, ...],
    steps: int,
    json_path: str | None,
) -> None:
    """Prove that training NAME by a plan gives the same results as plain training.

    Compares the loss and every gradient, state and seed of plain and planned steps on seeded noise. The loss is the
    mean square of the outputs, and of the logits that Keras's crossentropies find behind them. Exit code 1 if anything
    differs.
    """
    read = options.read_plan(plan_path, budget, strategy, strategy_options)
    if layers is not None and (read is not None or budget or strategy or strategy_options):
        raise OptionError("give --layers, or a plan or options to make one, not both")
    with options.warnings_in_a_line():
        model, sizes = options.open_model(name, image_size, inputs)
        from tfgc._tracing import synthetic
        from tfgc._verify import verify

        if read is None and layers is None:
            read = options.make_plan(model, batch_size, budget, strategy, strategy_options, input_shapes=sizes)
        x, _ = synthetic.batch(model, batch_size, sizes)
        verdict = verify.verify(
            model,
            read,
            (x,),
            layers=layers,
            modes=modes,
            steps=steps,
        )
    if not options.emit_json(verdict.to_dict(), json_path):
        click.echo(verdict)
    if not verdict:
        raise TfgcError(f"{name} trains differently by this plan: {verdict.worst}")
